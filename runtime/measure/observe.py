"""One look at a node: bytes over every device, memory that is available, clocks and temperatures."""

import subprocess
from pathlib import Path
from typing import Any

_WORD_BYTES = 4
"""RDMA ports count data in words of four bytes (InfiniBand specification, PortXmitData)."""

_GPU_QUERY = ("clocks.sm", "temperature.gpu", "power.draw")
_GPU_SECONDS = 5


def observe(root: Path) -> dict[str, Any]:
    """Reads everything below `root` (`/`, or a tree made for a test) and asks nvidia-smi where there is one.

    Returns:
        `bytes_by_device`, `available_bytes`, `cpu_mhz`, `hottest_celsius`, `gpu_mhz`, `gpu_celsius`, `gpu_watts`, each
        of the last five none where it cannot be read, and `unread`: what, and why.
    """
    unread: list[str] = []
    gpu = _gpu(unread)
    return {
        "bytes_by_device": {**_interfaces(root), **_rdma_devices(root)},
        "available_bytes": _available_bytes(root),
        "cpu_mhz": _fastest_mhz(root, unread),
        "hottest_celsius": _hottest(root, unread),
        **dict(zip(("gpu_mhz", "gpu_celsius", "gpu_watts"), gpu, strict=True)),
        "unread": unread,
    }


def _interfaces(root: Path) -> dict[str, int]:
    """Bytes of each network device, both ways; RDMA passes them by."""
    found = {}
    for folder in sorted((root / "sys/class/net").glob("*/statistics")):
        counts = [_number(folder / name) for name in ("rx_bytes", "tx_bytes")]
        found[folder.parent.name] = sum(count or 0 for count in counts)
    return found


def _rdma_devices(root: Path) -> dict[str, int]:
    """Bytes of each RDMA device, both ways, over all its ports."""
    found: dict[str, int] = {}
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*/counters")):
        words = [_number(folder / name) for name in ("port_xmit_data", "port_rcv_data")]
        name = folder.parents[2].name
        found[name] = found.get(name, 0) + sum(word or 0 for word in words) * _WORD_BYTES
    return found


def _available_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable")


def _fastest_mhz(root: Path, unread: list[str]) -> float | None:
    found = [_number(path) for path in (root / "sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_cur_freq")]
    known = [value for value in found if value is not None]
    if not known:
        unread.append("processor clock: the kernel shows no cpufreq")
    return max(known) / 1000 if known else None


def _hottest(root: Path, unread: list[str]) -> float | None:
    found = [_number(path) for path in (root / "sys/class/thermal").glob("thermal_zone*/temp")]
    known = [value for value in found if value is not None]
    if not known:
        unread.append("temperature: the kernel shows no thermal zone")
    return max(known) / 1000 if known else None


def _gpu(unread: list[str]) -> tuple[float | None, float | None, float | None]:
    query = ["nvidia-smi", f"--query-gpu={','.join(_GPU_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=_GPU_SECONDS, check=True)
    except FileNotFoundError:
        unread.append("GPU: there is no nvidia-smi")
        return None, None, None
    except (subprocess.SubprocessError, OSError) as error:
        unread.append(f"GPU: nvidia-smi failed: {error}")
        return None, None, None
    rows = [[_float(cell) for cell in row.split(",")] for row in result.stdout.splitlines() if row.strip()]
    columns = [[value for value in column if value is not None] for column in zip(*rows)]  # noqa: B905 - equal by format
    clock, celsius, watts = (max(column) if column else None for column in columns)
    return clock, celsius, watts


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # an interface that is down, or a counter that this driver does not have


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # nvidia-smi writes [N/A]
