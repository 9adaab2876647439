"""The Pulumi program: what the stack file says becomes a Release, and the Release becomes resources."""

import sys
from pathlib import Path

import pulumi

from components.deployment import Deployment
from components.hooks import Hooks
from ops.chosen_release import is_told, release_to_deploy
from ops.interrupts import end_quietly_when_interrupted
from ops.leftovers import leftover_hook, revival_hook
from spec.errors import SpecificationError

PROJECT = Path(__file__).absolute().parent

_SAID_WHY = 32
"""The exit code by which Pulumi's language host knows that the program has already told the reason."""


def main() -> None:
    """Declares the deployment of the selected stack."""
    end_quietly_when_interrupted()
    stack = pulumi.get_stack()
    try:
        release = release_to_deploy(stack, pulumi.Config().get_object("deployment"), PROJECT)
    except SpecificationError as error:
        pulumi.log.error(str(error))
        sys.exit(_SAID_WHY)
    if is_told():
        pulumi.log.warn(f"deploys the kept Release {release.hash[:16]}, not what the stack file says")
    deployment = Deployment(release, Hooks(leftover_hook(release), revival_hook(release)))
    pulumi.export("release", release.hash)
    pulumi.export("endpoints", deployment.endpoints)


main()
