"""Rules about how a model is divided among accelerators."""

from collections.abc import Iterator

from spec.architecture import Dflash2, Dimension, Gemma4, Qwen3, Qwen4Exp
from spec.errors import Problem
from spec.rules.rule import Estimates, refuse, warn
from spec.rules.words import division, listed
from spec.situation import Situation


@refuse
def pipeline_divides_the_accelerators(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The pipeline stages divide the accelerators of a group.

    Source: facts/vllm-patches.md section 4, `--nnodes` must divide DP x PP x TP.
    """
    stages = situation.config.engine.pipeline_parallel_size
    for group in situation.config.groups:
        world = situation.world_size(group)
        if world % stages:
            yield situation.problem(
                "engine/pipeline_parallel_size",
                stages,
                f"{stages} stages do not divide {world} accelerators of the group {group}: {division(world, stages)}",
                f"use one of: {listed(n for n in range(1, world + 1) if world % n == 0)}",
            )


@refuse
def pipeline_fits_the_architecture(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The architecture can be split into pipeline stages, where there are any.

    Source: seed 000, "Pipeline parallel is impossible"; facts/vllm-patches.md section 5.
    """
    stages = situation.config.engine.pipeline_parallel_size
    architecture = situation.model.architecture
    if stages == 1 or isinstance(architecture, Dflash2) or architecture.no_pipeline_reason is None:
        return
    for group in situation.config.groups:
        yield situation.problem(
            "engine/pipeline_parallel_size",
            stages,
            f"{situation.world_size(group)} accelerators of the group {group} are {situation.tensor_parallel(group)} "
            f"(tensor parallel) x {stages} (stages), and {situation.config.model} has no stages: "
            f"{architecture.no_pipeline_reason}",
            "remove the key; more nodes serve this model as several groups",
        )


@warn
def pipeline_is_proven(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """There is one pipeline stage, as in every deployment that the sources ran.

    Source: seed 002, "PP is off"; facts/vllm-patches.md section 5 (0.30 and 0.31 need a sparse layer of GLM a stage).
    """
    stages = situation.config.engine.pipeline_parallel_size
    if stages > 1:
        yield situation.problem(
            "engine/pipeline_parallel_size",
            stages,
            f"no source ran {stages} stages, and the plan's KV cache and memory are those of 1 stage",
            "remove the key, or measure the first start by hand",
        )


@refuse
def tensor_parallel_divides_the_model(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Tensor parallelism divides the heads of every kind.

    Source: seed 000, "16 is not divisible by 6"; facts/vllm-patches.md section 5.
    """
    for group in situation.config.groups:
        size = situation.tensor_parallel(group)
        for dimension in _dimensions(situation):
            if size and dimension.size % size:
                yield situation.problem(
                    f"groups/{group}",
                    list(situation.config.groups[group]),
                    f"tensor parallel {size} does not divide the {dimension.size} {dimension.name} of "
                    f"{situation.config.model}: {division(dimension.size, size)} ({dimension.source})",
                    f"use a number of nodes that divides it: {_fitting_numbers_of_nodes(situation)}",
                )


@refuse
def key_value_heads_are_shared_evenly(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Key-value heads are divided by tensor parallelism, or copied the same number of times to every rank.

    Source: facts/vllm-patches.md section 5, QSA: kv % TP or TP % kv.
    """
    for group in situation.config.groups:
        size = situation.tensor_parallel(group)
        for heads in _key_value_heads(situation):
            if size and heads % size and size % heads:
                yield situation.problem(
                    f"groups/{group}",
                    list(situation.config.groups[group]),
                    f"{heads} key-value heads are neither divided by tensor parallel {size} ({division(heads, size)}) "
                    f"nor copied evenly ({division(size, heads)})",
                    f"use a number of nodes that divides {heads}, or a multiple of it",
                )


@refuse
def data_parallel_is_groups(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Copies of a model are groups of the stack, not data parallel ranks of one engine.

    Source: facts/peers.md 83 (a pure data parallel deployment waits on a port that nobody opens).
    """
    for name, value in situation.config.engine.other.items():
        if name.replace("-", "_").startswith("data_parallel"):
            yield situation.problem(
                f"engine/other/{name}",
                value,
                "accelerators of a group are tensor x pipeline parallel, and nothing is left for data parallel: "
                + "; ".join(_product(situation, group) for group in situation.config.groups),
                "remove the flag and list several groups: each serves the model on its own and is replaced on its own",
            )


def divides(situation: Situation, nodes: int) -> bool:
    """Whether so many nodes can share the model."""
    stages = situation.config.engine.pipeline_parallel_size
    size = nodes * situation.accelerators // stages
    return size > 0 and all(dimension.size % size == 0 for dimension in _dimensions(situation))


def _product(situation: Situation, group: str) -> str:
    stages = situation.config.engine.pipeline_parallel_size
    return f"{group}: {situation.tensor_parallel(group)} x {stages} = {situation.world_size(group)}"


def _dimensions(situation: Situation) -> tuple[Dimension, ...]:
    """Returns what must be divided; a replicated vision tower needs not."""
    architecture = situation.model.architecture
    if isinstance(architecture, Dflash2):
        return ()
    replicated = situation.config.engine.other.get("mm_encoder_tp_mode") == "data"
    return tuple(
        dimension
        for dimension in architecture.tensor_parallel_dimensions
        if not (replicated and dimension.name == "vision heads")
    )


def _fitting_numbers_of_nodes(situation: Situation) -> str:
    fitting = [nodes for nodes in range(1, len(situation.cluster.nodes) + 1) if divides(situation, nodes)]
    return listed(fitting) or "none of this cluster's does"


def _key_value_heads(situation: Situation) -> tuple[int, ...]:
    architecture = situation.model.architecture
    if isinstance(architecture, Gemma4):
        return (architecture.key_value_heads, architecture.full_key_value_heads)
    if isinstance(architecture, Qwen3 | Qwen4Exp):
        return (architecture.key_value_heads,)
    return ()
