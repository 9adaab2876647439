"""Tells where a value of a deployment came from: the one order of precedence, made visible.

For a rank's variables, later ones win: image, stack file, executor, fabric. For flags, the stack file chooses and the
plan of the group adds what follows from ranks and addresses; nothing else has a say.
"""

from dataclasses import dataclass

from spec.catalog import STACK_KEY
from spec.executors import start
from spec.fabric import fabric_environment
from spec.nccl import VARIABLES
from spec.release import RankPlan, Release
from spec.render import launch_of
from spec.situation import Situation
from spec.weights import OFFLINE


@dataclass(frozen=True)
class Origin:
    """One value with its place.

    Attributes:
        rank: whose value it is, such as `main rank 0 on lab-1`; empty for a key of the stack file.
        value: as it stands in the command line, the environment or the file.
        place: the file and key that decided, or the part of the plan.
        why: the reason, where one is on record.
        instead_of: what stood in places that had less to say.
    """

    rank: str
    value: str
    place: str
    why: str = ""
    instead_of: tuple[str, ...] = ()


def origins(situation: Situation, release: Release, key: str) -> list[Origin]:
    """Returns where `key` came from: a flag (`--block-size`), a variable (`NCCL_IB_HCA`), or a key of the stack file.

    Nothing is returned for a key that nobody sets.
    """
    if key.startswith("--"):
        return [origin for rank, name in _ranks(release) for origin in _flag_origins(situation, rank, name, key)]
    if key.isupper():
        return [origin for rank, name in _ranks(release) for origin in _variable_origins(situation, rank, name, key)]
    return _key_origins(situation, key)


def _ranks(release: Release) -> list[tuple[RankPlan, str]]:
    return [(rank, f"{group.name} rank {rank.rank} on {rank.node}") for group in release.groups for rank in group.ranks]


def _flag_origins(situation: Situation, rank: RankPlan, name: str, flag: str) -> list[Origin]:
    if flag not in rank.command:
        return []
    following = rank.command[rank.command.index(flag) + 1 :][:1]
    value = " ".join(word for word in following if not word.startswith("--")) or "(set)"
    field = flag.removeprefix("--").replace("-", "_")
    engine = situation.config.engine
    prefix = f"{situation.file}: config/{STACK_KEY}"
    if field in engine.other:
        return [Origin(name, value, f"{prefix}/engine/other/{field}")]
    if field.removeprefix("no_") in type(engine).model_fields:
        return [Origin(name, value, f"{prefix}/engine/{field.removeprefix('no_')}")]
    if field == "speculative_config":
        return [Origin(name, value, f"{prefix}/speculative")]
    return [Origin(name, value, "the plan of the group", "follows from its nodes, ranks, ports and the executor")]


def _variable_origins(situation: Situation, rank: RankPlan, name: str, variable: str) -> list[Origin]:
    group = next(group for group, nodes in situation.config.groups.items() if rank.node in nodes)
    layers = [
        ("the plan of the weights: all that a rank needs is on its node", OFFLINE),
        (f"{situation.image_file}: environment/{variable}", situation.image.environment),
        (f"{situation.file}: config/{STACK_KEY}/environment/{variable}", situation.config.environment),
        (
            f"the executor {situation.config.executor}",
            start(situation.config.executor, launch_of(situation, group, rank.rank)).environment,
        ),
        (
            f"the fabric, kind {situation.config.fabric.kind}, from {situation.cluster_file}",
            fabric_environment(situation.cluster.nodes[rank.node], situation.config.fabric),
        ),
    ]
    found = [(place, environment[variable]) for place, environment in layers if variable in environment]
    if not found:
        return []
    place, value = found[-1]
    known = VARIABLES.get(variable)
    why = f"{known.why} ({known.source})" if known and place.startswith("the fabric") else ""
    return [Origin(name, value, place, why, tuple(f"{other} in {where}" for where, other in found[:-1]))]


def _key_origins(situation: Situation, key: str) -> list[Origin]:
    value: object = situation.config
    chosen = True
    for name in key.strip("/").split("/"):
        if isinstance(value, dict):
            if name not in value:
                return []
            value = value[name]
            continue
        fields = getattr(type(value), "model_fields", {})
        if name not in fields:
            return []
        chosen = chosen and name in getattr(value, "model_fields_set", set())
        value = getattr(value, name)
    place = f"{situation.file}: config/{STACK_KEY}/{key.strip('/')}" if chosen else "the default (docs/stack-file.md)"
    shown = value.model_dump_json() if hasattr(value, "model_dump_json") else str(value)  # type: ignore[union-attr]
    return [Origin("", shown, place)]
