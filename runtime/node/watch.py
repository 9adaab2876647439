"""Watches one rank's container from its node and tells the controller, line by line, until it ends."""

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from runtime.node.docker import docker, inspect
from runtime.node.rank_folders import ask, shown_status

_POLL_SECONDS = 0.5
_HEARTBEAT_SECONDS = 2.0
_LAST_LINES = 400
"""A failure passes through several processes of an engine, each with a traceback of its own: the cause stands first."""

_HEARTBEAT_LINES = 30


def watch_rank(request: dict[str, Any]) -> dict[str, Any]:
    """Writes one JSON line at each change and each two seconds; returns the last one when the rank has ended.

    Writing to a controller that went away ends the watch.

    Args:
        request: `storage_folder`, `container`.

    Returns:
        `state` (`running`, `ended` or `absent`), `exit_code`, `generation`, `supervisor` (its status as it last
        changed), `last_lines`, `seconds_since_start`.
    """
    told: tuple[Any, ...] = ()
    told_at = 0.0
    while True:
        seen = _look(request)
        if seen["state"] != "running":
            return _with_last_lines(request, seen, _LAST_LINES)
        if _summary(seen) != told or time.monotonic() - told_at >= _HEARTBEAT_SECONDS:
            print(json.dumps(_with_last_lines(request, seen, _HEARTBEAT_LINES)), flush=True)
            told, told_at = _summary(seen), time.monotonic()
        time.sleep(_POLL_SECONDS)


def report_rank(request: dict[str, Any]) -> dict[str, Any]:
    """Says once what `watch_rank` says continually, with more of the rank's last lines."""
    return _with_last_lines(request, _look(request), _LAST_LINES)


def _look(request: dict[str, Any]) -> dict[str, Any]:
    """Returns everything but the rank's words, which cost as much as all the rest."""
    found = inspect("container", request["container"])
    running = bool(found and found["State"]["Running"] and not found["State"]["Restarting"])
    return {
        "state": "running" if running else "ended" if found else "absent",
        "exit_code": found["State"]["ExitCode"] if found else None,
        "generation": (found["Config"].get("Labels") or {}).get("gb10-serving.generation") if found else None,
        "supervisor": shown_status(request) if running else None,
        "seconds_since_start": _seconds_since(found["State"]["StartedAt"]) if found else None,
    }


def _summary(report: dict[str, Any]) -> tuple[Any, ...]:
    """Returns what of a report is news."""
    supervisor = report.get("supervisor") or {}
    return report.get("state"), supervisor.get("state"), supervisor.get("waiting_for"), supervisor.get("cause")


def _with_last_lines(request: dict[str, Any], seen: dict[str, Any], most: int) -> dict[str, Any]:
    if seen["state"] == "absent":
        return {**seen, "last_lines": []}
    result = docker("logs", "--tail", str(most), request["container"], check=False)
    lines = [line[:300] for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    return {**seen, "last_lines": lines[-most:]}


def _seconds_since(moment: str) -> float:
    """Returns how long ago a moment was, as Docker writes it (UTC, with a fraction of up to nine digits)."""
    then = datetime.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return (datetime.now(timezone.utc) - then).total_seconds()


def rail_bytes(request: dict[str, Any]) -> int:
    """Returns how many bytes have gone over `interfaces`, both ways, without those of the supervisors.

    Args:
        request: `interfaces`; `supervisor` (`address`, `port`) with `storage_folder` and `container`.
    """
    moved = sum(_interface_bytes(interface) for interface in request["interfaces"])
    return moved - ask({**request, **request["supervisor"]})["exchanged_bytes"]


def _interface_bytes(interface: str) -> int:
    statistics = Path("/sys/class/net") / interface / "statistics"
    return sum(int((statistics / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
