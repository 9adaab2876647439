"""Plans GLM's cache with a drafter by vLLM's own planner on specs made by hand: `plan_kv_cache.py TP BLOCK_TOKENS`.

Runs in vLLM's Python, with the tree to be tried before the others on PYTHONPATH, and prints JSON. The whole planner
runs, for two ranks of which the second has a GiB less: groups, the check of the longest context, the tensors, and the
plan anew for the rank that has more.
"""

# pyright: reportMissingImports=false

import json
import sys
from types import SimpleNamespace
from typing import Any

out, sys.stdout = sys.stdout, sys.stderr
import torch  # noqa: E402 - what vLLM prints while it is imported is not the answer
from vllm.v1 import kv_cache_interface as interface  # noqa: E402
from vllm.v1.core import kv_cache_utils as planner  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs  # noqa: E402
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402

DRAFTS, GIB, CONTEXT = 7, 1 << 30, 524_288


def specs(tensor_parallel: int, block: int) -> dict[str, Any]:
    """Returns what GLM-5.3-Flash and DFlash2 ask for in FP8: 45 layers, every fourth sparse, and five with a window."""
    heads, found = 64 // tensor_parallel, dict[str, Any]()
    for layer in range(45):
        name = f"model.layers.{layer}"
        if layer % 4 != 3:
            found[name] = interface.MambaSpec(
                block_size=block,
                shapes=((3 * heads * 128, 3 + DRAFTS), (heads, 128, 128)),
                dtypes=(torch.bfloat16, torch.float32),
                mamba_cache_mode="align",
                num_speculative_blocks=DRAFTS,
            )
            continue
        latent = {"block_size": block, "num_kv_heads": 1, "dtype": torch.uint8}
        found[name] = interface.MLAAttentionSpec(head_size=512, **latent)
        found[f"{name}.index"] = interface.MLAAttentionSpec(head_size=132, tokens_per_state=4, **latent)
        found[f"{name}.tail"] = tail()
    for layer in range(5):
        found[f"drafter.layers.{layer}"] = interface.SlidingWindowSpec(
            block_size=block, num_kv_heads=8 // tensor_parallel, head_size=128, dtype=torch.uint8, sliding_window=2048
        )
    return found


def tail() -> Any:
    """Returns the ring of one layer; from 0.32.0 on, GLM uses the general one."""
    ring = {"block_size": 16, "num_kv_heads": 2, "head_size": 128, "head_size_v": 0, "dtype": torch.bfloat16}
    if hasattr(interface, "KpoolTailSpec"):
        return interface.KpoolTailSpec(sliding_window=16, **ring)
    return interface.CircularBufferSpec(**ring)


def config(tensor_parallel: int) -> Any:
    """Returns as much of a VllmConfig as the planner reads."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, decode_context_parallel_size=1, tensor_parallel_size=tensor_parallel
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        model_config=SimpleNamespace(max_model_len=CONTEXT, original_max_model_len=CONTEXT, is_hybrid=True),
        cache_config=SimpleNamespace(
            mamba_cache_mode="align",
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.BLHNC,
        ),
        speculative_config=None,
        max_in_flight_tokens=2 * 16_384,
        num_prefill_lookahead_tokens=0,
    )


def places(planned: Any) -> dict[str, tuple[int, int, int, int]]:
    """Returns for each layer where it starts, its page, the way to the next page, and the bytes of all."""
    pages = {
        name: planner._get_per_layer_spec(group, name).page_size_bytes
        for group in planned.kv_cache_groups
        for name in group.layer_names
    }
    return {
        name: (tensor.offset + place * tensor.layer_stride, pages[name], tensor.block_stride, tensor.size)
        for tensor in planned.kv_cache_tensors
        for place, name in enumerate(tensor.layers)
    }


def main() -> None:
    """Prints groups, places and capacity."""
    tensor_parallel, block = map(int, sys.argv[1:])
    register_all_kvcache_specs(None)
    vllm, asked = config(tensor_parallel), specs(tensor_parallel, block)
    larger, smaller = planner.get_kv_cache_configs(vllm, [asked, dict(asked)], [26 * GIB, 25 * GIB])
    (planned,) = planner.get_kv_cache_configs(vllm, [asked], [26 * GIB])
    groups = planned.kv_cache_groups
    drafter = next(group for group in groups if group.layer_names[0].startswith("drafter"))
    tokens, _ = planner.get_kv_cache_capacity(vllm, planned)
    starts = {name: place[0] for name, place in places(planned).items()}
    answer = {
        "groups": sorted(sorted(group.layer_names) for group in groups),
        "drafter_block": drafter.kv_cache_spec.block_size,
        "drafter_page": planner._get_per_layer_spec(drafter, "drafter.layers.0").page_size_bytes,
        "latent_page": 512 * block,
        "shares_slots": [starts[f"drafter.layers.{n}"] == starts[f"model.layers.{4 * n + 3}"] for n in range(5)],
        "places": places(planned),
        "blocks": planned.num_blocks,
        "bytes_of_a_request": planner._max_memory_usage_bytes_from_groups(vllm, groups),
        "smaller": [larger.num_blocks, smaller.num_blocks, places(larger) == places(smaller)],
        "tokens": tokens,
    }
    json.dump(answer, out)


if __name__ == "__main__":
    main()
