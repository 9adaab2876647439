"""A Release: one deployment resolved to plain data, down to every rank's command line, with one hash."""

from pydantic import Field

from spec.base import Strict, content_hash
from spec.connection import Connection
from spec.deployment import Memory, Readiness
from spec.model import Probe


class Mount(Strict):
    """A folder of the node that a rank sees, always read-only."""

    source: str
    target: str


class RankPlan(Strict):
    """One rank: everything that its container is made from.

    Attributes:
        rank: 0 is the head.
        node: where it runs.
        container: the container's name, fixed, so that leftovers can be recognised.
        command: argv after the image's own entrypoint was cleared.
        environment: complete; nothing is left to what an image may bake in.
        open_files, locked_memory_bytes: process limits.
        gpus: whether the container gets the node's accelerators.
    """

    rank: int
    node: str
    container: str
    command: tuple[str, ...]
    environment: dict[str, str]
    mounts: tuple[Mount, ...]
    open_files: int
    locked_memory_bytes: int
    gpus: bool

    @property
    def is_head(self) -> bool:
        """Whether this rank answers HTTP."""
        return self.rank == 0


class ImagePlan(Strict):
    """The image of every rank.

    Attributes:
        reference: the tag under which nodes know it; it carries the identity of its recipe.
        archive: file below the controller's cache folder that holds it (`docker save` format).
    """

    reference: str
    archive: str


class WeightsPlan(Strict):
    """The files of the model.

    Attributes:
        revision: identity of the files.
        source: folder below the controller's cache folder.
        folder: where they lie on every node.
    """

    revision: str
    source: str
    folder: str


class GroupPlan(Strict):
    """One group of ranks that serves the model together: the unit of replacement.

    Attributes:
        name: of the group inside its stack.
        ranks: the head first.
        address: rail address where the ranks meet.
        port, master_port: where the head answers, where the ranks meet.
        hash: of all that its ranks are made from; another hash is another generation.
    """

    name: str
    ranks: tuple[RankPlan, ...]
    address: str
    port: int
    master_port: int
    probes: tuple[Probe, ...]
    served_name: str
    hash: str


class NodePlan(Strict):
    """One node that the deployment uses.

    Attributes:
        connection: how the controller reaches it.
        fabric: its rail addresses by interface name.
        shared_memory_bytes: what its /dev/shm must hold.
    """

    connection: Connection
    fabric: dict[str, str]
    shared_memory_bytes: int


class Release(Strict):
    """A whole deployment as plain data.

    Attributes:
        stack: the stack it belongs to.
        cluster, model_name: names, for people.
        storage_folder: on every node.
        nodes: by name, in the order of the cluster.
        groups: in the order of the stack file.
    """

    stack: str
    cluster: str
    model_name: str
    storage_folder: str
    image: ImagePlan
    weights: WeightsPlan
    nodes: dict[str, NodePlan]
    groups: tuple[GroupPlan, ...] = Field(min_length=1)
    memory: Memory
    readiness: Readiness
    stop_grace_seconds: int

    @property
    def hash(self) -> str:
        """Identity of the whole deployment, 64 hexadecimal digits."""
        return content_hash(self.model_dump(mode="json"))
