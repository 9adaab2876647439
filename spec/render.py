"""Renders every rank of a group: command line, environment, mounts, devices and limits."""

from spec.base import content_hash
from spec.cluster import Node
from spec.executors import Launch, Start, start
from spec.fabric import fabric_environment
from spec.release import GroupPlan, ImagePlan, Mount, RankPlan, WeightsPlan
from spec.rules import Estimate
from spec.situation import Situation
from spec.speculative import Mtp, sglang_speculative_arguments, speculative_arguments
from spec.supervision import supervision_of, sysfs_mounts
from spec.weights import OFFLINE

_SGLANG_NAMES = {"--max-model-len": "--context-length"}
"""The one argument that every stack has and that SGLang calls otherwise; the rules see to the rest."""


def render_group(
    situation: Situation,
    name: str,
    image: ImagePlan,
    weights: tuple[WeightsPlan, ...],
    estimate: Estimate,
    required_bytes: int,
) -> GroupPlan:
    """Returns the plan of the group `name`, with the hash of all that its ranks are made from."""
    ranks = tuple(
        _render_rank(situation, name, rank, image, weights, required_bytes)
        for rank in range(len(situation.nodes(name)))
    )
    return GroupPlan(
        name=name,
        engine=situation.image.engine,
        ranks=ranks,
        port=situation.config.port,
        master_port=situation.config.master_port,
        serves=situation.config.executor != "external_launcher",
        probes=situation.model.probes,
        served_name=str(situation.model.served_name),
        kv_cache=estimate.kv_cache,
        memory=estimate.memory,
        required_bytes=required_bytes,
        hash=content_hash(
            {
                "image": image.reference,
                "weights": [[plan.revision, plan.manifest] for plan in weights],
                "ranks": [rank.model_dump(mode="json") for rank in ranks],
            }
        ),
    )


def engine_arguments(situation: Situation) -> tuple[str, ...]:
    """Returns the arguments that do not follow from ranks, addresses and ports."""
    arguments, speculative = situation.config.engine.arguments(), situation.speculative
    if situation.image.engine == "sglang":
        drafting = sglang_speculative_arguments(speculative if isinstance(speculative, Mtp) else None)
        return (*(_SGLANG_NAMES.get(word, word) for word in arguments), *drafting)
    return (*arguments, *speculative_arguments(speculative))


def _render_rank(
    situation: Situation,
    group: str,
    rank: int,
    image: ImagePlan,
    weights: tuple[WeightsPlan, ...],
    required_bytes: int,
) -> RankPlan:
    node = situation.nodes(group)[rank]
    started = start(situation.config.executor, launch_of(situation, group, rank))
    limits, roce = situation.cluster.limits, situation.config.fabric.kind == "roce"
    return RankPlan(
        rank=rank,
        node=situation.config.groups[group][rank],
        container=f"gb10-{situation.stack}-{group}-rank{rank}",
        command=started.argv,
        environment=_environment(situation, node, started),
        mounts=_mounts(situation, image, weights),
        devices=("/dev/infiniband",) if roce else (),
        capabilities=("CAP_IPC_LOCK",) if roce else (),
        open_files=limits.open_files,
        locked_memory_bytes=limits.locked_memory_bytes,
        gpus=situation.hardware.gpus > 0,
        supervision=supervision_of(situation, group, rank, started, required_bytes),
    )


def launch_of(situation: Situation, group: str, rank: int) -> Launch:
    """Returns how the executor sees one rank of a group."""
    config = situation.config
    rail = config.fabric.rails[0]
    return Launch(
        program=("python3", config.job) if config.job else situation.image.entrypoint,
        model=situation.model_path,
        served_name=str(situation.model.served_name),
        group=f"{situation.stack}-{group}",
        port=config.port,
        master_port=config.master_port,
        addresses=tuple(node.rails[rail].address for node in situation.nodes(group)),
        rank=rank,
        accelerators=situation.accelerators,
        pipeline_parallel_size=config.engine.pipeline_parallel_size,
        engine_arguments=engine_arguments(situation),
    )


def _environment(situation: Situation, node: Node, started: Start) -> dict[str, str]:
    """Later ones win: no internet, what the image needs, what the stack adds, what executor and fabric demand."""
    return {
        **OFFLINE,
        **situation.image.environment,
        **situation.config.environment,
        **started.environment,
        **fabric_environment(node, situation.config.fabric),
    }


def _mounts(situation: Situation, image: ImagePlan, weights: tuple[WeightsPlan, ...]) -> tuple[Mount, ...]:
    cache = situation.image.cache_folder
    return (
        *(Mount(source=mount.source, target=mount.target) for mount in situation.image.mounts),
        *(Mount(source=plan.folder, target=plan.target) for plan in weights),
        *sysfs_mounts(situation),
        *((Mount(source=image.cache_folder, target=cache, read_only=False),) if cache else ()),
    )
