"""Watches a group from its start to its first right answers, and fails within seconds when it cannot get there."""

import json
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any

from ops.diagnosis import LastWords, diagnosis
from ops.errors import OperationError
from ops.remote import node_command, run_on_node
from runtime.rank.status import ENDED_BY_A_PEER
from spec.connection import Connection

_SHOWN_LINES = 30
_PROGRESS_SECONDS = 15
_LEAST_RAIL_BYTES = 4096
_PARKED = ("tripped", "failed")
_SERVING = "serving"


@dataclass
class WatchedRank:
    """One rank as its node last reported it.

    Attributes:
        name: for people, such as `rank 0 (head) on lab-1`.
        plan: `rank`, `node`, `container`, `interfaces`, `supervisor` of the request.
        connection: how to reach its node.
        state: `unknown` until the first report, then `running`, `ended` or `absent`; of its container.
        supervisor: the status that its supervisor shows; empty before it has one.
        rail_bytes_before: what the engine had moved over the rails before it was asked anything.
    """

    name: str
    plan: dict[str, Any]
    connection: Connection
    state: str = "unknown"
    supervisor: dict[str, Any] = field(default_factory=dict)
    last_lines: list[str] = field(default_factory=list)
    exit_code: int | None = None
    rail_bytes_before: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether it ended as a job does that has done its work."""
        return self.state == "ended" and self.exit_code == 0

    @property
    def shown_state(self) -> str:
        """What people see: its supervisor's state where there is one."""
        return self.supervisor.get("state", self.state) if self.state == "running" else self.state

    @property
    def watched(self) -> dict[str, Any]:
        """What its node is asked to watch."""
        return {"container": self.plan["container"]}

    @property
    def rails(self) -> dict[str, Any]:
        """What its node is asked of the rails."""
        return {key: self.plan[key] for key in ("container", "interfaces", "supervisor")}

    def apply(self, report: dict[str, Any]) -> None:
        """Takes over what the node says."""
        self.state = report["state"]
        self.supervisor = report["supervisor"] or {}
        self.exit_code = report["exit_code"]
        self.last_lines = report["last_lines"] or self.last_lines


Event = tuple[WatchedRank | None, dict[str, Any] | OperationError]
"""What a watch (a rank) or the probe (none) has to say."""


def wait_until_ready(request: dict[str, Any]) -> dict[str, Any]:
    """Returns once every rank runs, the head answered every probe right and the rails carried the traffic.

    An offline job, which has no probe, is waited for until all its ranks have ended without error.

    Args:
        request: `storage_folder`, `group`, `ranks` (each `rank`, `node`, `container`, `interfaces`, `supervisor`,
            `connection`), `probe` (request of the head's probe, none for an offline job), `start_timeout_seconds`
            (until all serve), `watch_seconds` (the longest that it may take).

    Raises:
        OperationError: a rank ended, gave up or cannot be watched, the group did not serve or answer in time, the head
            answered wrong, or nothing went over the fabric.
    """
    ranks = [_watched(plan) for plan in request["ranks"]]
    for rank in ranks:
        # The first report also puts this version of the runtime on the node, which a watch takes for granted.
        rank.apply(_report(request, rank))
    events: queue.Queue[Event] = queue.Queue()
    watches = [_start_watch(rank, request, events) for rank in ranks]
    try:
        return _follow(request, ranks, events)
    except OperationError as error:
        raise _explained(request, ranks, error) from None
    finally:
        for watch in watches:
            watch.kill()
            watch.wait()


def _explained(request: dict[str, Any], ranks: list[WatchedRank], error: OperationError) -> OperationError:
    """Returns the error with cause and way out, where what any of the ranks said shows a known failure."""
    with ThreadPoolExecutor(max_workers=len(ranks)) as pool:  # a node that is off must not make the others wait
        list(pool.map(lambda rank: _ask_again(request, rank), ranks))
    ended_first = sorted(ranks, key=lambda rank: rank.state == "running")
    said = [
        LastWords(rank.name, rank.last_lines, rank.exit_code if rank.state == "ended" else None) for rank in ended_first
    ]
    known = diagnosis([LastWords("the message above", str(error).splitlines()), *said])
    return OperationError(f"{error}\n{known}") if known else error


