"""Plans GLM's cache with a drafter by vLLM's own planner on specs made by hand: `plan_kv_cache.py TP BLOCK_TOKENS`.

Runs in vLLM's Python, with the tree to be tried before the others on PYTHONPATH, and prints JSON.
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
        found[f"{name}.tail"] = interface.KpoolTailSpec(
            block_size=16, num_kv_heads=2, head_size=128, head_size_v=0, dtype=torch.bfloat16, sliding_window=16
        )
    for layer in range(5):
        found[f"drafter.layers.{layer}"] = interface.SlidingWindowSpec(
            block_size=block, num_kv_heads=8 // tensor_parallel, head_size=128, dtype=torch.uint8, sliding_window=2048
        )
    return found


def config() -> Any:
    """Returns as much of a VllmConfig as the planner reads."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1, decode_context_parallel_size=1),
        attention_config=SimpleNamespace(hisparse_config=None),
        model_config=SimpleNamespace(max_model_len=CONTEXT, is_hybrid=True),
        cache_config=SimpleNamespace(
            mamba_cache_mode="align", num_gpu_blocks_override=None, prefix_cache_retention_interval=None
        ),
        speculative_config=None,
        max_in_flight_tokens=2 * 16_384,
    )


def main() -> None:
    """Prints groups, slots and capacity."""
    tensor_parallel, block = map(int, sys.argv[1:])
    vllm = config()
    groups = planner.get_kv_cache_groups(vllm, specs(tensor_parallel, block))
    planned = planner.get_kv_cache_config_from_groups(vllm, groups, 26 * GIB)
    tokens, _ = planner.get_kv_cache_capacity(vllm, planned)
    drafter = next(group for group in groups if group.layer_names[0].startswith("drafter"))
    starts = {tensor.layers[0]: tensor.offset for tensor in planned.kv_cache_tensors}
    answer = {
        "groups": [len(group.layer_names) for group in groups],
        "drafter_block": drafter.kv_cache_spec.block_size,
        "drafter_page": drafter.kv_cache_spec.page_size_bytes,
        "latent_page": 512 * block,
        "shares_slots": [starts[f"drafter.layers.{n}"] == starts[f"model.layers.{4 * n + 3}"] for n in range(5)],
        "blocks": planned.num_blocks,
        "tokens": tokens,
    }
    json.dump(answer, out)


if __name__ == "__main__":
    main()
