"""Renders the pip commands of a step; they are run by the layer that the step makes, never from here.

Nothing is resolved: a resolve that reaches torch 2.13 takes NCCL back to 2.29.7 in silence, and vLLM's own pins fight
with a FlashInfer nightly (facts/vllm-patches.md section 3). So every install names all of its parts, with `--no-deps`.
"""

from typing import Any

PIP = (
    "env",
    "PIP_BREAK_SYSTEM_PACKAGES=1",  # the images' Python belongs to the distribution
    "PIP_ROOT_USER_ACTION=ignore",
    "PIP_DISABLE_PIP_VERSION_CHECK=1",
    "PIP_NO_INPUT=1",
    "PIP_NO_CACHE_DIR=1",
    "python3",
    "-m",
    "pip",
)

# Put back by the layer that installs anything: a FlashInfer nightly moved both (facts/seed-repos.md 2.1, v4 and v5).
GUARDED_PREFIXES = ("nvidia-nccl-cu", "nvidia-cutlass-dsl")

# libs-base and libs-cu13 write the same paths, up to 4.5 with different content: with libs-base's files the DSL writes
# PTX that ptxas rejects on sm_120 and sm_121 (NVIDIA/cutlass#3170, #3227; vLLM's Dockerfile and sglang#25958 reinstall
# the CUDA part last). In 4.6.2 and 4.8.0 the five paths that they share are equal, but replacing one part removes them.
_CUTLASS_PREFIX = "nvidia-cutlass-dsl"
_CUTLASS_LAST = "nvidia-cutlass-dsl-libs-cu"


def pip_commands(change: dict[str, Any] | None, versions: dict[str, str]) -> list[list[str]]:
    """Returns the commands of one step, in order: remove, install, put back what is guarded, CUTLASS's CUDA part last.

    Args:
        change: the step's change of packages: remove, install, index and pre as in spec/chain.py; none without one.
        versions: of packages once the step is done, by normalised name.
    """
    if change is None:
        return []
    commands: list[list[str]] = []
    if change["remove"]:
        commands.append([*PIP, "uninstall", "--yes", *change["remove"]])
    if not change["install"]:
        return commands
    asked = [pin for pin in change["install"] if not _comes_last(pin)]
    if asked:
        commands.append([*PIP, "install", "--no-deps", *_options(change), *asked])
    names = {pin.partition("==")[0].lower().replace("_", "-") for pin in change["install"]}
    put_back = [
        f"{name}=={version}"
        for name, version in sorted(versions.items())
        if name.startswith(GUARDED_PREFIXES) and name not in names
    ]
    if put_back:
        commands.append([*PIP, "install", "--no-deps", *put_back])
    if any(name.startswith(_CUTLASS_PREFIX) for name in names):
        # One command each: within one, pip installs in the reverse order of names.
        commands += [
            [*PIP, "install", "--no-deps", "--force-reinstall", *_options(change), f"{name}=={version}"]
            for name, version in sorted(versions.items())
            if _comes_last(name)
        ]
    return commands


def _comes_last(requirement: str) -> bool:
    return requirement.lower().replace("_", "-").startswith(_CUTLASS_LAST)


def _options(change: dict[str, Any]) -> list[str]:
    return [*(["--pre"] if change["pre"] else []), *(["--extra-index-url", change["index"]] if change["index"] else [])]
