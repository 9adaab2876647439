"""The arguments of the engine that a stack may choose, and those that belong to the system."""

from typing import Any

from pydantic import Field, field_validator

from spec.base import Strict

SYSTEM_FLAGS = frozenset(
    {
        "model", "served-model-name", "host", "port", "tensor-parallel-size", "nnodes", "node-rank", "master-addr",
        "master-port", "distributed-executor-backend", "headless", "api-key",
    }
)  # fmt: skip
"""vLLM flags that the renderer sets from the group's own plan; a stack that sets one would contradict it."""


class Engine(Strict):
    """What a deployment chooses of vLLM's arguments.

    Attributes:
        max_model_len: longest context in tokens.
        max_num_seqs: most requests that are computed at once.
        kv_cache_memory_bytes: KV cache of each rank in bytes; none leaves it to the engine.
        enforce_eager: no CUDA graphs.
        dtype: of the weights in memory, as vLLM names it.
        other: any further flag by its full name without dashes, underscores for dashes inside.
    """

    max_model_len: int = Field(gt=0)
    max_num_seqs: int = Field(gt=0)
    kv_cache_memory_bytes: int | None = Field(default=None, gt=0)
    enforce_eager: bool = False
    dtype: str | None = None
    other: dict[str, bool | int | float | str] = {}

    @field_validator("other")
    @classmethod
    def _other_has_no_typed_or_system_flag(cls, other: dict[str, Any]) -> dict[str, Any]:
        for name in other:
            if name in cls.model_fields:
                raise ValueError(f"{name} has a key of its own: write it beside `other`, not in it")
            if name.replace("_", "-") in SYSTEM_FLAGS:
                raise ValueError(
                    f"--{name.replace('_', '-')} belongs to the system: it follows from nodes, ranks and ports"
                )
        return other

    def arguments(self) -> tuple[str, ...]:
        """Returns the chosen arguments as argv words, typed ones first, each group in a fixed order."""
        typed: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields if name != "other"}
        return tuple(
            word for name, value in (*typed.items(), *sorted(self.other.items())) for word in _words(name, value)
        )


def _words(name: str, value: Any) -> tuple[str, ...]:
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return ()
    return (flag,) if value is True else (flag, str(value))