def _watched(plan: dict[str, Any]) -> WatchedRank:
    role = " (head)" if plan["rank"] == 0 else ""
    return WatchedRank(
        f"rank {plan['rank']}{role} on {plan['node']}", plan, Connection.model_validate(plan["connection"])
    )


def _follow(request: dict[str, Any], ranks: list[WatchedRank], events: "queue.Queue[Event]") -> dict[str, Any]:
    started = time.monotonic()
    next_progress = started + _PROGRESS_SECONDS
    probing = False
    while True:
        try:
            rank, event = events.get(timeout=max(0.1, next_progress - time.monotonic()))
        except queue.Empty:
            _tell_progress(request["group"], ranks, time.monotonic() - started)
            if request["probe"] and not probing and time.monotonic() - started > request["start_timeout_seconds"]:
                raise _failure(request, ranks, OperationError(_too_late(request, ranks))) from None
            next_progress = time.monotonic() + _PROGRESS_SECONDS
            continue
        if isinstance(event, OperationError):
            raise _failure(request, ranks, event)
        if rank is None:
            _check_rails(request, ranks)
            return {"answered": event["answered"], "group": request["group"]}
        rank.apply(event)
        if request["probe"] is None and rank.is_done:
            if all(other.is_done for other in ranks):
                return {"ended": len(ranks), "group": request["group"]}
            continue
        if rank.exit_code == ENDED_BY_A_PEER and any(other.state == "running" for other in ranks):
            continue  # the peer that ended it stays until it knows, and then says why
        if rank.state != "running":
            raise _ended(rank, ranks)
        if rank.shown_state in _PARKED:
            raise _parked(request, rank, ranks)
        if request["probe"] and not probing and all(other.shown_state == _SERVING for other in ranks):
            probing = True
            for other in ranks if len(ranks) > 1 else ():
                other.rail_bytes_before = _rail_bytes(request, other)
            threading.Thread(target=_probe, args=(ranks[0], request, events), daemon=True).start()


