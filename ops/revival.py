"""Brings back what stays down until `up`: a group that is tripped or failed, or whose ranks somebody stopped."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ops.errors import OperationError
from ops.readiness import wait_until_ready
from ops.remote import run_on_node
from spec.asking import ready_request
from spec.release import GroupPlan, RankPlan, Release

_PARKED = ("tripped", "failed")
_ANSWER_SECONDS = 20


def revive_parked_groups(release: Release, tell: Callable[[str], None]) -> None:
    """Starts every group again that is down although it is the one that this `up` deploys, and waits until it is ready.

    Runs before Pulumi looks for changes, which sees none in a group that has only stopped. A group that is about to be
    replaced is left alone, and so is a node that cannot be asked: Pulumi will tell.

    Args:
        release: what `up` deploys.
        tell: takes a line for the operator.

    Raises:
        OperationError: a group did not come back.
    """
    for group in release.groups if any(group.serves for group in release.groups) else ():
        if group.serves:
            _revive(release, group, tell)


def _revive(release: Release, group: GroupPlan, tell: Callable[[str], None]) -> None:
    reports = _reports(release, group)
    ours = {number: report for number, report in reports.items() if report["generation"] == group.hash}
    parked = [report["supervisor"] for report in ours.values() if _state(report) in _PARKED]
    ended = [group.ranks[number] for number, report in ours.items() if report["state"] == "ended"]
    if not parked and not ended:
        return
    if parked:
        first = min(parked, key=lambda status: status["cause"]["at_seconds"])
        tell(f"group {group.name} is {first['state']}: {first['cause']['text']}. It starts again now")
        for rank in group.ranks:
            _ask(release, rank, "stop-rank", {"grace_seconds": release.stop_grace_seconds})
        for rank in group.ranks:
            _ask(release, rank, "clear-parked", {})
    else:
        tell(f"group {group.name}: {', '.join(rank.container for rank in ended)} had been stopped and starts again now")
    for rank in reversed(group.ranks):
        _ask(release, rank, "start-rank", {})
    if len(ours) == len(group.ranks):
        wait_until_ready(ready_request(release, group))


def _reports(release: Release, group: GroupPlan) -> dict[int, dict[str, Any]]:
    """Returns what is known of each rank, by number; nothing of a rank whose node cannot be asked."""
    with ThreadPoolExecutor(max_workers=len(group.ranks)) as pool:
        answers = pool.map(lambda rank: _report(release, rank), group.ranks)
        return {number: report for number, report in enumerate(answers) if report is not None}


def _report(release: Release, rank: RankPlan) -> dict[str, Any] | None:
    try:
        return _ask(release, rank, "report-rank", {})
    except OperationError:
        return None


def _state(report: dict[str, Any]) -> str | None:
    running = report["state"] == "running" and report["supervisor"]
    return report["supervisor"]["state"] if running else None


def _ask(release: Release, rank: RankPlan, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    return run_on_node(
        release.nodes[rank.node].connection,
        release.storage_folder,
        verb,
        {"storage_folder": release.storage_folder, "container": rank.container, **request},
        timeout_seconds=_ANSWER_SECONDS + release.stop_grace_seconds,
    )
