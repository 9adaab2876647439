"""What the supervisor of each rank is asked to do (runtime/rank): peers, limits, patience, guard."""

from typing import Any

from spec.base import canonical_json, content_hash
from spec.errors import Problem, SpecificationError
from spec.executors import Start
from spec.release import GroupPlan, Mount, PeerPlan, RailPlan, RankPlan, Release, SupervisionPlan
from spec.router import front_plan
from spec.situation import Situation

CODE_FOLDER = "/gb10-serving/code"
RECORD_FOLDER = "/gb10-serving/record"
SECRETS_FOLDER = "/gb10-serving/secrets"
"""Where a rank's container sees the runtime, what it remembers and its secrets."""

SYSFS_FOLDER = "/gb10-serving/sys"
"""Where a rank on the virtual fabric sees devices that the kernel has not."""

_PYTHON = ("python3", "-E", "-s", "-B", f"{CODE_FOLDER}/runtime/rank/__main__.py")
"""Nothing of the engine's PYTHON variables and no user's packages; nothing is written beside the read-only code."""

_LONGEST_STOP_SECONDS = 600
"""Docker kills the container when the stack's grace is over; the request does not hold it, so that another grace is no
other generation."""


def supervision_of(situation: Situation, group: str, rank: int, started: Start, required_bytes: int) -> SupervisionPlan:
    """Returns what a rank's supervisor is asked beside the engine's command line."""
    config = situation.config
    names, nodes = config.groups[group], situation.nodes(group)
    first = config.fabric.rails[0]
    rails = [nodes[rank].rails[position] for position in config.fabric.rails]
    return SupervisionPlan(
        peers=tuple(
            PeerPlan(rank=number, node=name, address=node.rails[first].address, port=config.supervision.port)
            for number, (name, node) in enumerate(zip(names, nodes, strict=True))
        ),
        before=started.before,
        awaited_accelerators=started.awaited_accelerators,
        fabric_kind=config.fabric.kind,
        rails=tuple(RailPlan(address=rail.address, interface=rail.interface, hca=rail.hca) for rail in rails),
        sysfs_folder=SYSFS_FOLDER if _made_up_sysfs(situation) else "/sys",
        required_bytes=required_bytes,
        floor_percent=config.memory.floor_percent,
        backstop_percent=min(config.memory.backstop_percent, config.memory.floor_percent),
        page_cache=config.memory.page_cache,
        unified_memory=situation.hardware.unified,
        settings=config.supervision,
        shared_memory_bytes=situation.cluster.limits.shared_memory_bytes,
        front=front_plan(situation, rank),
    )


def sysfs_mounts(situation: Situation) -> tuple[Mount, ...]:
    """Returns the folder that stands for /sys on the virtual fabric, where the cluster has one."""
    folder = _made_up_sysfs(situation)
    return (Mount(source=folder, target=SYSFS_FOLDER),) if folder else ()


def fabric_request(rank: RankPlan) -> dict[str, Any]:
    """Returns what must be found of a rank's fabric, as runtime/fabric/request.py reads it, but for the environment."""
    plan = rank.supervision
    return {"kind": plan.fabric_kind, "rails": [rail.model_dump(mode="json") for rail in plan.rails]}


def sysfs_folder_on_node(rank: RankPlan) -> str:
    """Returns where the node itself keeps what its rank sees as the folder of its devices."""
    return next((mount.source for mount in rank.mounts if mount.target == SYSFS_FOLDER), "/sys")


def supervisor_command(release: Release, group: GroupPlan, rank: RankPlan) -> tuple[str, ...]:
    """Returns the argv of a rank's container: the supervisor with its request."""
    return (*_PYTHON, canonical_json(supervisor_request(release, group, rank)))


def supervisor_mounts(release: Release, rank: RankPlan) -> tuple[Mount, ...]:
    """Returns the folders that a supervisor needs of its node, beside those of the engine.

    Their names stay the same whatever the runtime is: a rank keeps the runtime that was there when its container was
    made, and another one on the controller is no change to a group that runs (docs/decisions.md).
    """
    folder = rank_folder(release, rank)
    return (
        Mount(source=f"{folder}/code", target=CODE_FOLDER),
        Mount(source=f"{folder}/record", target=RECORD_FOLDER, read_only=False),
        Mount(source=f"{folder}/secrets", target=SECRETS_FOLDER),
    )


def refuse_secrets(release: Release, api_key: bool) -> None:
    """Refuses a secret that an engine can only take where everybody on its node sees it.

    Args:
        release: the deployment.
        api_key: whether its stack has one.

    Raises:
        SpecificationError: the engine takes its key from argv alone.
    """
    if api_key and any(group.engine == "sglang" for group in release.groups):
        raise SpecificationError(
            Problem(
                f"Pulumi.{release.stack}.yaml",
                "config/gb10-serving:apiKey",
                "[secret]",
                "SGLang takes a key as --api-key alone, where `ps` and `docker inspect` show it",
                "`pulumi config rm apiKey`, and put a proxy that asks for the key before the endpoint",
            )
        )


def rank_folder(release: Release, rank: RankPlan) -> str:
    """Returns the folder on its node that belongs to a rank."""
    return f"{release.storage_folder}/ranks/{rank.container}"


def supervisor_request(release: Release, group: GroupPlan, rank: RankPlan) -> dict[str, Any]:
    """Returns the request as runtime/rank/request.py reads it."""
    plan, settings = rank.supervision, rank.supervision.settings
    return {
        "stack": release.stack,
        "group": group.name,
        "generation": group.hash,
        "rank": rank.rank,
        "peers": [peer.model_dump(mode="json") for peer in plan.peers],
        "argv": list(rank.command),
        "before": [list(step) for step in plan.before],
        "awaited_accelerators": plan.awaited_accelerators,
        "shared_arguments": _shared_arguments(group),
        "environment": rank.environment,
        "fabric": fabric_request(rank),
        "sysfs_folder": plan.sysfs_folder,
        "serves": group.serves,
        "http_port": group.port,
        "required_bytes": plan.required_bytes,
        "accelerator_memory": rank.gpus and not plan.unified_memory,
        "guard": {"floor_percent": plan.floor_percent, "backstop_percent": plan.backstop_percent},
        "page_cache": {**plan.page_cache.model_dump(mode="json"), "folders": [one.target for one in release.weights]},
        "patience": {
            "fabric": settings.fabric_seconds,
            "memory": settings.memory_seconds,
            "gather": settings.gather_seconds,
            "start": settings.start_seconds,
            "stop": _LONGEST_STOP_SECONDS,
            "silence_while_starting": settings.silence_while_starting_seconds,
            "silence_while_serving": settings.silence_seconds,
        },
        "restarts": {"most": settings.restarts, "window_seconds": settings.restart_window_seconds},
        "limits": {
            "open_files": rank.open_files,
            "locked_memory_bytes": rank.locked_memory_bytes,
            "shared_memory_bytes": plan.shared_memory_bytes,
        },
        "record_folder": RECORD_FOLDER,
        "secrets_folder": SECRETS_FOLDER,
        "front": plan.front.model_dump(mode="json") if plan.front else None,
    }


def _made_up_sysfs(situation: Situation) -> str | None:
    return situation.cluster.virtual_fabric.sysfs_folder if situation.cluster.virtual_fabric else None


def _shared_arguments(group: GroupPlan) -> str:
    """Returns the hash of the words that all ranks are started with, whatever their order."""
    words = [set(rank.command) for rank in group.ranks]
    return content_hash(sorted(set.intersection(*words)))
