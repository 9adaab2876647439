"""Rules about the routed experts: how they are shared out and which kernels run them."""

from collections.abc import Iterator

from spec.architecture import GATED_EXPERT_ALIGNMENT, Experts, Gemma4, Glm5Next, Qwen4Exp
from spec.arithmetic import round_up
from spec.errors import Problem
from spec.rules.parallel import divides
from spec.rules.rule import Estimates, refuse, warn
from spec.rules.words import division, listed
from spec.situation import Situation

_CUTLASS = ("cutlass", "flashinfer_cutlass")
_NVFP4_BACKENDS = (
    *("auto", "b12x", "cutlass", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl"),
    *("flashinfer_moe_ep_cutedsl", "flashinfer_b12x", "marlin", "humming", "emulation"),
)
"""What `--moe-backend` may be for NVFP4 in vLLM 0.32 and 0.33 (facts/vllm-patches.md section 4)."""


@refuse
def expert_parallel_has_experts(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Expert parallelism is for a model with experts.

    Source: facts/vllm-patches.md section 4; vLLM config/model.py `_verify_with_expert_parallelism`.
    """
    if situation.config.engine.enable_expert_parallel and _experts(situation) is None:
        yield situation.problem(
            "engine/enable_expert_parallel",
            True,
            f"{situation.config.model} has 0 routed experts, and vLLM refuses to start",
            "remove the key",
        )


@refuse
def sliced_experts_keep_the_alignment(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A slice of an NVFP4 expert is a multiple of 64 rows on the CUTLASS backends.

    Source: seed 000, "plain tensor parallel 4 cannot load" (640 / 4 = 160) and Gemma-4-26B-A4B at TP2 and TP4;
    facts/vllm-patches.md section 5.
    """
    experts = _experts(situation)
    if experts is None or not _may_run_on_cutlass(situation):
        return
    for group in situation.config.groups:
        size = situation.tensor_parallel(group)
        if size and not experts.fits_gated_alignment(size, situation.config.engine.enable_expert_parallel):
            yield situation.problem(
                f"groups/{group}",
                list(situation.config.groups[group]),
                _slice_text(experts, size) + ": the NVFP4 kernels need a multiple of "
                f"{GATED_EXPERT_ALIGNMENT} and vLLM raises `Intermediate size padding for w1 and w3`",
                _slice_way_out(situation, experts, size),
            )


@warn
def sliced_experts_need_no_padding(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Marlin does not have to pad the experts.

    Source: facts/vllm-patches.md section 5 (marlin pads 160 to 192: inferred, nobody ran it).
    """
    experts = _experts(situation)
    if experts is None or not _is_nvfp4(situation) or _backend(situation) != "marlin":
        return
    for group in situation.config.groups:
        size = situation.tensor_parallel(group)
        held = experts.intermediate_size_per_rank(size, situation.config.engine.enable_expert_parallel)
        padded = round_up(held, GATED_EXPERT_ALIGNMENT)
        if held != padded:
            yield situation.problem(
                "engine/moe_backend",
                "marlin",
                f"{experts.intermediate_size} / {size} = {held}, which marlin pads to {padded}: experts take "
                f"{padded} / {held} = {padded / held:.2f} times the planned memory, and no source ran it",
                "set `enable_expert_parallel: true`, which keeps experts whole",
            )


@refuse
def experts_backend_takes_nvfp4(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The experts' kernel can run NVFP4, where the checkpoint is NVFP4.

    Source: facts/vllm-patches.md section 4, `--moe-backend`.
    """
    backend = _backend(situation)
    if _is_nvfp4(situation) and _experts(situation) and backend not in _NVFP4_BACKENDS:
        yield situation.problem(
            "engine/moe_backend",
            situation.config.engine.moe_backend,
            f"{situation.config.model} is NVFP4, which this kernel does not run",
            f"use one of: {listed(_NVFP4_BACKENDS)}",
        )


@warn
def glm_experts_have_a_proven_backend(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """GLM's NVFP4 experts on GB10 do not run on flashinfer_cutlass by chance.

    Source: seed 003 bug 1 (garbage, force marlin); seed 002 serves flashinfer_cutlass with NVIDIA's checkpoint;
    facts/seed-repos.md 0.3 and facts/vllm-patches.md P11.
    """
    if not (isinstance(situation.model.architecture, Glm5Next) and _is_nvfp4(situation) and _is_blackwell(situation)):
        return
    backend, weight_only = _backend(situation), _has_no_input_scales(situation)
    if backend == "auto" or (backend == "flashinfer_cutlass" and weight_only):
        reason = "has no input scales (weight-only)" if weight_only else "was never run so in the sources"
        yield situation.problem(
            "engine/moe_backend",
            situation.config.engine.moe_backend,
            f"compute capability {situation.hardware.compute_capability} takes flashinfer_cutlass here, and "
            f"{situation.config.model} {reason}: seed 003 got garbage from it",
            "set `moe_backend: marlin`, as seeds 000 and 003 do",
        )


def _experts(situation: Situation) -> Experts | None:
    architecture = situation.model.architecture
    return architecture.experts if isinstance(architecture, Glm5Next | Qwen4Exp | Gemma4) else None


def _backend(situation: Situation) -> str:
    return situation.config.engine.moe_backend or "auto"


def _is_nvfp4(situation: Situation) -> bool:
    """Whether vLLM's rules for NVFP4 hold."""
    checkpoint = situation.model.checkpoint
    is_nvfp4 = checkpoint is not None and checkpoint.quantization == "nvfp4"
    return is_nvfp4 and situation.image.engine == "vllm" and situation.hardware.gpus > 0


def _is_blackwell(situation: Situation) -> bool:
    """Whether vLLM's automatic choice is a CUTLASS backend here; on Hopper it is marlin."""
    return (situation.hardware.compute_capability or "12.1").split(".")[0] in ("10", "11", "12")


def _may_run_on_cutlass(situation: Situation) -> bool:
    backend = _backend(situation)
    return _is_nvfp4(situation) and (backend in _CUTLASS or (backend == "auto" and _is_blackwell(situation)))


def _has_no_input_scales(situation: Situation) -> bool:
    checkpoint = situation.model.checkpoint
    return checkpoint is not None and checkpoint.input_scales is False


def _slice_text(experts: Experts, size: int) -> str:
    width = experts.intermediate_size
    return (
        f"each rank would hold {width} / {size} = {width / size:g} of an expert's width, "
        f"{division(width // size, GATED_EXPERT_ALIGNMENT)}"
    )


def _slice_way_out(situation: Situation, experts: Experts, size: int) -> str:
    fitting = [
        nodes
        for nodes in range(1, len(situation.cluster.nodes) + 1)
        if divides(situation, nodes) and experts.fits_gated_alignment(nodes * situation.accelerators, False)
    ]
    padded = round_up(experts.intermediate_size // size, GATED_EXPERT_ALIGNMENT)
    return (
        f"set `enable_expert_parallel: true`: a rank then holds {experts.count} / {size} = {experts.count / size:g} "
        f"whole experts; or use {listed(fitting) or 'no'} node(s); or `moe_backend: marlin`, which pads to {padded}"
    )
