"""What one stack file says: the names of catalogue entries and what this deployment chooses."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from spec.base import Strict
from spec.cluster import Name
from spec.engine import Engine
from spec.executors import Executor
from spec.fabric import Fabric
from spec.quantity import Bytes
from spec.speculative import Mtp
from spec.weights import WeightsChoice


class DflashChoice(Strict):
    """Speculative decoding by a drafter of the catalogue.

    Attributes:
        draft_tokens: K.
        drafter: name of its entry in catalog/models.
        attention_backend: of the drafter; none leaves it to the engine.
    """

    method: Literal["dflash"]
    draft_tokens: int = Field(gt=0)
    drafter: Name
    attention_backend: str | None = Field(default=None, pattern=r"^[A-Z0-9_]+$")


class Readiness(Strict):
    """How long a group may take to answer right.

    Attributes:
        start_timeout_seconds: from the start of the head to the first right answer.
        answer_timeout_seconds: for one answer.
    """

    start_timeout_seconds: int = Field(default=3600, gt=0)
    answer_timeout_seconds: int = Field(default=120, gt=0)


class PageCache(Strict):
    """When the pages of the checkpoint are given back while an engine starts: they stand in the way of its weights.

    The sources drop all caches as root; a rank gives back those of its checkpoint alone (`posix_fadvise`), which needs
    no right on the host and takes nothing from anybody else (facts/seed-repos.md section 4).

    Attributes:
        release: `never`; `above-threshold`, which seed 000 used and which its recipe later found too little; `always`,
            each interval, which the recipe came to.
        threshold_bytes: size of the node's page cache, for `above-threshold`.
        interval_seconds: between two looks.
    """

    release: Literal["never", "above-threshold", "always"] = "always"
    threshold_bytes: Bytes = 40 << 30
    interval_seconds: float = Field(default=60, ge=1, le=3600)


class Memory(Strict):
    """What must be free on a node before a rank starts, and stay free while it serves.

    Attributes:
        floor_percent: share of MemAvailable below which a rank is stopped to save the host; 12 is seed 000's.
        backstop_percent: a rank is stopped, too, when the trend leads below this share before the next look.
        page_cache: when the checkpoint's pages are given back.
        required_bytes: MemAvailable that preflight asks for, what this group's old rank holds counted as free; none
            takes what the memory plan says.
    """

    floor_percent: float = Field(default=12, ge=0.5, le=95)
    backstop_percent: float = Field(default=2, ge=0.5, le=95)
    page_cache: PageCache = PageCache()
    required_bytes: Bytes | None = None


class Supervision(Strict):
    """How the supervisors of a group (runtime/rank) wait for each other and start again.

    Attributes:
        port: of the status endpoint on each rank's fabric address.
        fabric_seconds: for a link that comes up late, as after a reboot.
        memory_seconds: for memory that lags behind an engine that has ended.
        gather_seconds: for the other ranks; after that somebody has to look.
        start_seconds: for an engine to serve; it is ended after that.
        silence_seconds: a peer that has not answered for so long ends the group. Its collectives have been hanging for
            as long, and a node that is off says nothing either.
        silence_while_starting_seconds: the same while the engine loads, when nodes are busy and nobody waits.
        restarts, restart_window_seconds: how often a group that has served starts again by itself.
    """

    port: int = Field(default=7717, ge=1024, le=65535)
    fabric_seconds: float = Field(default=900, gt=0)
    memory_seconds: float = Field(default=300, gt=0)
    gather_seconds: float = Field(default=3600, gt=0)
    start_seconds: float = Field(default=3600, gt=0)
    silence_seconds: float = Field(default=3.5, ge=2, le=600)
    silence_while_starting_seconds: float = Field(default=15, ge=2, le=600)
    restarts: int = Field(default=3, ge=0, le=100)
    restart_window_seconds: float = Field(default=1800, gt=0)


class ImageBuild(Strict):
    """How the image of a chain is built and kept.

    Attributes:
        kept: how many older images of the same chain stay on every node, to go back to without a build.
        step_timeout_seconds: how long the build of one step may take.
    """

    kept: int = Field(default=2, ge=0, le=50)
    step_timeout_seconds: int = Field(default=3600, gt=0)


class Router(Strict):
    """One address for the users of all groups.

    Attributes:
        node: of the cluster, where the router runs; it may run a rank, too.
        port: where users reach it.
        health_port: where heads tell it whether to send them requests.
        drain_seconds: how long a head that is asked to stop may take to end the requests that it has begun.
        answer_seconds: how long a member may be silent in the middle of an answer.
    """

    node: Name
    port: int = Field(default=8080, ge=1024, le=65535)
    health_port: int = Field(default=7718, ge=1024, le=65535)
    drain_seconds: int = Field(default=120, ge=5, le=500)
    answer_seconds: int = Field(default=3600, gt=0)


class DeploymentConfig(Strict):
    """The key `gb10-serving:deployment` of a stack file.

    Attributes:
        cluster, image, model: names of catalogue entries.
        groups: nodes of each group by its name, rank 0 (the head) first; every group serves the model on its own.
        fabric: how the ranks of a group talk to each other.
        executor: how ranks are started.
        engine: the engine's arguments.
        speculative: who drafts tokens; nobody if absent.
        weights: where the files of the model or the drafter come from, by its name; the controller if absent.
        memory: what must be free on a node.
        supervision: how ranks wait for each other and start again.
        image_build: how the image of a chain is built and kept.
        across_switches: a group may lie on both sides of a link between switches.
        environment: further variables of the engine, beside the image's.
        router: one address for the users of all groups; each group only has its own if absent.
        job: for the executor external_launcher: the program that every rank runs, a path in the container.
        acknowledged: warnings that were read and accepted: the reason, by the rule's id.
        port: where the head of a group answers HTTP.
        master_port: where the ranks of a group meet.
        stop_grace_seconds: how long a rank may take to end before it is killed.
        active: whether ranks run; a parked deployment keeps image and weights on its nodes and holds none of them.
        kept_releases: how many Releases that were ready the stack's state keeps, to go back to.
    """

    cluster: Name
    image: Name
    model: Name
    groups: dict[Name, tuple[Name, ...]] = Field(min_length=1)
    fabric: Fabric
    executor: Executor = "mp"
    engine: Engine
    speculative: Annotated[Mtp | DflashChoice, Field(discriminator="method")] | None = None
    weights: dict[Name, WeightsChoice] = {}
    memory: Memory = Memory()
    readiness: Readiness = Readiness()
    supervision: Supervision = Supervision()
    image_build: ImageBuild = ImageBuild()
    router: Router | None = None
    across_switches: bool = False
    environment: dict[str, str] = {}
    job: str | None = Field(default=None, pattern=r"^/[A-Za-z0-9/_.-]+$")
    acknowledged: dict[Name, str] = {}
    port: int = Field(default=8000, ge=1024, le=65535)
    master_port: int = Field(default=29500, ge=1024, le=65535)
    stop_grace_seconds: int = Field(default=30, ge=0, le=600)
    active: bool = True
    kept_releases: int = Field(default=10, ge=1, le=100)

    @field_validator("groups")
    @classmethod
    def _each_node_is_used_once(cls, groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        seen: dict[str, str] = {}
        for group, nodes in groups.items():
            if not nodes:
                raise ValueError(f"group {group} has no node: name at least one, the head first")
            for node in nodes:
                if node in seen:
                    raise ValueError(f"node {node} is in {seen[node]} and again in {group}: a node runs one rank")
                seen[node] = group
        return groups
