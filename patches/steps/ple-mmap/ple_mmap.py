"""The n-gram table of Qwen3.8-Flash-Next, left in the checkpoint's files and read by the processor row by row.

VLLM_PLE_MMAP=1 chooses it. VLLM_PLE_MMAP_WORKERS (32) threads wait for the disk at once, VLLM_PLE_MMAP_PREWARM=1 reads
the whole table before the first step, and VLLM_PLE_MMAP_MADVISE (random or normal) tells the kernel what to expect.
"""

import json
import mmap
import os
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"ngram_embedding\.shard_(\d+)\.weight$")
_TYPES = {"F8_E4M3": torch.float8_e4m3fn, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_ADVICE = {"random": mmap.MADV_RANDOM, "normal": mmap.MADV_NORMAL}
_CHUNK_BYTES = 64 << 20


class _Extent(NamedTuple):
    """Where a tensor lies in its file."""

    file: Path
    offset: int
    rows: int
    columns: int
    dtype: torch.dtype


class MappedTable:
    """A table whose shards are tensors of a checkpoint, mapped and not copied."""

    def __init__(self, checkpoint: Path, workers: int, advice: str) -> None:
        """Maps the shards.

        Args:
            checkpoint: folder with the index and the safetensors files.
            workers: how many rows are waited for at once.
            advice: `random` or `normal`.

        Raises:
            ValueError: the checkpoint has no such table, several of them, or one that is not whole.
        """
        self._extents = list(_extents(checkpoint))
        first = self._extents[0]
        if any(extent[3:] != first[3:] or extent.rows != first.rows for extent in self._extents[:-1]):
            raise ValueError(f"the shards of the n-gram table in {checkpoint} differ in shape or type")
        self.dtype, self.columns, self._rows = first.dtype, first.columns, first.rows
        self._shards = [_mapped(extent, _ADVICE[advice]) for extent in self._extents]
        self._pool = ThreadPoolExecutor(workers)

    def prewarm(self) -> None:
        """Reads the table once, so that its pages are in memory as long as nothing else needs them."""
        list(self._pool.map(_read, self._extents))

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of these numbers, in their order, on the processor."""
        flat = ids.reshape(-1)
        out = torch.empty((flat.numel(), self._shards[0].shape[1]), dtype=torch.uint8, device="cpu")
        shards = torch.div(flat, self._rows, rounding_mode="floor")
        order = torch.argsort(shards)
        counts = torch.bincount(shards, minlength=len(self._shards)).tolist()
        places = zip(self._shards, torch.split(order, counts), range(len(counts)), strict=True)

        def gather(work: tuple[torch.Tensor, torch.Tensor, int]) -> None:
            shard, place, number = work
            out[place] = shard[flat[place] - number * self._rows]

        list(self._pool.map(gather, [work for work in places if len(work[1])]))
        return out.view(self.dtype).reshape(*ids.shape, self.columns)


def _extents(checkpoint: Path) -> Iterator[_Extent]:
    names = json.loads((checkpoint / _INDEX).read_text(encoding="utf-8"))["weight_map"]
    shards = {name: int(found[1]) for name in names if (found := _SHARD.search(name))}
    if sorted(shards.values()) != list(range(len(shards))) or not shards:
        raise ValueError(f"{checkpoint / _INDEX} names {len(shards)} shards, which are not one whole n-gram table")
    headers = {file: _header(checkpoint / file) for file in {names[name] for name in shards}}
    for name in sorted(shards, key=shards.__getitem__):
        start, header = headers[names[name]]
        entry = header[name]
        rows, columns = entry["shape"]
        offset = start + entry["data_offsets"][0]
        yield _Extent(checkpoint / names[name], offset, rows, columns, _TYPES[entry["dtype"]])


def _header(file: Path) -> tuple[int, dict[str, Any]]:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        return 8 + length, json.loads(opened.read(length))


def _mapped(extent: _Extent, advice: int) -> torch.Tensor:
    with extent.file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(advice)
    row_bytes = extent.columns * extent.dtype.itemsize
    with warnings.catch_warnings():
        # torch warns of memory that may not be written; nothing writes to it.
        warnings.simplefilter("ignore")
        data = torch.frombuffer(mapped, dtype=torch.uint8, count=extent.rows * row_bytes, offset=extent.offset)
    return data.reshape(extent.rows, row_bytes)


def _read(extent: _Extent) -> None:
    end = extent.offset + extent.rows * extent.columns * extent.dtype.itemsize
    buffer = bytearray(_CHUNK_BYTES)
    with extent.file.open("rb", buffering=0) as opened:
        opened.seek(extent.offset)
        while opened.tell() < end and opened.readinto(buffer):
            pass


def place_of_table(embedding_class: type) -> type:
    """Returns the class that leaves the table in the files if the environment asks for it, else the given one."""
    if os.environ.get("VLLM_PLE_MMAP") != "1":
        return embedding_class

    from vllm.config import get_current_vllm_config
    from vllm.models.qwen4_exp.common.ngram_embedding import Qwen4ExpPLEDeviceEmbedding

    class MappedEmbedding(Qwen4ExpPLEDeviceEmbedding):
        """The table's rows come from the files; the parameter has none, and its scale is loaded as always."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            checkpoint = Path(get_current_vllm_config().model_config.model)
            workers = int(os.environ.get("VLLM_PLE_MMAP_WORKERS", "32"))
            self._table = MappedTable(checkpoint, workers, os.environ.get("VLLM_PLE_MMAP_MADVISE", "random"))
            self._is_cold = os.environ.get("VLLM_PLE_MMAP_PREWARM") == "1"

        def allocate_embedding_weight(self, _rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(0, columns, dtype=dtype)

        def weight_loader(self, param: Any, loaded_weight: torch.Tensor, checkpoint_start: int | None = None) -> None:
            if checkpoint_start is None:
                super().weight_loader(param, loaded_weight)

        def forward(self, ngram_ids: torch.Tensor) -> torch.Tensor:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "VLLM_PLE_MMAP reads with the processor, which no graph can hold: use --enforce-eager"
                )
            if self._is_cold:
                self._is_cold = False
                self._table.prewarm()
            return self._table.rows(ngram_ids.cpu()).to(ngram_ids.device)

    return MappedEmbedding
