"""How the ranks of a group are started: one small pure function a way, all from the same description of a rank."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field, model_validator

from spec.base import Strict
from spec.cluster import Address, Name

Executor = Literal["mp", "ray", "external_launcher", "sglang"]

MENTAT_PORT = 6379
"""Where mentat's daemon on the head's node listens; it is the node's, not the group's (facts/seed-repos.md 5.3)."""

RAY_OBJECT_STORE_BYTES = 4 << 30
"""Ray's default, 30 % of memory, comes out of the weights' pool on unified memory (facts/seed-repos.md 6, 47)."""


class Launch(Strict):
    """One rank of a group, as every executor needs it. A rank is one container: all accelerators of one node.

    Attributes:
        program: argv that starts the engine, before its own arguments: the image's entrypoint; for `external_launcher`
            the Python and the path of the offline job, which takes vLLM's engine flags.
        model: folder of the weights in the container.
        served_name: under which clients ask for it.
        group: names the group among all groups on these nodes.
        host: where the head listens for HTTP.
        port: for HTTP.
        master_port: where the ranks meet.
        addresses: fabric address of each node, the head first.
        rank: this node's place in `addresses`.
        accelerators: of each node.
        pipeline_parallel_size: stages; what is left of the accelerators is tensor parallel.
        engine_arguments: what the deployment chose, as argv words.
    """

    program: tuple[str, ...] = Field(min_length=1)
    model: str
    served_name: str
    group: Name
    host: str = "0.0.0.0"
    port: int = Field(ge=1, le=65535)
    master_port: int = Field(ge=1, le=65535)
    addresses: tuple[Address, ...] = Field(min_length=1)
    rank: int = Field(ge=0)
    accelerators: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    engine_arguments: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _rank_and_stages_fit(self) -> "Launch":
        if self.rank >= len(self.addresses):
            raise ValueError(f"rank {self.rank} has no address: there are {len(self.addresses)}, counted from 0")
        if self.world_size % self.pipeline_parallel_size:
            raise ValueError(
                f"{self.pipeline_parallel_size} pipeline stages do not divide {self.world_size} accelerators"
            )
        return self

    @property
    def world_size(self) -> int:
        """All accelerators of the group."""
        return len(self.addresses) * self.accelerators

    @property
    def tensor_parallel_size(self) -> int:
        """Accelerators of each stage."""
        return self.world_size // self.pipeline_parallel_size

    @property
    def is_head(self) -> bool:
        """Whether this rank answers HTTP."""
        return self.rank == 0


class Start(Strict):
    """How a rank is started.

    Attributes:
        argv: the process that the supervisor watches.
        environment: beside the fabric's and the image's own.
        before: commands that must have succeeded before, in this order.
        awaited_accelerators: how many Ray must know of before `argv` may start; 0 waits for none. vLLM started earlier
            fails in NCCL (facts/seed-repos.md 1.6).
    """

    argv: tuple[str, ...]
    environment: dict[str, str] = {}
    before: tuple[tuple[str, ...], ...] = ()
    awaited_accelerators: int = 0


def start(executor: Executor, launch: Launch) -> Start:
    """Returns how the rank is started by this executor.

    Raises:
        ValueError: the executor cannot start such a rank.
    """
    return _EXECUTORS[executor](launch)


def start_mp(launch: Launch) -> Start:
    """Native multi-node vLLM: every rank runs the same command with its own number (seed 000).

    Every rank but the head is headless; without that it tries to be an API server, too (facts/vllm-patches.md 4).
    """
    if len(launch.addresses) == 1:
        return Start(argv=_serve(launch, "mp", ()))
    meeting = (
        *("--nnodes", str(len(launch.addresses))),
        *("--node-rank", str(launch.rank)),
        *("--master-addr", launch.addresses[0]),
        *("--master-port", str(launch.master_port)),
    )
    return Start(argv=_serve(launch, "mp", (*meeting, *(() if launch.is_head else ("--headless",)))))


def start_ray(launch: Launch) -> Start:
    """Ray's commands served by mentat: workers join and wait, the head waits for all and runs vLLM (seed 002).

    The head names the daemon although it is its own: mentat refuses a bare `--head` while RAY_ADDRESS is set.
    """
    daemon = f"{launch.addresses[0]}:{MENTAT_PORT}"
    environment = _ray_environment(launch, daemon)
    object_store = f"--object-store-memory={RAY_OBJECT_STORE_BYTES}"
    if not launch.is_head:
        return Start(argv=("ray", "start", "--block", f"--address={daemon}", object_store), environment=environment)
    join = (
        *("ray", "start", "--head", f"--address={daemon}"),
        *(f"--node-ip-address={launch.addresses[0]}", f"--port={MENTAT_PORT}", object_store),
    )
    return Start(
        argv=_serve(launch, "ray", ()),
        environment=environment,
        before=(join,),
        awaited_accelerators=launch.world_size,
    )


def start_external_launcher(launch: Launch) -> Start:
    """An offline job without an API, whose ranks all ask the same (seed 003); torch.distributed brings them together.

    vLLM's MessageQueue needs no patch here, as in the source, once VLLM_HOST_IP is the fabric address
    (facts/engine.md section 5).

    Raises:
        ValueError: a node has more than one accelerator, each of which would need a process of its own.
    """
    if launch.accelerators != 1:
        raise ValueError(
            f"external_launcher runs one process a rank, and a node has {launch.accelerators} accelerators: use mp"
        )
    return Start(
        argv=(*launch.program, launch.model, *_parallel(launch, "external_launcher"), *launch.engine_arguments),
        environment={
            "RANK": str(launch.rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(launch.world_size),
            "MASTER_ADDR": launch.addresses[0],
            "MASTER_PORT": str(launch.master_port),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        },
    )


def start_sglang(launch: Launch) -> Start:
    """SGLang: every node runs the same command with its own number (the lane that seed 000 measured for comparison).

    SGLANG_HOST_IP is to it what VLLM_HOST_IP is to vLLM, and that lane's launcher sets it on each node.
    """
    return Start(
        argv=(
            *launch.program,
            *("--model-path", launch.model),
            *_service(launch),
            *("--tp-size", str(launch.tensor_parallel_size)),
            *("--pp-size", str(launch.pipeline_parallel_size)),
            *("--nnodes", str(len(launch.addresses))),
            *("--node-rank", str(launch.rank)),
            *("--dist-init-addr", f"{launch.addresses[0]}:{launch.master_port}"),
            *launch.engine_arguments,
        ),
        environment={"SGLANG_HOST_IP": launch.addresses[launch.rank]},
    )


_EXECUTORS: Mapping[Executor, Callable[[Launch], Start]] = MappingProxyType(
    {
        "mp": start_mp,
        "ray": start_ray,
        "external_launcher": start_external_launcher,
        "sglang": start_sglang,
    }
)


SGLANG_SYSTEM_FLAGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("--model-path", "--model", "--served-model-name", "--host", "--port"),
                *("--tp-size", "--tensor-parallel-size", "--tp", "--pp-size", "--pipeline-parallel-size"),
                *("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"),
            ),
            ("follows from the plan of the group", "remove the flag"),
        ),
        "--api-key": ("would put a key where `ps` and `docker inspect` show it", "give the key as a secret"),
    }
)
"""SGLang flags that a person may not set: why, and what to do instead (for `spec.flags.check_without_table`)."""


def _serve(launch: Launch, backend: str, meeting: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *launch.program,
        *("serve", launch.model),
        *_service(launch),
        *_parallel(launch, backend),
        *meeting,
        *launch.engine_arguments,
    )


def _service(launch: Launch) -> tuple[str, ...]:
    return (
        *("--served-model-name", launch.served_name),
        *("--host", launch.host),
        *("--port", str(launch.port)),
    )


def _parallel(launch: Launch, backend: str) -> tuple[str, ...]:
    return (
        *("--tensor-parallel-size", str(launch.tensor_parallel_size)),
        *("--pipeline-parallel-size", str(launch.pipeline_parallel_size)),
        *("--distributed-executor-backend", backend),
    )


def _ray_environment(launch: Launch, daemon: str) -> dict[str, str]:
    """Returns what Ray, mentat and vLLM's Ray executor read on every rank.

    The container's name makes a rank's identity at mentat unique: with host networking all containers of a node share
    the host's name. The executor is pinned because mentat does not serve the older one; vLLM 0.33 has no other.
    """
    return {
        "RAY_ADDRESS": daemon,
        "MENTAT_GROUP": launch.group,
        "CONTAINER_NAME": f"{launch.group}-rank{launch.rank}",
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "1",
        # Ray's monitor ends ranks at 95 % of a memory that holds the weights themselves (seed 002's entrypoint).
        "RAY_memory_monitor_refresh_ms": "0",
    }
