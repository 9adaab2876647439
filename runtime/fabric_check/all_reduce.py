"""A program for the inside of a deployment's image: times all-reduce and writes what it found as one line of JSON.

It is run as a file by the image's own Python, so it imports nothing of this program. With GPUs it uses NCCL, without
them Gloo. Bus bandwidth is counted as NCCL's own tests count it: 2 (n - 1) / n times the bytes by the time.
"""

# pyright: reportMissingImports=false
import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

_MIB = 1 << 20
_NCCL_BYTES = (128 * _MIB, 512 * _MIB, 1024 * _MIB)
_GLOO_BYTES = (1 * _MIB, 8 * _MIB)
_WARM_UPS = 3
_SECONDS = 1.0
_LIMIT = timedelta(seconds=90)


def main() -> int:
    """Runs one process for each GPU of this node, or this process alone."""
    _forget_what_the_image_bakes_in()
    processes = int(os.environ["CHECK_PROCESSES"])
    if processes == 1 or "CHECK_LOCAL" in os.environ:
        measure(int(os.environ.get("CHECK_LOCAL", "0")), processes)
        return 0
    started = [
        subprocess.Popen([sys.executable, __file__], env={**os.environ, "CHECK_LOCAL": str(local)})
        for local in range(processes)
    ]
    return max(process.wait() for process in started)


def _forget_what_the_image_bakes_in() -> None:
    """Leaves only those variables of the fabric that the deployment sets, as a rank's supervisor does."""
    kept = os.environ["CHECK_KEPT"].split(",")
    for name in [name for name in os.environ if name.startswith(("NCCL_", "GLOO_")) and name not in kept]:
        del os.environ[name]


def measure(local: int, processes: int) -> None:
    """Joins the group and times every size; the first process of a node writes the result."""
    import torch
    import torch.distributed as group

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(local)
    node = int(os.environ["CHECK_NODE"])
    group.init_process_group(
        "nccl" if has_gpu else "gloo",
        init_method=f"tcp://{os.environ['CHECK_HEAD']}:{os.environ['CHECK_PORT']}",
        rank=node * processes + local,
        world_size=int(os.environ["CHECK_NODES"]) * processes,
        timeout=_LIMIT,
    )
    try:
        sizes = _NCCL_BYTES if has_gpu else _GLOO_BYTES
        rates = {size: _rate(torch, group, size, has_gpu) for size in sizes}
    finally:
        group.destroy_process_group()
    if local == 0:
        version = ".".join(map(str, torch.cuda.nccl.version())) if has_gpu else None
        print(
            json.dumps(
                {
                    "backend": "nccl" if has_gpu else "gloo",
                    "nccl": version,
                    "torch": torch.__version__,
                    "gigabits_per_second": {str(size): rate for size, rate in rates.items()},
                }
            ),
            flush=True,
        )


def _rate(torch: Any, group: Any, size: int, has_gpu: bool) -> float:
    """Returns the bus bandwidth of one size in Gb/s, the same number on every rank."""
    kind = torch.bfloat16 if has_gpu else torch.float32
    device = "cuda" if has_gpu else "cpu"
    ranks = group.get_world_size()
    tensor = torch.ones(size // kind.itemsize, dtype=kind, device=device)
    group.all_reduce(tensor)
    if float(tensor[0]) != ranks or float(tensor[-1]) != ranks:
        raise ArithmeticError(f"all-reduce of ones over {ranks} ranks gave {float(tensor[0])}")
    tensor.zero_()  # sums would grow beyond what a number can hold
    for _ in range(_WARM_UPS):
        group.all_reduce(tensor)
    times = _agreed_times(torch, group, tensor, device)
    _wait(torch, has_gpu)
    group.barrier()
    started = time.monotonic()
    for _ in range(times):
        group.all_reduce(tensor)
    _wait(torch, has_gpu)
    slowest = torch.tensor([time.monotonic() - started], device=device)
    group.all_reduce(slowest, op=group.ReduceOp.MAX)
    return 2 * (ranks - 1) / ranks * size * 8 * times / float(slowest[0]) / 1e9


def _agreed_times(torch: Any, group: Any, tensor: Any, device: str) -> int:
    """Returns how often fits into the time, as the slowest rank sees it, so that all do it equally often."""
    _wait(torch, device == "cuda")
    started = time.monotonic()
    group.all_reduce(tensor)
    _wait(torch, device == "cuda")
    slowest = torch.tensor([time.monotonic() - started], device=device)
    group.all_reduce(slowest, op=group.ReduceOp.MAX)
    return max(2, min(1000, int(_SECONDS / max(float(slowest[0]), 1e-6))))


def _wait(torch: Any, has_gpu: bool) -> None:
    if has_gpu:
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
