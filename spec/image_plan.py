"""Plans the image of a deployment: its base, its steps, what it is verified to be and the node that builds it."""

from spec.chain import Debootstrap, PatchChain
from spec.cluster import Hardware
from spec.dockerfile import Expected, finished_identity, finished_reference
from spec.image import Image, Registry
from spec.release import BasePlan, ChainPlan, ImagePlan, StepPlan
from spec.situation import Situation


def plan_image(situation: Situation) -> ImagePlan:
    """Returns the plan of the image that all ranks of the deployment run."""
    chain, expected = situation.chain, expected_of(situation.image, situation.hardware)
    base = base_plan(situation.origin)
    reference = finished_reference(chain, expected) if chain else base.reference
    build = situation.config.image_build
    return ImagePlan(
        reference=reference,
        build_on=situation.cluster.builder,
        base=base,
        chain=chain_plan(chain, expected, build.step_timeout_seconds) if chain else None,
        kept=build.kept,
        cache_folder=f"{situation.cluster.storage_folder}/cache/{reference.rpartition(':')[2]}",
        version=situation.image.version,
    )


def base_plan(origin: Registry | Debootstrap) -> BasePlan:
    """Returns where an image starts."""
    if isinstance(origin, Registry):
        return BasePlan(reference=origin.reference, pull=origin.pull_reference)
    return BasePlan(reference=origin.reference, archive=f"images/{origin.identity}.tar")


def chain_plan(chain: PatchChain, expected: Expected, step_timeout_seconds: int) -> ChainPlan:
    """Returns the steps of a chain as resources need them."""
    return ChainPlan(
        name=chain.name,
        identity=finished_identity(chain, expected),
        steps=tuple(
            StepPlan(
                name=step.slug,
                identity=step.identity,
                parent=step.parent,
                reference=step.reference,
                changes=step.changes,
            )
            for step in chain.steps
        ),
        expected=expected,
        step_timeout_seconds=step_timeout_seconds,
    )


def expected_of(image: Image, hardware: Hardware) -> Expected:
    """Returns what an image must be to run on this hardware; code for 12.0 also runs on 12.1."""
    capability = hardware.compute_capability
    return Expected(
        entrypoint=image.entrypoint,
        architecture=hardware.platform.removeprefix("linux/") if hardware.platform else None,
        capability=f"{capability.partition('.')[0]}.0" if capability else None,
    )
