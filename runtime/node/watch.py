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
    told: dict[str, Any] = {}
    told_at = 0.0
    while True:
        report = _watch_once(request)
        if report["state"] != "running":
            return report
        changed = _summary(report) != _summary(told)
        if changed or time.monotonic() - told_at >= _HEARTBEAT_SECONDS:
            print(json.dumps(report), flush=True)
            told, told_at = report, time.monotonic()
        time.sleep(_POLL_SECONDS)


def report_rank(request: dict[str, Any]) -> dict[str, Any]:
    """Says once what `watch_rank` says continually."""
    container = request["container"]
    found = inspect("container", container)
    running = bool(found and found["State"]["Running"] and not found["State"]["Restarting"])
    return {
        "state": "running" if running else "ended" if found else "absent",
        "exit_code": found["State"]["ExitCode"] if found else None,
        "generation": (found["Config"].get("Labels") or {}).get("gb10-serving.generation") if found else None,
        "supervisor": shown_status(request) if running else None,
        "last_lines": _last_lines(container) if found else [],
        "seconds_since_start": _seconds_since(found["State"]["StartedAt"]) if found else None,
    }


def _summary(report: dict[str, Any]) -> tuple[Any, ...]:
    """Returns what of a report is news."""
    supervisor = report.get("supervisor") or {}
    return report.get("state"), supervisor.get("state"), supervisor.get("waiting_for"), supervisor.get("cause")


def _last_lines(container: str) -> list[str]:
    result = docker("logs", "--tail", str(_LAST_LINES), container, check=False)
    lines = [line[:300] for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    return lines[-_LAST_LINES:]


def _watch_once(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the report, with fewer lines while the rank runs: they are sent every two seconds."""
    report = report_rank(request)
    if report["state"] == "running":
        report["last_lines"] = report["last_lines"][-_HEARTBEAT_LINES:]
    return report


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
