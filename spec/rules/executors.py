"""Rules about how ranks are started."""

from collections.abc import Iterator

from spec.errors import Problem
from spec.rules.rule import Estimates, refuse, warn
from spec.situation import Situation


@refuse
def executor_starts_this_engine(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """SGLang is started as SGLang, and vLLM as vLLM.

    Source: facts/seed-repos.md 1.5 (the SGLang lane has launch arguments of its own).
    """
    executor, engine = situation.config.executor, situation.image.engine
    if (executor == "sglang") != (engine == "sglang"):
        yield situation.problem(
            "executor",
            executor,
            f"{situation.image_file} holds {engine}, which this executor does not start",
            "write `executor: sglang`" if engine == "sglang" else "use one of: mp, ray, external_launcher",
        )


@refuse
def ray_has_accelerators(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """Ray starts ranks only where there are accelerators to wait for.

    Source: facts/seed-repos.md 1.6 (vLLM waits until Ray knows of all GPUs).
    """
    if situation.config.executor == "ray" and not situation.hardware.gpus:
        yield situation.problem(
            "executor",
            "ray",
            f"the head waits until Ray knows of all accelerators, and a node of {situation.config.cluster} has "
            f"{situation.hardware.gpus}",
            "use `executor: mp`",
        )


@warn
def ray_is_in_the_image(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """An image for the executor ray has Ray's commands (mentat) added.

    Source: seed 000, "Ray is not in the aarch64 images"; seed 002, "What the image is" (mentat as `ray`).
    """
    if situation.config.executor == "ray" and situation.image.chain is None:
        yield situation.problem(
            "executor",
            "ray",
            f"{situation.image_file} is as it was published (0 steps of ours), and vLLM's images for arm64 have no ray",
            "use an image with a step that adds mentat, or `executor: mp`; or acknowledge that the image has it",
        )


@refuse
def job_goes_with_its_launcher(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """An offline job is started by external_launcher, which starts nothing else.

    Source: seed 003 (offline `LLM` class, a program that every rank runs); facts/seed-repos.md 1.7.
    """
    executor, job = situation.config.executor, situation.config.job
    if executor == "external_launcher" and job is None:
        yield situation.problem(
            "job",
            None,
            "external_launcher runs a program of yours on every rank and no API server",
            "add `job`: its path in the container; or use `executor: mp` to serve",
        )
    elif job is not None and executor != "external_launcher":
        yield situation.problem(
            "job",
            job,
            f"the executor {executor} serves and runs no job",
            "remove it, or use `executor: external_launcher`",
        )


@refuse
def launcher_has_one_accelerator_a_node(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """external_launcher runs one process a node, and so on one accelerator.

    Source: seed 003 (LOCAL_RANK=0, one rank a node); spec/executors.py.
    """
    if situation.config.executor == "external_launcher" and situation.accelerators != 1:
        yield situation.problem(
            "executor",
            "external_launcher",
            f"a node has {situation.accelerators} accelerators, {situation.accelerators - 1} of which get no process",
            "use `executor: mp`",
        )


@warn
def a_job_answers_nobody(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A deployment answers requests.

    Source: facts/seed-repos.md section 7, libertai_tp4_external_launcher (api: none, every rank calls generate()).
    """
    if situation.config.executor == "external_launcher":
        yield situation.problem(
            "executor",
            "external_launcher",
            f"nothing listens on port {situation.config.port}: the {len(situation.model.probes)} probes of the model "
            "are not asked",
            "use `executor: mp` to serve, or acknowledge that this is a job",
        )


@refuse
def sglang_drafts_with_the_checkpoint(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """SGLang drafts with the checkpoint's own layer.

    Source: facts/seed-repos.md 1.5 (NEXTN); DFlash2 is in vLLM alone (facts/vllm-patches.md section 1).
    """
    choice = situation.config.speculative
    if situation.image.engine == "sglang" and choice and choice.method == "dflash":
        yield situation.problem(
            "speculative/method",
            "dflash",
            f"SGLang {situation.image.version} has no DFlash2 drafter",
            "use `method: mtp`, or an image with vLLM",
        )


@refuse
def entrypoint_serves_once(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The entrypoint is the program alone; `serve` is added to it.

    Source: facts/peers.md 68 (command prefixed twice); facts/seed-repos.md 2.5 (ENTRYPOINT is `vllm`).
    """
    entrypoint = situation.image.entrypoint
    if situation.image.engine == "vllm" and entrypoint[-1] == "serve":
        yield Problem(
            situation.image_file,
            "entrypoint",
            list(entrypoint),
            f"the command would be `{' '.join(entrypoint)} serve ...`",
            f"write [{', '.join(entrypoint[:-1]) or 'vllm'}]",
        )
