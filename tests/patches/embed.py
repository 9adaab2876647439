"""Loads and asks vLLM's own embedding of Qwen's n-gram table with its rows left in the files: `embed.py FOLDER`.

Runs in vLLM's Python with the patched tree before the others on PYTHONPATH; only the groups of ranks are stand-ins.
"""

# pyright: reportMissingImports=false

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

out, sys.stdout = sys.stdout, sys.stderr
import read_table  # noqa: E402 - what vLLM prints while it is imported is not the answer
import torch  # noqa: E402
import vllm.config  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.models.qwen4_exp.common import ngram_embedding  # noqa: E402
from vllm.models.qwen4_exp.nvidia import ple_mmap  # noqa: E402


def embedding(folder: Path) -> Any:
    """Makes the embedding as the model does."""
    alone = SimpleNamespace(rank_in_group=0, world_size=1)
    parallel_state._TP = alone
    ngram_embedding.get_etp_group = ngram_embedding.get_tp_group = lambda: alone
    model = SimpleNamespace(model_config=SimpleNamespace(model=str(folder)))
    vllm.config.get_current_vllm_config = lambda: model
    chosen = ple_mmap.place_of_table(ngram_embedding.Qwen4ExpPLEDeviceEmbedding)
    with vllm.config.set_current_vllm_config(vllm.config.VllmConfig()):
        return chosen(
            40,
            read_table.COLUMNS,
            params_dtype=torch.bfloat16,
            padding_size=8,
            prefix="ngram_embedding",
            embedding_method=ngram_embedding.Qwen4ExpPLEFp8EmbeddingMethod(),
            num_ngram_heads=2,
            max_total_tokens=8,
            data_parallel_rank=0,
        )


def main() -> None:
    """Prints what it holds and answers."""
    folder = Path(sys.argv[1])
    whole = read_table.write_checkpoint(folder)
    made = embedding(folder)
    made.weight.weight_loader(made.weight, whole[: read_table.SHARD_ROWS], checkpoint_start=0)
    made.weight_scale.weight_loader(made.weight_scale, torch.tensor([0.5]))
    made.embedding_method.process_weights_after_loading(made)
    ids = torch.randint(0, read_table.ROWS, (5, 2), generator=torch.Generator().manual_seed(3))
    rows = made(ids)
    expected = whole[ids].view(torch.float8_e4m3fn).to(torch.bfloat16) * 0.5
    answer = {
        "rows_in_memory": made.weight.shape[0],
        "equal": torch.equal(rows.view(torch.uint8), whole[ids]),
        "dequantised": torch.equal(made.dequantize(rows, torch.bfloat16), expected),
    }
    json.dump(answer, out)


if __name__ == "__main__":
    main()
