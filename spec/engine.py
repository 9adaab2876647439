"""The arguments of the engine that a stack may choose."""

from typing import Any

from pydantic import Field, field_validator

from spec.base import Strict, canonical_json
from spec.kv_cache import KvCacheDtype
from spec.quantity import Bytes


class Engine(Strict):
    """What a deployment chooses of the engine's arguments.

    Attributes:
        max_model_len: longest context in tokens.
        max_num_seqs: most requests that are computed at once; none leaves it to the engine.
        max_num_batched_tokens: most tokens of one step; none leaves it to the engine.
        kv_cache_memory_bytes: KV cache of each rank; then nothing is held back for activations.
        gpu_memory_utilization: share of the memory that the engine may take.
        kv_cache_dtype: of the cached numbers.
        block_size: tokens of one cache block.
        enforce_eager: no CUDA graphs.
        enable_expert_parallel: each rank holds whole experts instead of a slice of every expert.
        enable_prefix_caching: none leaves it to the engine, which does it.
        pipeline_parallel_size: stages; tensor parallel is what is left of the accelerators.
        moe_backend: kernel of the routed experts.
        quantization: of the checkpoint, where the engine does not find it by itself.
        dtype: of the weights in memory.
        other: any further flag by its full name, `_` for `-`; a mapping is written as JSON, a list as several words.
    """

    max_model_len: int = Field(gt=0)
    max_num_seqs: int | None = Field(default=None, gt=0)
    max_num_batched_tokens: int | None = Field(default=None, gt=0)
    kv_cache_memory_bytes: Bytes | None = None
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_dtype: KvCacheDtype | None = None
    block_size: int | None = Field(default=None, gt=0)
    enforce_eager: bool = False
    enable_expert_parallel: bool = False
    enable_prefix_caching: bool | None = None
    pipeline_parallel_size: int = Field(default=1, gt=0)
    moe_backend: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    other: dict[str, bool | int | float | str | tuple[int | float | str, ...] | dict[str, Any]] = {}

    @field_validator("other")
    @classmethod
    def _other_has_no_typed_flag(cls, other: dict[str, Any]) -> dict[str, Any]:
        for name, value in other.items():
            if name in cls.model_fields:
                raise ValueError(f"{name} has a key of its own: write it beside `other`, not in it")
            if value in ("", ()):
                raise ValueError(f"{name} is empty, which is not the same as absent: give it a value, or remove it")
        return other

    def arguments(self) -> tuple[str, ...]:
        """Returns the chosen arguments as argv words: those with a key first, then the others by name.

        The pipeline size is not among them: the renderer writes it with the other sizes of the group.
        """
        typed = {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name not in ("other", "pipeline_parallel_size", "enable_prefix_caching")
        }
        chosen = (*typed.items(), *sorted(self.other.items()))
        return (*(word for name, value in chosen for word in _words(name, value)), *self._prefix_caching())

    def _prefix_caching(self) -> tuple[str, ...]:
        """On unless it is refused, so only a choice is written."""
        if self.enable_prefix_caching is None:
            return ()
        return ("--enable-prefix-caching",) if self.enable_prefix_caching else ("--no-enable-prefix-caching",)


def _words(name: str, value: Any) -> tuple[str, ...]:
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return ()
    if isinstance(value, dict):
        return (flag, canonical_json(value))
    if isinstance(value, tuple):
        return (flag, *map(str, value))
    return (flag,) if value is True else (flag, str(value))
