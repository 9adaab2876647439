"""Which block size vLLM's engine makes of Qwen's groups, by its own statement: `block_size.py CORE`.

CORE is vllm/v1/engine/core.py of the tree that is tried. Prints JSON: the block of each group, whether a prefix may be
kept of it, and what the engine takes for the cache's block.
"""

# pyright: reportMissingImports=false

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

out, sys.stdout = sys.stdout, sys.stderr
import plan_kv_cache  # noqa: E402 - what vLLM prints while it is imported is not the answer
import torch  # noqa: E402
from vllm.v1 import kv_cache_interface as interface  # noqa: E402
from vllm.v1.core import kv_cache_utils as planner  # noqa: E402

BLOCK, RING = 1616, 8


def specs() -> dict[str, Any]:
    """Returns what Qwen3.8-Flash-Next asks for on one rank with two drafts: every fourth of 48 layers sparse."""
    found = dict[str, Any]()
    for layer in range(48):
        name = f"model.layers.{layer}"
        if layer % 4 != 3:
            found[name] = state(((10_240, 5), (48, 128, 128)))
            continue
        found[name] = interface.FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=256, dtype=torch.bfloat16)
        found[f"{name}.index"] = interface.MLAAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=128, dtype=torch.bfloat16, tokens_per_state=4
        )
        found[f"{name}.ring"] = interface.CircularBufferSpec(
            block_size=RING, num_kv_heads=1, head_size=128, head_size_v=0, dtype=torch.bfloat16
        )
    found["model.ngram"] = state(((10_240, 11),))
    return found


def state(shapes: tuple[tuple[int, ...], ...]) -> Any:
    """Returns the states of one layer, as large as a page of attention."""
    return interface.MambaSpec(
        block_size=BLOCK,
        shapes=shapes,
        dtypes=(torch.bfloat16, torch.float32)[: len(shapes)],
        mamba_cache_mode="align",
        num_speculative_blocks=2,
        page_size_padded=BLOCK * 2 * 2 * 256 * 2,
    )


def engines_block(core: Path, groups: list[Any]) -> int:
    """Runs the engine's own statements about the block size on these groups."""
    tree = ast.parse(core.read_text(encoding="utf-8"))
    (body,) = [
        node.body
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "kv_cache_groups"
        and "cache_config.block_size" in ast.unparse(node)
    ]
    assignments: list[ast.stmt] = [node for node in body if isinstance(node, ast.Assign)]
    cache = SimpleNamespace(block_size=BLOCK)
    names = {"kv_cache_groups": groups, "vllm_config": SimpleNamespace(cache_config=cache)}
    exec(compile(ast.Module(assignments, []), str(core), "exec"), names)
    return cache.block_size


def main() -> None:
    """Prints groups and block."""
    vllm = plan_kv_cache.config(1)
    groups = planner.get_kv_cache_groups(vllm, specs())
    answer = {
        "groups": sorted({(group.kv_cache_spec.block_size, group.kv_cache_spec.prefix_cacheable) for group in groups}),
        "block": engines_block(Path(sys.argv[1]), groups),
    }
    json.dump(answer, out)


if __name__ == "__main__":
    main()
