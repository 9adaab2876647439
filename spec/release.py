"""A Release: one deployment resolved to plain data, down to every rank's command line, with one hash."""

from typing import Any, Literal

from pydantic import Field

from spec.base import Strict, content_hash
from spec.connection import Connection
from spec.deployment import Memory, PageCache, Readiness, Supervision
from spec.dockerfile import Expected
from spec.kv_cache import KvCachePlan
from spec.memory import MemoryPlan
from spec.model import Probe


class Mount(Strict):
    """A folder of the node that a rank sees."""

    source: str
    target: str
    read_only: bool = True


class PeerPlan(Strict):
    """A rank as its peers find it: node, fabric address and port of its supervisor."""

    rank: int
    node: str
    address: str
    port: int


class RailPlan(Strict):
    """A rail that the rank must find on its node; the device may be left to the address."""

    address: str
    interface: str
    hca: str | None


class FrontPlan(Strict):
    """What the head of a group tells the router of its pool (runtime/rank/front.py).

    Attributes:
        port: where the router asks.
        drain_seconds: how long running requests may hold up a stop.
        probe: a question with a known answer.
        served_name: of the model.
        answer_timeout_seconds: for one answer.
    """

    port: int
    drain_seconds: int
    probe: Probe
    served_name: str
    answer_timeout_seconds: int


class SupervisionPlan(Strict):
    """What the supervisor of a rank is asked beside the engine's command line (runtime/rank/request.py).

    Attributes:
        peers: all ranks of the group, the head first.
        before: commands that must have succeeded before the engine, in this order.
        awaited_accelerators: how many Ray must know of before the engine may start; 0 waits for none.
        fabric_kind, rails: what must be found on the node each time the rank starts.
        sysfs_folder: where the rank sees the node's devices.
        required_bytes: MemAvailable that must be there before.
        floor_percent, backstop_percent: of the memory guard.
        page_cache: when the checkpoint's pages are given back.
        unified_memory: whether accelerators share the host's memory.
        settings: how ranks wait for each other and start again.
        shared_memory_bytes: what /dev/shm must hold.
        front: what a head tells the router; none without one, and for workers.
    """

    peers: tuple[PeerPlan, ...]
    before: tuple[tuple[str, ...], ...] = ()
    awaited_accelerators: int = 0
    fabric_kind: str
    rails: tuple[RailPlan, ...]
    sysfs_folder: str
    required_bytes: int
    floor_percent: float
    backstop_percent: float
    page_cache: PageCache
    unified_memory: bool
    settings: Supervision
    shared_memory_bytes: int
    front: FrontPlan | None = None


