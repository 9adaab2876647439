"""The examination of a node: every check by its name, what it found, and what could not be asked."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from runtime.doctor import containers, gpu, memory, network, storage
from runtime.doctor.look import CouldNotAsk, Found, Look

Check = Callable[[Look], Iterator[Found]]

CHECKS: dict[str, Check] = {
    "earlyoom": memory.earlyoom,
    "swap": memory.swap,
    "min-free": memory.min_free,
    "shared-memory": memory.shared_memory,
    "docker": containers.engine,
    "nvidia-runtime": containers.runtime_for_gpus,
    "docker-limits": containers.limits,
    "leftovers": containers.leftovers,
    "strangers": containers.strangers,
    "gpu": gpu.visible,
    "gpu-clock": gpu.clock,
    "gpu-processes": gpu.other_processes,
    "rails": network.rails,
    "duplicate-addresses": network.duplicates,
    "default-route": network.default_route,
    "nccl-conf": network.leftover_nccl_conf,
    "ssh-limits": network.ssh_limits,
    "clock": network.clock,
    "disk": storage.room,
    "file-system": storage.file_system,
    "ownership": storage.ownership,
}


def examine(request: dict[str, Any]) -> dict[str, Any]:
    """Runs every check; one that cannot be answered does not keep the others from it.

    Args:
        request: `gpus`, `rails` (each `address`, `interface`), `storage_folder`, `open_files`, `locked_memory_bytes`,
            `shared_memory_bytes`, `controller_seconds`, `delay_seconds` (that the request may have been under way).

    Returns:
        `findings` (each `id`, `read`, `values`), `unasked` (each `check`, `why`), `facts` that are compared between
        nodes.
    """
    return examine_node(Look(request))


def examine_node(look: Look) -> dict[str, Any]:
    """Examines a node or a tree that stands for one."""
    findings: list[dict[str, Any]] = []
    unasked: list[dict[str, str]] = []
    for name, check in CHECKS.items():
        found, why = _checked(check, look)
        findings += found
        if why:
            unasked.append({"check": name, "why": why})
    return {"findings": findings, "unasked": unasked, "facts": _facts(look)}


def _checked(check: Check, look: Look) -> tuple[list[dict[str, Any]], str | None]:
    """Returns what a check found, and why it could not be asked to the end."""
    found: list[dict[str, Any]] = []
    try:
        for one in check(look):
            found.append(vars(one))  # noqa: PERF401 - what was found before the answer failed counts
    except CouldNotAsk as error:
        return found, str(error)
    except (ValueError, KeyError, IndexError, OSError) as error:
        return found, f"the answer is not understood: {error!r}"
    return found, None


def _facts(look: Look) -> dict[str, Any]:
    """Returns what should be the same on all nodes of a cluster; none where it cannot be asked."""
    return {
        "kernel": (look.text("/proc/sys/kernel/osrelease") or "").strip() or None,
        "docker": _said(look, ["docker", "version", "--format", "{{.Server.Version}}"]),
        "image_store": _image_store(look),
        "driver": _driver(look),
        "addresses": _addresses(look),
    }


def _image_store(look: Look) -> str | None:
    status = _said(look, ["docker", "info", "--format", "{{json .DriverStatus}}"])
    if status is None:
        return None
    return "containerd" if "containerd.snapshotter" in json.dumps(status) else "classic"


def _driver(look: Look) -> str | None:
    version = look.text("/proc/driver/nvidia/version")
    return version.splitlines()[0].strip() if version else None


def _addresses(look: Look) -> list[str] | None:
    try:
        return network.own_addresses(look)
    except (CouldNotAsk, ValueError, KeyError):
        return None  # the checks of addresses say why


def _said(look: Look, command: list[str]) -> str | None:
    try:
        return look.run(command).strip()
    except CouldNotAsk:
        return None
