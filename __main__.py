"""The Pulumi program: what the stack file says becomes a Release, and the Release becomes resources."""

import sys
from pathlib import Path

import pulumi

from components.deployment import Deployment
from components.hooks import Hooks
from ops.interrupts import end_quietly_when_interrupted
from ops.leftovers import leftover_hook, revival_hook
from spec.catalog import Catalog, refuse_unclean_file
from spec.errors import SpecificationError
from spec.plan import plan_release

PROJECT = Path(__file__).absolute().parent

_SAID_WHY = 32
"""The exit code by which Pulumi's language host knows that the program has already told the reason."""


def main() -> None:
    """Declares the deployment of the selected stack."""
    end_quietly_when_interrupted()
    stack = pulumi.get_stack()
    try:
        refuse_unclean_file(PROJECT, stack)
        release = plan_release(stack, pulumi.Config().get_object("deployment"), Catalog(PROJECT / "catalog"))
    except SpecificationError as error:
        pulumi.log.error(str(error))
        sys.exit(_SAID_WHY)
    deployment = Deployment(release, Hooks(leftover_hook(release), revival_hook(release)))
    pulumi.export("release", release.hash)
    pulumi.export("endpoints", deployment.endpoints)


main()
