"""Runs one transfer from the controller: sessions on all nodes, rounds until every receiver has everything.

A round is one attempt in one shape. When something breaks in it, the round is stopped, the node that broke it is left
out, and the next round goes on from what has arrived; a node that was left out gets one more chance at the end.
"""

import queue
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ops.errors import OperationError
from ops.node_session import NodeSession
from ops.progress import Report
from spec import transfer_shape
from spec.party import Party

if TYPE_CHECKING:
    from ops.transfers import Receiver, TransferFile

MODULE = "runtime.transfer"
SILENCE_SECONDS = 30
"""A node that takes no byte for so long, although there are some for it, counts as broken."""

PROBE_SECONDS = 0.15
PROBE_FROM_BYTES = 64 << 20
# Of what is moved anyway; a measurement must not cost more than it saves.
_PROBE_SHARE = 32
"""Below this much data per receiver a star is taken unmeasured."""

COMPARE_FROM_SECONDS = 4
"""Where the star would take less, other shapes are not measured: that would cost more than it can save."""

LIFE_SIGN_SECONDS = 5
_EXPLANATION_SECONDS = 1
_STOP_SECONDS = 15
_TELL_SECONDS = 5
_CHANCES = 2


@dataclass
class Member:
    """A node of a transfer and what is known of it.

    Attributes:
        party: the node.
        session: with it; none before the first and after it has ended.
        missing: numbers of the files it lacks, with the byte from which it goes on.
        missing_bytes, present_bytes: what that amounts to.
        port: where it listens.
        cores: how many processors it has.
        chances: how often it may still break.
        left_out: why it does not take part in the next round; none if it does.
        failed: why it takes part no more.
        wrong: numbers of files of which a wrong copy came, with how often.
        round_bytes: what the current round has brought it.
        moved_bytes: what earlier rounds have brought it.
        bypassed: what broke on the way to it.
    """

    party: "Party"
    session: NodeSession | None = None
    missing: dict[int, int] = field(default_factory=dict)
    missing_bytes: int = 0
    present_bytes: int | None = None
    port: int = 0
    cores: int = 1
    chances: int = _CHANCES
    left_out: str | None = None
    failed: str | None = None
    wrong: dict[int, int] = field(default_factory=dict)
    round_bytes: int = 0
    moved_bytes: int = 0
    bypassed: list[str] = field(default_factory=list)

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.party.node


@dataclass
class Break:
    """Something that ended a round early, as one node saw it.

    Attributes:
        seen_by: the node that tells.
        who: "self", "child" or "parent" of it.
        node: which child.
        reason: in words.
    """

    seen_by: str
    who: str
    node: str
    reason: str


