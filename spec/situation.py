"""Everything that one deployment is made of, looked up and typed: what the planner, the renderer and the rules read."""

from dataclasses import dataclass
from functools import cached_property

from spec.catalog import STACK_KEY, Catalog
from spec.chain import Debootstrap, PatchChain
from spec.cluster import Cluster, Hardware, Node
from spec.deployment import DeploymentConfig, DflashChoice
from spec.errors import Problem
from spec.flags import FlagTable
from spec.image import Image, Registry
from spec.model import Model
from spec.router_source import RouterSource
from spec.speculative import DFlash, Mtp
from spec.weights import DRAFTER_FOLDER, MODEL_FOLDER, FromController, WeightsChoice, path_in_container


@dataclass(frozen=True)
class Situation:
    """One deployment with all entries that it names.

    Attributes:
        stack: name of the stack.
        config: what its file says.
        cluster, hardware, image, model: the entries it names.
        chain: the patches of the image; none for one that runs as it is published.
        drafter: the entry of an external drafter.
        flags: the table that the engine's flags are checked against; none for an engine without one.
        router: what the router's image is made of; none without a router.
    """

    stack: str
    config: DeploymentConfig
    cluster: Cluster
    hardware: Hardware
    image: Image
    chain: PatchChain | None
    model: Model
    drafter: Model | None
    flags: FlagTable | None
    router: RouterSource | None = None

    @property
    def file(self) -> str:
        """The stack file as the reader knows it."""
        return f"Pulumi.{self.stack}.yaml"

    @property
    def cluster_file(self) -> str:
        """The cluster's file as the reader knows it."""
        return f"catalog/clusters/{self.config.cluster}.yaml"

    @property
    def image_file(self) -> str:
        """The image's file as the reader knows it."""
        return f"catalog/images/{self.config.image}.yaml"

    @property
    def origin(self) -> Registry | Debootstrap:
        """Where the image starts."""
        origin = self.chain.description.origin if self.chain else self.image.registry
        assert origin is not None
        return origin

    def problem(self, key: str, value: object, rule: str, way_out: str) -> Problem:
        """Returns a problem of the stack file, with the key below the deployment's."""
        return Problem(self.file, f"config/{STACK_KEY}/{key}", value, rule, way_out)

    def nodes(self, group: str) -> tuple[Node, ...]:
        """Returns the nodes of a group, the head first."""
        return tuple(self.cluster.nodes[name] for name in self.config.groups[group])

    @property
    def accelerators(self) -> int:
        """Ranks of the engine on one node: its accelerators, one on the virtual fabric."""
        return max(1, self.hardware.gpus)

    def world_size(self, group: str) -> int:
        """Accelerators of a group."""
        return len(self.config.groups[group]) * self.accelerators

    def tensor_parallel(self, group: str) -> int:
        """Accelerators of one stage of a group."""
        return self.world_size(group) // self.config.engine.pipeline_parallel_size

    def weights_choice(self, name: str) -> WeightsChoice:
        """Returns where the weights of a model or drafter come from."""
        return self.config.weights.get(name, FromController())

    @property
    def model_path(self) -> str:
        """The folder with the model's config.json, as a rank sees it."""
        return path_in_container(self.weights_choice(self.config.model), self.model, MODEL_FOLDER)

    @cached_property
    def speculative(self) -> Mtp | DFlash | None:
        """What drafts tokens, as the engine is told it."""
        choice = self.config.speculative
        if not isinstance(choice, DflashChoice):
            return choice
        assert self.drafter is not None
        return DFlash(
            method="dflash",
            draft_tokens=choice.draft_tokens,
            drafter=path_in_container(self.weights_choice(choice.drafter), self.drafter, DRAFTER_FOLDER),
            attention_backend=choice.attention_backend,
        )

    @property
    def draft_tokens(self) -> int:
        """K of speculative decoding, 0 for none."""
        return self.config.speculative.draft_tokens if self.config.speculative else 0


def look_up(stack: str, config: DeploymentConfig, catalog: Catalog) -> Situation:
    """Looks up every name that a stack file uses.

    Raises:
        SpecificationError: an entry does not exist or is malformed.
    """
    cluster = catalog.cluster(config.cluster)
    image = catalog.image(config.image)
    choice = config.speculative
    return Situation(
        stack=stack,
        config=config,
        cluster=cluster,
        hardware=catalog.hardware(cluster.hardware),
        image=image,
        chain=catalog.chain(image.chain, f"catalog/images/{config.image}.yaml") if image.chain else None,
        model=catalog.model(config.model),
        drafter=catalog.model(choice.drafter) if isinstance(choice, DflashChoice) else None,
        flags=catalog.flag_table(image.flag_table, f"catalog/images/{config.image}.yaml") if image.flag_table else None,
        router=catalog.router("haproxy") if config.router else None,
    )
