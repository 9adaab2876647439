"""Rules about whether an image suits the hardware and the model."""

import re
from collections.abc import Iterator

from spec.architecture import Glm5Next, Qwen4Exp
from spec.chain import Debootstrap
from spec.errors import Problem
from spec.image import Registry
from spec.kv_cache import DAY_ZERO, PlanningError, cache_rules
from spec.rules.rule import Estimates, refuse, warn
from spec.situation import Situation

_PLATFORM_WORDS = {
    "arm64": "linux/arm64",
    "aarch64": "linux/arm64",
    "amd64": "linux/amd64",
    "x86_64": "linux/amd64",
}


@refuse
def image_knows_accelerators(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """A node with accelerators runs an image that can use them.

    Source: design.md section 5 (ModelImage: base digest and steps); the lab's base is plain Debian.
    """
    gpus = situation.hardware.gpus
    if isinstance(situation.origin, Debootstrap) and gpus:
        yield situation.problem(
            "image",
            situation.config.image,
            f"it is plain Debian without CUDA, and a node of {situation.config.cluster} has {gpus} accelerator(s)",
            "use an image of a registry or a chain",
        )


@refuse
def image_is_of_the_platform(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The tag of an image does not name another platform than the nodes'.

    Source: facts/peers.md 67 (`exec format error`); facts/seed-repos.md 2.1 (twin tags arm64 and x86_64).
    """
    origin, platform = situation.origin, situation.hardware.platform
    if isinstance(origin, Debootstrap) or origin.tag is None or platform is None:
        return
    named = {_PLATFORM_WORDS[word] for word in re.findall("|".join(_PLATFORM_WORDS), origin.tag)}
    if named and platform not in named:
        yield Problem(
            situation.image_file,
            "tag",
            origin.tag,
            f"the tag says {', '.join(sorted(named))}, and nodes of {situation.config.cluster} are {platform}: "
            "`exec format error`",
            f"pin the digest of the image for {platform}",
        )


@refuse
def engine_knows_the_model(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The vLLM of the image has the model's class.

    Source: facts/vllm-patches.md section 1 (GLM-5.3-Flash from 0.30.0 on, or in its own image of before).
    """
    if situation.image.engine != "vllm" or not isinstance(situation.model.architecture, Glm5Next):
        return
    try:
        known = cache_rules(situation.image.version).glm
    except PlanningError:
        return  # the planner says it with its own words
    if not known:
        yield situation.problem(
            "image",
            situation.config.image,
            f"vLLM {situation.image.version} does not know GLM-5.3-Flash: its class came with 0.30.0",
            "use an image of 0.30.0 or later, or the one of the release day",
        )


@warn
def ngram_table_is_read_right(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The n-gram table of Qwen3.8-Flash-Next is read right by this vLLM.

    Source: facts/vllm-patches.md 2.1 (x00byte's patch of ple_layer.py; fixed in 0.30.0).
    """
    image, origin = situation.image, situation.origin
    if not isinstance(situation.model.architecture, Qwen4Exp) or image.engine != "vllm":
        return
    is_stock = image.chain is None and isinstance(origin, Registry) and origin.repository.endswith("vllm/vllm-openai")
    if is_stock and (image.version in DAY_ZERO or image.version.startswith("0.29.")):
        yield situation.problem(
            "image",
            situation.config.image,
            f"vLLM {image.version} as published reads the table's FP8 numbers wrongly under a modelopt config",
            "use 0.30.0 or later, or an image with a patched ple_layer.py",
        )


@refuse
def image_has_the_chains_version(situation: Situation, _: Estimates) -> Iterator[Problem]:
    """The catalogue calls the engine of an image as its chain does.

    Source: the planner and the flags follow the catalogue's version, the build follows the chain's.
    """
    chain, image = situation.chain, situation.image
    built = chain.versions.get(image.engine) if chain else None
    if chain and built not in (None, image.version) and built.partition("+")[0] != image.version:
        yield Problem(
            situation.image_file,
            "version",
            image.version,
            f"patches/{chain.name}/chain.yaml builds {image.engine} {built}",
            "write the same version in both",
        )
