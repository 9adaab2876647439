"""The router before the groups of a pool: image, settings, container, and the proof that it sees its members."""

import pulumi
import pulumi_command as command
import pulumi_docker as docker

from components.hooks import Hooks
from components.node import Node
from components.task import answer_of, task
from spec.asking import router_ready_request, router_request
from spec.release import Release, RouterPlan
from spec.router import FOLDER, PROGRAM, SETTINGS_FILE


class Router(pulumi.ComponentResource):
    """One address for the users of all groups.

    Its settings are changed in place, without closing a connection; only another image replaces the container.

    Attributes:
        settings: done once the port is the router's and it takes its settings; before that no group is touched.
    """

    def __init__(
        self,
        release: Release,
        plan: RouterPlan,
        node: Node,
        hooks: Hooks,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Declares the router.

        Args:
            release: the whole deployment.
            plan: the router.
            node: where it runs.
            hooks: what is done before the container is created.
            opts: with the parent.
        """
        super().__init__("gb10-serving:router:Router", "router", None, opts)
        self._release, self._plan, self._node = release, plan, node
        image = self._image()
        self.settings = self._settings(image)
        self._router = self._container(image, hooks)
        self.register_outputs({})

    def proven_by(self, groups: list[pulumi.Resource]) -> pulumi.Output[str]:
        """Declares the proof that it sends requests to every group; another container has to prove it again.

        Args:
            groups: what says that a group answered right.

        Returns:
            Where users reach it.
        """
        ready = task(
            "router-ready",
            "router-ready",
            {**self._node.request, **router_ready_request(self._release, self._plan)},
            parent=self,
            depends_on=[self._router, self.settings, *groups],
            triggers=[self._router.id],
        )
        address, port = self._node.plan.connection.address, self._plan.port
        return ready.stdout.apply(lambda _: f"http://{address}:{port}/v1")

    def _image(self) -> command.local.Command:
        return task(
            "router-image",
            "router-image",
            {**self._node.request, "image": self._plan.image},
            parent=self,
            depends_on=[self._node.reached],
        )

    def _settings(self, image: command.local.Command) -> command.local.Command:
        """A router that runs takes other settings over; what it leaves on its node goes with them."""
        return task(
            "router-settings",
            "router-settings",
            {**self._node.request, **router_request(self._release, self._plan)},
            parent=self,
            depends_on=[image],
            delete_verb="remove-router",
        )

    def _container(self, image: command.local.Command, hooks: Hooks) -> docker.Container:
        plan = self._plan
        return docker.Container(
            f"router-{self._node.name}",
            name=plan.container,
            image=answer_of(image)["reference"],
            entrypoints=[PROGRAM],
            command=["-W", "-db", "-f", f"{FOLDER}/{SETTINGS_FILE}"],
            labels=[docker.ContainerLabelArgs(label="gb10-serving.stack", value=self._release.stack)],
            mounts=[docker.ContainerMountArgs(type="bind", source=plan.folder, target=FOLDER)],
            network_mode="host",
            restart="unless-stopped",
            must_run=True,
            wait=False,
            log_driver="json-file",
            log_opts={"max-size": "10m", "max-file": "3"},
            destroy_grace_seconds=self._release.stop_grace_seconds,
            opts=pulumi.ResourceOptions(
                parent=self,
                provider=self._node.docker,
                depends_on=[self.settings],
                delete_before_replace=True,
                hooks=pulumi.ResourceHookBinding(before_create=[hooks.before_router_create]),
            ),
        )
