"""Writes a small checkpoint with an n-gram table in shards, reads rows of it through the step's module, and compares.

`read_table.py FOLDER MODULE`. Runs in vLLM's Python, for its torch; the folder is empty and may be written.
"""

# pyright: reportMissingImports=false

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

ROWS, SHARD_ROWS, COLUMNS = 33, 7, 16


def write_checkpoint(folder: Path) -> torch.Tensor:
    """Writes five shards into two files, another tensor before them, and returns the whole table."""
    table = torch.randint(0, 120, (ROWS, COLUMNS), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    files: dict[str, list[tuple[str, torch.Tensor]]] = {
        "a.safetensors": [("model.norm.weight", torch.ones(3, 5, dtype=torch.uint8))],
        "b.safetensors": [],
    }
    for number, start in enumerate(range(0, ROWS, SHARD_ROWS)):
        name = f"model.layers.2.ple.ple_embedding.ngram_embedding.shard_{number}.weight"
        files["ab"[number % 2] + ".safetensors"].append((name, table[start : start + SHARD_ROWS]))
    for file, tensors in files.items():
        (folder / file).write_bytes(safetensors(tensors))
    index = {name: file for file, tensors in files.items() for name, _ in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    return table


def safetensors(tensors: list[tuple[str, torch.Tensor]]) -> bytes:
    """Returns a file of that format."""
    header, data = {}, b""
    for name, tensor in tensors:
        content = bytes(tensor.flatten().tolist())
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": "F8_E4M3", "shape": list(tensor.shape), "data_offsets": place}
        data += content
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + data


def refusal(module: Any, folder: Path) -> str:
    """Returns what is said of a checkpoint that lacks a shard."""
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    del index["weight_map"]["model.layers.2.ple.ple_embedding.ngram_embedding.shard_1.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    try:
        module.MappedTable(folder, 2, "normal")
    except ValueError as error:
        return str(error)
    return "none"


def main() -> None:
    """Prints what came out as JSON."""
    folder, path = map(Path, sys.argv[1:])
    specification = importlib.util.spec_from_file_location("ple_mmap", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    whole = write_checkpoint(folder)
    table = module.MappedTable(folder, 4, "random")
    table.prewarm()
    ids = torch.randint(0, ROWS, (40, 3), generator=torch.Generator().manual_seed(2))
    rows = table.rows(ids)
    answer = {
        "type": str(rows.dtype),
        "shape": list(rows.shape),
        "equal": torch.equal(rows.view(torch.uint8), whole[ids]),
        "none": list(table.rows(torch.empty((0, 3), dtype=torch.int64)).shape),
        "refusal": refusal(module, folder),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
