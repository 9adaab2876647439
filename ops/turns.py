"""Members of a pool change one after the other: the next one gives up its ranks when the one before answers right."""

import sys
import time
from typing import Any

from ops.errors import OperationError
from ops.remote import NodeError, run_on_node
from spec.connection import Connection

_POLL_SECONDS = 1.0
_SAY_SECONDS = 15.0
_PARKED = ("tripped", "failed")


def take_turn(request: dict[str, Any]) -> dict[str, Any]:
    """Returns when a member of a pool may be stopped.

    That is at once where users lose nothing, because the router sends it no requests; else when every member before it
    is what this `up` makes of it, and answers right. So at least one member serves throughout.

    Args:
        request: `group`, `storage_folder`, `router` (`connection`, `folder`, `container`), `before` (members in the
            order in which they change, each `group`, `generation`, and of its head `connection`, `container`),
            `wait_seconds`, `absent_seconds`.

    Raises:
        OperationError: a member before it did not come back; this one is left as it is.
    """
    if request["before"] and _takes_requests(request):
        for member in request["before"]:
            _wait_for(member, request)
    return {"turn": request["group"]}


def _takes_requests(request: dict[str, Any]) -> bool:
    router = request["router"]
    asked = {"folder": router["folder"], "container": router["container"]}
    try:
        found = run_on_node(
            Connection.model_validate(router["connection"]), request["storage_folder"], "router-members", asked
        )
    except NodeError as error:
        print(f"{request['group']}: the router cannot be asked, so it takes its turn: {error}", file=sys.stderr)
        return False
    return found["members"].get(request["group"], {}).get("status") == "UP"


def _wait_for(member: dict[str, Any], request: dict[str, Any]) -> None:
    started = said = seen = time.monotonic()
    while True:
        state, report = _state(member, request["storage_folder"])
        now = time.monotonic()
        if state == "unreachable":
            # This `up` cannot change it either, and waiting would not bring it back.
            print(f"{request['group']}: {member['group']} cannot be asked and is not waited for", file=sys.stderr)
            return
        if state == "right":
            return
        if state != "absent":
            seen = now
        if state in ("failed", "wrong") or now - seen > request["absent_seconds"]:
            raise OperationError(_left(member, request, state, report))
        if now - started > request["wait_seconds"]:
            raise OperationError(_left(member, request, f"{state} after {request['wait_seconds']} s", report))
        if now - said > _SAY_SECONDS:
            said = now
            print(f"{request['group']} waits for {member['group']}, which is {state}", file=sys.stderr, flush=True)
        time.sleep(_POLL_SECONDS)


def _state(member: dict[str, Any], storage_folder: str) -> tuple[str, dict[str, Any]]:
    """Returns `right`, `wrong`, `failed`, `absent`, `unreachable` or what it does meanwhile, and the report."""
    asked = {"storage_folder": storage_folder, "container": member["container"]}
    try:
        report = run_on_node(Connection.model_validate(member["connection"]), storage_folder, "report-rank", asked)
    except NodeError:
        return "unreachable", {}
    if report["state"] == "absent":
        return "absent", report
    if report["generation"] != member["generation"]:
        return "about to change", report
    shown = report["supervisor"] or {}
    if shown.get("state") in _PARKED:
        return "failed", report
    if shown.get("answer"):
        return shown["answer"], report
    return shown.get("state", report["state"]), report


def _left(member: dict[str, Any], request: dict[str, Any], state: str, report: dict[str, Any]) -> str:
    cause = ((report.get("supervisor") or {}).get("cause") or {}).get("text")
    return (
        f"{member['group']} is {state}{f': {cause}' if cause else ''}, so {request['group']} was left as it is and "
        f"goes on serving. Way out: mend {member['group']} (`./fleet status`) or take the change back; then `up` again"
    )