class FanOut:
    """One transfer. Use as a context, so that every session is ended.

    Args:
        source, source_folder, receivers, files, report: as in ops.transfers.fan_out.
        degree: to how many others each node sends; none has it measured where that is worth while.
    """

    def __init__(
        self,
        source: "Party",
        source_folder: str,
        receivers: Sequence["Receiver"],
        files: Sequence["TransferFile"],
        report: Report,
        degree: int | None = None,
    ) -> None:
        self._files = files
        self._report = report
        self._source = Member(source)
        self._source_folder = source_folder
        self._folders = {receiver.party.node: receiver.folder for receiver in receivers}
        self._members = {receiver.party.node: Member(receiver.party) for receiver in receivers}
        self._secret = secrets.token_bytes(32).hex()
        self._events: queue.Queue[tuple[Member, NodeSession, dict[str, Any]]] = queue.Queue()
        self._round_number = 0
        self._degree = degree
        self._source_is_ready = False
        self._lost_file: str | None = None
        self._over = threading.Event()
        self._life = threading.Thread(target=self._show_life, daemon=True)
        self._told = self._round_started = time.monotonic()

    def __enter__(self) -> "FanOut":
        self._life.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        members = [self._source, *self._members.values()]
        closers = [threading.Thread(target=member.session.close) for member in members if member.session]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()

    def run(self) -> dict[str, Member]:
        """Does it all. Returns the receivers.

        Raises:
            OperationError: some receiver could not be served; the others have been.
        """
        # Asked at once with the receivers, which saves a second; whether it answers matters once somebody lacks a file.
        self._open(self._source, "send", self._source_folder)
        self._open_receivers(list(self._members.values()))
        self._require_all_open()
        while self._next_members():
            self._wait_for_source()
            self._choose_shape(self._taking_part())
            self._run_round(self._taking_part())
        failures = [member.failed for member in self._members.values() if member.failed]
        if failures:
            raise OperationError("\n".join(failures))
        return self._members

    # Sessions

    def _show_life(self) -> None:
        while not self._over.wait(LIFE_SIGN_SECONDS):
            for member in [self._source, *self._members.values()]:
                if member.session:
                    member.session.show_life()

    def _open(self, member: Member, verb: str, folder: str) -> None:
        request = {
            "secret": self._secret,
            "node": member.node,
            "address": member.party.address,
            "folder": folder,
            "silence_seconds": SILENCE_SECONDS,
            "files": [[file.path, file.size_bytes, file.sha256] for file in self._files],
        }
        member.session = NodeSession(
            member.node,
            member.party.connection,
            member.party.storage_folder,
            MODULE,
            verb,
            request,
            lambda session, event: self._events.put((member, session, event)),
        )

    def _next_event(self, seconds: float) -> tuple[Member, dict[str, Any]] | None:
        """Returns the next event of a session that still counts; none when the time is over."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                member, session, event = self._events.get(timeout=left)
            except queue.Empty:
                return None
            if session is not member.session:
                continue
            if event["event"] == "ended":
                member.session = None
            if event["event"] == "ready":
                member.cores = event["cores"]
            return member, event
        return None

    def _open_receivers(self, members: list[Member]) -> None:
        """Opens sessions at once; where another transfer has a folder, all are asked for one after the other.

        Two transfers that both wait for a folder of the other would wait for ever; in one order they cannot.
        """
        for member in members:
            self._open(member, "receive", self._folders[member.node])
        busy = self._wait_for_looks(members)
        if not busy:
            return
        self._report(f"another transfer is filling {', '.join(sorted(busy))}: waiting for it")
        opened = sorted((member for member in members if member.session), key=lambda member: member.node)
        for member in opened:
            if member.node not in busy:
                self._send(member, {"do": "unlock"})
        for member in opened:
            self._send(member, {"do": "lock"})
            self._wait_for_looks([member])

    def _wait_for_looks(self, members: list[Member]) -> set[str]:
        """Waits until each has told what it has, or has ended. Returns those whose folder is taken."""
        waiting, busy = {member.node for member in members if member.session}, set[str]()
        while waiting:
            found = self._next_event(_TELL_SECONDS)
            if found is None:
                self._report(f"waiting for {', '.join(sorted(waiting))} to look at what is there")
                continue
            member, event = found
            if member is self._source:
                self._note_source(event)
                continue
            if event["event"] == "ended":
                self._lost(member, event["reason"], final=True)
            elif event["event"] == "busy":
                busy.add(member.node)
            elif event["event"] == "looked":
                self._note_look(member, event)
            else:
                continue
            waiting.discard(member.node)
        return busy

    def _note_look(self, member: Member, event: dict[str, Any]) -> None:
        member.missing = dict(event["missing"])
        member.missing_bytes = event["missing_bytes"]
        member.port, member.cores = event["port"], event["cores"]
        if member.present_bytes is None:
            member.present_bytes = event["present_bytes"]

    def _require_all_open(self) -> None:
        """Nothing is moved before every receiver can take it."""
        failures = [member.failed for member in self._members.values() if member.failed]
        if failures:
            raise OperationError("\n".join(["nothing was moved:", *failures]))

    def _note_source(self, event: dict[str, Any]) -> None:
        """Keeps what the source says while somebody else is waited for."""
        self._source_is_ready |= event["event"] == "ready"
        if event["event"] == "ended":
            self._source.failed = event["reason"] or "it ended"

    def _wait_for_source(self) -> None:
        while not self._source_is_ready and not self._source.failed:
            found = self._next_event(_TELL_SECONDS)
            if found is None:
                self._report(f"waiting for {self._source.node}, which has the files")
            elif found[0] is self._source:
                self._note_source(found[1])
            elif found[1]["event"] == "ended":
                self._lost(found[0], found[1]["reason"])
        if self._source.failed:
            self._source_is_gone(self._source.failed)

    def _source_is_gone(self, reason: str) -> None:
        raise OperationError(f"the source failed: {reason}. What has arrived stays: repeat to go on there")

    def _send(self, member: Member, command: dict[str, Any]) -> None:
        if member.session:
            member.session.send(command)

    # Who takes part

    def _taking_part(self) -> list[Member]:
        return [m for m in self._members.values() if m.missing and not m.failed and not m.left_out]

    def _next_members(self) -> list[Member]:
        """Returns who lacks something; when only those that were left out do, they get their next chance."""
        if not self._taking_part():
            again = [member for member in self._members.values() if member.left_out and not member.failed]
            for member in again:
                member.left_out = None
            self._open_receivers([member for member in again if member.session is None])
        return self._taking_part()

    def _lost(self, member: Member, reason: str | None, final: bool = False) -> None:
        """Leaves a member out, for good if it has had its chances."""
        member.chances -= 1
        text = reason or f"{member.node} ended"
        if final or member.chances <= 0:
            member.failed = text
        else:
            member.left_out = text
            self._report(f"{member.node} is left out for now: {text}")

    # Shape

    def _choose_shape(self, members: list[Member]) -> None:
        """Measures shapes with bytes that are thrown away, where there is enough to move to make it worth while."""
        if self._degree is not None or len(members) < 2:
            return
        if min(member.missing_bytes for member in members) < PROBE_FROM_BYTES:
            self._degree = len(members)
            return
        rates: dict[int, float] = {}
        for degree in transfer_shape.degrees_to_measure(len(members)):
            rate = self._measured_rate(self._ordered(members), degree)
            if rate is None:
                return
            rates[degree] = rate
            if min(member.missing_bytes for member in members) / rate < COMPARE_FROM_SECONDS:
                break
        self._degree = transfer_shape.best_degree(rates)
        measured = ", ".join(f"{_shape(degree, len(members))} {_size(rate)}/s" for degree, rate in rates.items())
        self._report(f"shape: {_shape(self._degree, len(members))} (measured: {measured})")

    def _measured_rate(self, order: list[Member], degree: int) -> float | None:
        most_bytes = min(member.missing_bytes for member in order) // _PROBE_SHARE
        breaks, ends = self._play(order, degree, most_bytes, [])
        if breaks or any(member.node not in ends for member in order):
            self._settle(breaks, order)
            return None
        rates = [ends[m.node]["bytes"] / ends[m.node]["seconds"] for m in order if ends[m.node]["seconds"]]
        return min(rates) if len(rates) == len(order) else None

    def _ordered(self, members: list[Member]) -> list[Member]:
        switches = {member.node: member.party.switch for member in members}
        return [self._members[node] for node in transfer_shape.ordered(self._source.party.switch, switches)]

    # Rounds

    def _run_round(self, members: list[Member]) -> None:
        if not members:
            return
        wanted: dict[int, int] = {}
        for member in members:
            for index, offset in member.missing.items():
                wanted[index] = min(offset, wanted.get(index, offset))
        jobs = sorted(wanted.items(), key=lambda job: self._files[job[0]].size_bytes, reverse=True)
        self._told = self._round_started = time.monotonic()
        order = self._ordered(members)
        breaks, _ = self._play(order, self._degree or len(members), 0, jobs)
        for member in members:
            member.moved_bytes += member.round_bytes
            member.round_bytes = 0
        self._settle(breaks, order)
        self._look_again(members)
        self._judge_wrong_files(members)

    def _play(
        self, order: list[Member], degree: int, probe_bytes: int, jobs: list[tuple[int, int]]
    ) -> tuple[list[Break], dict[str, dict[str, Any]]]:
        """Starts a round and waits for its end. Returns what broke it, and each node's last word."""
        self._round_number += 1
        parents = transfer_shape.parents([member.node for member in order], degree)
        count = transfer_shape.streams(
            [self._source.cores, *(member.cores for member in order)],
            len(jobs) if jobs else transfer_shape.MOST_STREAMS,
        )
        members = {member.node: member for member in order}
        for member in [*reversed(order), self._source]:
            parent = parents.get(member.node)
            upstream = members[parent] if parent else self._source
            me = None if member is self._source else member.node
            self._send(
                member,
                {
                    "do": "round",
                    "round": self._round_number,
                    "streams": count,
                    "parent": {"node": upstream.node, "address": upstream.party.address},
                    "children": [
                        {"node": child.node, "address": child.party.address, "port": child.port}
                        for child in order
                        if parents[child.node] == me
                    ],
                    "probe_seconds": PROBE_SECONDS if probe_bytes else 0,
                    "probe_bytes": probe_bytes // count,
                    "files": jobs if member is self._source else [],
                },
            )
        return self._watch([self._source, *order], probe_bytes > 0)

    def _watch(self, players: list[Member], probing: bool) -> tuple[list[Break], dict[str, dict[str, Any]]]:
        waiting = {member.node for member in players}
        ends: dict[str, dict[str, Any]] = {}
        breaks: list[Break] = []
        stop_at = give_up_at = float("inf")
        while waiting:
            found = self._next_event(min(1.0, max(0.05, min(stop_at, give_up_at) - time.monotonic())))
            if found is not None and self._note(found[0], found[1], breaks, probing):
                waiting.discard(found[0].node)
                ends[found[0].node] = found[1]
            now = time.monotonic()
            if breaks and give_up_at == float("inf"):
                explained = any(seen.who == "self" for seen in breaks)
                stop_at = now if explained else min(stop_at, now + _EXPLANATION_SECONDS)
            if now >= stop_at:
                for member in players:
                    self._send(member, {"do": "stop"})
                stop_at, give_up_at = float("inf"), now + _STOP_SECONDS
            if now >= give_up_at:
                breaks += [Break(node, "self", node, f"{node} does not stop when asked to") for node in waiting]
                break
            if not probing:
                self._tell_progress(players)
        return breaks, ends

    def _note(self, member: Member, event: dict[str, Any], breaks: list[Break], probing: bool) -> bool:
        """Takes an event in. Returns whether the node's part in the round is over."""
        kind = event["event"]
        if kind == "ended":
            breaks.append(Break(member.node, "self", member.node, event["reason"] or f"{member.node} ended"))
            return True
        if event.get("round", self._round_number) != self._round_number:
            return False
        if kind in ("progress", "round-ended") and not probing:
            member.round_bytes = event["bytes"]
        if kind == "report":
            self._note_report(member, event, breaks)
        return kind == "round-ended"

    def _note_report(self, member: Member, event: dict[str, Any], breaks: list[Break]) -> None:
        if event["kind"] == "break":
            breaks.append(Break(member.node, event["who"], event.get("node", member.node), event["reason"]))
        elif event["kind"] == "refused":
            self._report(f"{member.node} refused a connection from {event['address']}: {event['reason']}")
        elif event["kind"] == "wrong":
            index = event["index"]
            member.wrong[index] = member.wrong.get(index, 0) + 1
            self._report(f"{member.node}: {self._files[index].path} arrived with a wrong byte")
        elif event["kind"] == "lost" and member is self._source:
            self._lost_file = f"{self._source.node}: {self._files[event['index']].path}: {event['reason']}"

    def _settle(self, breaks: list[Break], members: list[Member]) -> None:
        """Decides who broke the round, and leaves just that node out."""
        if not breaks:
            return
        culprit = guilty(breaks, [member.node for member in members])
        if culprit.node == self._source.node and culprit.node not in {member.node for member in members}:
            self._source_is_gone(culprit.reason)
        member = self._members[culprit.node]
        if culprit.who == "self":
            reason = culprit.reason if culprit.reason.startswith(member.node) else f"{member.node}: {culprit.reason}"
        else:
            reason = f"{culprit.seen_by} cannot send to {member.node} ({member.party.address}): {culprit.reason}"
        for other in members:
            if other is not member:
                other.bypassed.append(reason)
        self._lost(member, reason)

    def _look_again(self, members: list[Member]) -> None:
        asked = [member for member in members if member.session]
        for member in asked:
            self._send(member, {"do": "look"})
        self._wait_for_looks(asked)

    def _judge_wrong_files(self, members: list[Member]) -> None:
        """Ends the transfer of a file whose second copy was wrong as well, or that the source cannot give."""
        if self._lost_file:
            raise OperationError(
                f"{self._lost_file}. It was changed since the manifest was made: make a new one. What has arrived stays"
            )
        for member in members:
            for index, times in member.wrong.items():
                if times >= _CHANCES and index in member.missing:
                    raise OperationError(self._why_wrong(member, index))

    def _why_wrong(self, member: Member, index: int) -> str:
        file = self._files[index]
        self._send(self._source, {"do": "hash", "index": index})
        found = None
        while found is None or found[0] is not self._source or found[1]["event"] not in ("hashed", "ended"):
            found = self._next_event(_TELL_SECONDS)
        if found[1]["event"] == "ended":
            self._source_is_gone(found[1]["reason"] or "it ended")
        said = found[1].get("sha256")
        if said == file.sha256:
            cause = (
                f"{self._source.node} reads it right from its disk, so bytes change on the way or in {member.node}'s "
                f"memory: check the cables, ports and memory of {member.node}"
            )
        else:
            cause = (
                f"{self._source.node} itself does not have it as the manifest says (it has {said}): it was changed "
                "since, or its disk is damaged; make a new manifest or fetch it anew"
            )
        return f"{member.node}: {file.path} arrived twice with another SHA-256 than {file.sha256}: {cause}"

    # Progress

    def _tell_progress(self, players: list[Member]) -> None:
        now = time.monotonic()
        if now - self._told < _TELL_SECONDS:
            return
        for member in players:
            if member is not self._source:
                rate = member.round_bytes / max(now - self._round_started, 0.1)
                self._report(progress_line(member.node, member.round_bytes, member.missing_bytes, rate))
        self._told = now


def progress_line(node: str, done_bytes: int, all_bytes: int, bytes_per_second: float) -> str:
    """Returns how far a node is: bytes, rate and the time that is left."""
    left = f"{(all_bytes - done_bytes) / bytes_per_second:.0f} s left" if bytes_per_second else "waiting"
    return f"{node}: {_size(done_bytes)} of {_size(all_bytes)}, {_size(bytes_per_second)}/s, {left}"


def guilty(breaks: Sequence[Break], order: Sequence[str]) -> Break:
    """Returns the break that explains the others.

    A node that speaks of itself is believed first. Otherwise it is the one that is furthest from the source among
    those to whom somebody could not send: whoever stands before it only waits for it. A node that only lost its parent
    comes last.
    """
    for mine in breaks:
        if mine.who == "self":
            return mine
    lost_children = [seen for seen in breaks if seen.who == "child"]
    if lost_children:
        place = {node: number for number, node in enumerate(order)}
        return max(lost_children, key=lambda seen: place.get(seen.node, -1))
    return breaks[0]


def _shape(degree: int, receivers: int) -> str:
    if degree >= receivers:
        return "star"
    return "chain" if degree == 1 else f"tree of {degree}"


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
