"""The stacks of this project: their names, their plans."""

from pathlib import Path

from ops.places import PROJECT
from spec.catalog import STACK_KEY, Catalog, read_stack
from spec.deployment import DeploymentConfig
from spec.plan import plan_release
from spec.release import Release
from spec.situation import Situation, look_up
from spec.yaml_files import parse

CATALOG = Catalog(PROJECT / "catalog")


def stacks() -> list[str]:
    """Returns the names of all stack files of the project."""
    return sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in PROJECT.glob("Pulumi.*.yaml"))


def planned(stack: str, project: Path = PROJECT) -> Release:
    """Plans a stack of this project, or of another folder that is laid out like it.

    Raises:
        SpecificationError: it cannot work.
    """
    return plan_release(stack, read_stack(project, stack), Catalog(project / "catalog"))


def situation_of(stack: str) -> Situation:
    """Returns a stack of this project with everything that it names.

    Raises:
        SpecificationError: it is malformed or names something unknown.
    """
    config = parse(DeploymentConfig, read_stack(PROJECT, stack), f"Pulumi.{stack}.yaml", f"config/{STACK_KEY}")
    return look_up(stack, config, CATALOG)