def _start_watch(rank: WatchedRank, request: dict[str, Any], events: "queue.Queue[Event]") -> "subprocess.Popen[str]":
    seconds = request["watch_seconds"]
    watch = subprocess.Popen(
        node_command(rank.connection, request["storage_folder"], "watch-rank", seconds),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watch.stdin
    assert watch.stdout
    assert watch.stderr
    watch.stdin.write(json.dumps({"storage_folder": request["storage_folder"], **rank.watched}) + "\n")
    watch.stdin.flush()
    threading.Thread(target=_read_watch, args=(watch.stdout, watch.stderr, rank, events), daemon=True).start()
    return watch


def _read_watch(reports: IO[str], errors: IO[str], rank: WatchedRank, events: "queue.Queue[Event]") -> None:
    report: dict[str, Any] = {}
    for line in reports:
        report = json.loads(line)
        events.put((rank, report))
    if report.get("state") == "ended":
        return
    events.put((rank, OperationError(f"{rank.name} can no longer be watched: {errors.read().strip() or 'ssh ended'}")))


def _probe(head: WatchedRank, request: dict[str, Any], events: "queue.Queue[Event]") -> None:
    seconds = request["watch_seconds"]
    try:
        answer = run_on_node(
            head.connection, request["storage_folder"], "probe", request["probe"], timeout_seconds=seconds
        )
    except OperationError as error:
        events.put((None, error))
    else:
        events.put((None, answer))


def _check_rails(request: dict[str, Any], ranks: list[WatchedRank]) -> None:
    """Tensor parallel ranks that answered must have talked over the rails; a single rank has nobody to talk to."""
    for rank in ranks if len(ranks) > 1 else ():
        moved = _rail_bytes(request, rank) - (rank.rail_bytes_before or 0)
        if moved < _LEAST_RAIL_BYTES:
            raise OperationError(
                f"the answers are right, but {rank.name} moved only {moved} bytes over "
                f"{', '.join(rank.plan['interfaces'])} meanwhile: the ranks talk over another network. Compare the "
                "interface names in the cluster file with `ip address` on the node"
            )


def _rail_bytes(request: dict[str, Any], rank: WatchedRank) -> int:
    asked = {"storage_folder": request["storage_folder"], **rank.rails}
    return run_on_node(rank.connection, request["storage_folder"], "rail-bytes", asked)


def _failure(request: dict[str, Any], ranks: list[WatchedRank], error: OperationError) -> OperationError:
    """Returns the error with the state of every rank and the head's last words, since the cause is often there."""
    _ask_again(request, ranks[0])
    states = "\n".join(f"  {rank.name}: {rank.shown_state}" for rank in ranks)
    return OperationError(f"group {request['group']} is not ready: {error}\n{states}\n{_words_of(ranks[0])}")


def _ask_again(request: dict[str, Any], rank: WatchedRank) -> None:
    """Brings what is known of a rank up to date: the last report may be older than the failure."""
    try:
        rank.apply(_report(request, rank))
    except OperationError as error:
        rank.last_lines.append(f"(its node cannot be asked any more: {error})")


def _parked(request: dict[str, Any], rank: WatchedRank, ranks: list[WatchedRank]) -> OperationError:
    """Returns why a group gave up: the first cause of any rank, and the last words of the rank where it began."""
    for other in ranks:
        _ask_again(request, other)
    causes = [other.supervisor["cause"] for other in ranks if other.shown_state in _PARKED]
    first = min(causes or [rank.supervisor["cause"]], key=lambda cause: cause["at_seconds"])
    states = ", ".join(f"{other.name}: {other.shown_state}" for other in ranks)
    return OperationError(
        f"group {request['group']} is {rank.shown_state}: {first['text']} ({states})\n{_words_of(ranks[first['rank']])}"
    )


def _too_late(request: dict[str, Any], ranks: list[WatchedRank]) -> str:
    waiting = [f"{rank.name} waits for {text}" for rank in ranks for text in rank.supervisor.get("waiting_for", ())]
    return f"not serving within {request['start_timeout_seconds']} s{': ' if waiting else ''}{'; '.join(waiting)}"


def _ended(rank: WatchedRank, ranks: list[WatchedRank]) -> OperationError:
    what = f"ended with exit code {rank.exit_code}" if rank.state == "ended" else "has no container"
    others = ", ".join(f"{other.name}: {other.shown_state}" for other in ranks if other is not rank)
    return OperationError(
        f"{rank.name} {what} before the group was ready ({others or 'it is alone'})\n{_words_of(rank)}"
    )


def _report(request: dict[str, Any], rank: WatchedRank) -> dict[str, Any]:
    asked = {"storage_folder": request["storage_folder"], **rank.watched}
    return run_on_node(rank.connection, request["storage_folder"], "report-rank", asked)


def _words_of(rank: WatchedRank) -> str:
    return f"Last lines of {rank.name}:\n" + "\n".join(f"    {line}" for line in rank.last_lines[-_SHOWN_LINES:])


def _shown(rank: WatchedRank) -> str:
    waiting = rank.supervisor.get("waiting_for")
    return f"{rank.name} {rank.shown_state}{f' (waiting: {waiting[0]})' if waiting else ''}"


def _tell_progress(group: str, ranks: list[WatchedRank], seconds: float) -> None:
    states = "; ".join(_shown(rank) for rank in ranks)
    last = ranks[0].last_lines[-1][:120] if ranks[0].last_lines else "nothing said yet"
    print(f"{group}: {seconds:.0f} s: {states}; head says: {last}", file=sys.stderr, flush=True)
