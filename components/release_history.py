"""What the stack's state says of Releases: the one that was begun, and those that were ready."""

import pulumi
import pulumi_command as command

from components.task import task
from spec.base import canonical_json
from spec.release import Release


class ReleaseHistory(pulumi.ComponentResource):
    """Two commands: one says at once which Release is being deployed, the other keeps it once every group is ready.

    The second gets its own last output, the history so far, and gives it back with this Release in front. So it lives
    in the state and nowhere else, and a failed `up` leaves it as it is. Request and history are encrypted, whatever
    a Release may hold by then. A parked Release is begun and never ready: the history stays as it is.
    """

    def __init__(self, release: Release, ready: list[pulumi.Resource], opts: pulumi.ResourceOptions) -> None:
        """Declares both commands.

        Args:
            release: what is deployed.
            ready: the readiness of every group.
            opts: with the parent.
        """
        super().__init__("gb10-serving:release:ReleaseHistory", "releases", None, opts)
        command.local.Command(
            "release-begun",
            create=f"echo {release.hash}",
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self),
        )
        task(
            "release-history",
            "keep-release",
            {
                "hash": release.hash,
                "release": pulumi.Output.secret(
                    canonical_json(release.model_dump(mode="json")) if release.active else None
                ),
                "kept": release.kept_releases,
            },
            parent=self,
            depends_on=ready,
            secret_answer=True,
            sees_last_answer=True,
        )
        self.register_outputs({})