class RankPlan(Strict):
    """One rank: everything that its container is made from.

    Attributes:
        rank: 0 is the head.
        node: where it runs.
        container: the container's name, fixed, so that leftovers can be recognised.
        command: argv; the image's own entrypoint is cleared.
        environment: what the image, the fabric, the executor and the stack set.
        mounts: folders of the node.
        devices: device folders of the node.
        capabilities: beside Docker's defaults, in the form `CAP_NAME`.
        open_files, locked_memory_bytes: process limits.
        gpus: whether the container gets the node's accelerators.
        supervision: what the supervisor is asked beside.
    """

    rank: int
    node: str
    container: str
    command: tuple[str, ...]
    environment: dict[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    open_files: int
    locked_memory_bytes: int
    gpus: bool
    supervision: SupervisionPlan

    @property
    def is_head(self) -> bool:
        """Whether this rank answers HTTP."""
        return self.rank == 0


class BasePlan(Strict):
    """Where an image starts: pulled by digest, or sent from the controller.

    Attributes:
        reference: the tag under which nodes keep it; it carries the hash of where it comes from.
        pull: what is pulled, by digest; none for a base that is made here.
        archive: file below the controller's cache folder (`docker save` format) of a base that is made here.
    """

    reference: str
    pull: str | None = None
    archive: str | None = None


class StepPlan(Strict):
    """One step of an image chain; each is a resource, so that a preview names the step that changed.

    Attributes:
        name: position and name.
        identity: hash of the parent's identity and of all that goes into the step.
        parent: identity of the step before, or of the base.
        reference: the tag under which the node that builds keeps it.
        changes: what goes into it, by readable names, each with its hash.
    """

    name: str
    identity: str
    parent: str
    reference: str
    changes: dict[str, str]


class ChainPlan(Strict):
    """The steps between base and image.

    Attributes:
        name: of the folder below patches/.
        identity: of the verified image.
        steps: in order.
        expected: what the verified image must be.
        step_timeout_seconds: how long the build of one step may take.
    """

    name: str
    identity: str
    steps: tuple[StepPlan, ...]
    expected: Expected
    step_timeout_seconds: int


class ImagePlan(Strict):
    """The image of every rank: built, or pulled, on one node and handed on by it.

    Attributes:
        reference: the tag under which nodes know it; it carries the identity of all that it is made from.
        build_on: the node that builds or pulls it.
        base: where it starts.
        chain: what is done to the base; none for an image that runs as it is published.
        kept: how many older images of the same chain stay on every node.
        cache_folder: folder of the node for what the engine compiles.
        version: of the engine.
    """

    reference: str
    build_on: str
    base: BasePlan
    chain: ChainPlan | None
    kept: int
    cache_folder: str
    version: str


class WeightsSource(Strict):
    """Where weights come from.

    Attributes:
        kind: `controller`, `node`, `huggingface` (a download on a node) or `nfs` (a share that all nodes have).
        folder: on the controller a path, relative ones below its cache folder; else on the node; for a download the
            client's cache folder.
        connection, address, switch: of the node; none for the controller and a share.
        python, endpoint: of a download: a program with the client, a mirror.
        export: of a share, `SERVER:/PATH`.
    """

    kind: Literal["controller", "node", "huggingface", "nfs"]
    folder: str
    connection: Connection | None = None
    address: str | None = None
    switch: str | None = None
    python: str | None = None
    endpoint: str | None = None
    export: str | None = None


class WeightsPlan(Strict):
    """The files of a model or of a drafter.

    Attributes:
        name: of its catalogue entry.
        revision: identity of the files by their publisher.
        repository: where they are published; none for what the lab makes.
        manifest: hash of all that a rank sees of them, where the catalogue pins it.
        layout: a flat folder, or a repository's folder in the cache of Hugging Face.
        size_bytes: what the catalogue says of their size.
        requires, required_files: kinds of files, and names, without which the deployment cannot serve.
        source: where they come from.
        folder: where they lie on every node.
        receipt: file on every node that vouches for them.
        target: where they are mounted in a rank.
        path: what the engine is pointed to, `target` or a folder in it.
    """

    name: str
    revision: str
    repository: str | None
    manifest: str | None
    layout: Literal["flat", "huggingface"]
    size_bytes: int | None
    requires: tuple[Literal["config", "tokenizer", "chat_template"], ...]
    required_files: tuple[str, ...]
    source: WeightsSource
    folder: str
    receipt: str
    target: str
    path: str

    @property
    def receipt_request(self) -> dict[str, Any]:
        """What a node must know in order to read its receipt, as plain data."""
        return self.model_dump(mode="json", include={"folder", "receipt", "revision", "requires", "required_files"})


class GroupPlan(Strict):
    """One group of ranks that serves the model together: the unit of replacement.

    Attributes:
        name: of the group inside its stack.
        engine: the kind of server.
        ranks: the head first.
        port, master_port: where the head answers, where the ranks meet.
        serves: whether the head answers HTTP; an offline job does not.
        probes: what it must answer.
        kv_cache, memory: what the planner says; none where it knows no figures.
        required_bytes: MemAvailable that every node must have before its rank starts.
        hash: of all that its ranks are made from; another hash is another generation.
    """

    name: str
    engine: Literal["vllm", "sglang"]
    ranks: tuple[RankPlan, ...]
    port: int
    master_port: int
    serves: bool
    probes: tuple[Probe, ...]
    served_name: str
    kv_cache: KvCachePlan | None
    memory: MemoryPlan | None
    required_bytes: int
    hash: str


class MemberPlan(Strict):
    """A group as the router finds it.

    Attributes:
        group: its name.
        address, port: where its head answers.
        health_port: where its head says whether it takes requests.
    """

    group: str
    address: str
    port: int
    health_port: int


class RouterPlan(Strict):
    """One address for the users of all groups.

    Attributes:
        node: where it runs.
        container: its name.
        port: where users reach it.
        image: the tag of its image; it carries the hash of all that goes into it.
        folder: on its node, with its settings and its socket.
        settings: the text of its settings file.
        members: the groups, in the order of the stack file.
        drain_seconds: how long a head may take to end the requests that it has begun.
    """

    node: str
    container: str
    port: int
    image: str
    folder: str
    settings: str
    members: tuple[MemberPlan, ...]
    drain_seconds: int


class NodePlan(Strict):
    """One node that the deployment uses.

    Attributes:
        connection: how the controller reaches it.
        switch: where it hangs.
        fabric: addresses of the rails in use, by interface name.
        shared_memory_bytes: what its /dev/shm must hold.
    """

    connection: Connection
    switch: str
    fabric: dict[str, str]
    shared_memory_bytes: int


class Finding(Strict):
    """What a rule has to say of this deployment.

    Attributes:
        rule: its id.
        severity: a refusal never gets into a Release.
        text: with file, key, value, rule and way out.
        acknowledged: the reason that the stack file gives for going on.
    """

    rule: str
    severity: Literal["refuse", "warn"]
    text: str
    acknowledged: str | None = None


class Release(Strict):
    """A whole deployment as plain data.

    Attributes:
        stack: the stack it belongs to.
        cluster, model_name: names, for people.
        storage_folder: on every node.
        weights: the model's, then the drafter's.
        nodes: by name, in the order of the cluster: those that run ranks, the one that builds the image, the router's.
        groups: in the order of the stack file.
        active: whether the groups run; a parked deployment is image and weights on its nodes and nothing else.
        kept_releases: how many Releases that were ready the stack's state keeps.
        router: one address for all groups; none where each only has its own.
        findings: warnings of the rules.
    """

    stack: str
    cluster: str
    model_name: str
    storage_folder: str
    image: ImagePlan
    weights: tuple[WeightsPlan, ...] = Field(min_length=1)
    nodes: dict[str, NodePlan]
    groups: tuple[GroupPlan, ...] = Field(min_length=1)
    memory: Memory
    readiness: Readiness
    stop_grace_seconds: int
    kept_releases: int
    active: bool = True
    router: RouterPlan | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def running_groups(self) -> tuple[GroupPlan, ...]:
        """The groups that run: none of a parked deployment."""
        return self.groups if self.active else ()

    @property
    def rank_nodes(self) -> tuple[str, ...]:
        """Names of the nodes that run ranks, in the order of `nodes`."""
        used = {rank.node for group in self.groups for rank in group.ranks}
        return tuple(name for name in self.nodes if name in used)

    @property
    def hash(self) -> str:
        """Identity of the whole deployment, 64 hexadecimal digits."""
        return content_hash(self.model_dump(mode="json"))
