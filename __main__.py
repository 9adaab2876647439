"""The Pulumi program: what the stack file says becomes a Release, and the Release becomes resources."""

import sys
from pathlib import Path

import pulumi

from components.deployment import Deployment
from components.hooks import Hooks
from components.rank_secrets import Secrets
from ops.chosen_release import is_told, release_to_deploy
from ops.errors import OperationError
from ops.interrupts import end_quietly_when_interrupted
from ops.rank_folders import preparation_hook, router_hook
from ops.revival import revive_parked_groups
from spec.errors import SpecificationError
from spec.supervision import refuse_secrets

PROJECT = Path(__file__).absolute().parent

_SAID_WHY = 32
"""The exit code by which Pulumi's language host knows that the program has already told the reason."""


def main() -> None:
    """Declares the deployment of the selected stack."""
    end_quietly_when_interrupted()
    stack, config = pulumi.get_stack(), pulumi.Config()
    try:
        release = release_to_deploy(stack, config.get_object("deployment"), PROJECT)
        refuse_secrets(release, api_key=config.get_secret("apiKey") is not None)
        if release.active and not pulumi.runtime.is_dry_run():
            revive_parked_groups(release, pulumi.log.info)
    except (SpecificationError, OperationError) as error:
        pulumi.log.error(str(error))
        sys.exit(_SAID_WHY)
    if is_told():
        pulumi.log.warn(f"deploys the kept Release {release.hash[:16]}, not what the stack file says")
    secrets = Secrets(
        pulumi.Output.from_input(config.get_secret("apiKey")), pulumi.Output.from_input(config.get_secret("hfToken"))
    )
    deployment = Deployment(release, Hooks(preparation_hook(release), router_hook(release)), secrets)
    pulumi.export("release", release.hash)
    pulumi.export("active", release.active)
    pulumi.export("endpoints", deployment.endpoints)
    if deployment.front is not None:
        pulumi.export("front", deployment.front)


main()
