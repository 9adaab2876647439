"""One rank from its container's start to its end: resolve, gather, start, serve, stop, and again."""

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from runtime.fabric.result import FabricError
from runtime.rank import fabric, processes, signals
from runtime.rank.agreement import all_done, all_ended, causes_of, earliest, gather, lost
from runtime.rank.endpoint import answer_peers
from runtime.rank.engine import ACCELERATOR_MEMORY, RAY_COUNT, ending, environment_for
from runtime.rank.exchange import Traffic
from runtime.rank.front import Front
from runtime.rank.guard import MemoryGuard
from runtime.rank.health import Health
from runtime.rank.listening import Listening
from runtime.rank.page_cache import PageCacheRelease
from runtime.rank.peers import Peers
from runtime.rank.record import Parked, Record
from runtime.rank.request import RankRequest
from runtime.rank.status import (
    ENDED_BY_A_PEER,
    FAILED,
    GATHERING,
    RESOLVING,
    SERVING,
    STARTING,
    STOPPING,
    TRIPPED,
    Cause,
    Identity,
    Status,
)
from runtime.rank.surroundings import limit_problems, wipe_autotune_cache

_TICK_SECONDS = 0.2
_GATHER_TICK_SECONDS = 0.1
_GRACE_AFTER_LOSS_SECONDS = 1.0
_CAUSES_SECONDS = 1.2
_LINGER_SECONDS = 2.0
_SAY_OTHER_SECONDS, _SAY_AGAIN_SECONDS = 1.0, 10.0


class _AskedToStopError(Exception):
    """Raised where nothing runs that would have to be stopped first."""


class _ParkError(Exception):
    """Raised when the rank must stay down until `pulumi up`."""

    def __init__(self, state: str, cause: Cause) -> None:
        super().__init__(cause.text)
        self.parked = Parked(state, cause)


@dataclass(frozen=True)
class _Ending:
    """Why a process is no longer followed.

    Attributes:
        code: its exit code, if it has ended.
        cause: why it has to be ended, if it has not.
        asked: somebody wants this rank to stop.
        tripped: the memory guard killed it.
    """

    code: int | None = None
    cause: Cause | None = None
    asked: bool = False
    tripped: bool = False


def _without_figures(texts: tuple[str, ...]) -> str:
    return re.sub(r"\d", "", "\n".join(texts))


class Supervisor:
    """The first process of a rank."""

    def __init__(self, request: RankRequest, record: Record, identity: Identity, key: bytes) -> None:
        """Prepares everything that later needs no more memory; nothing is asked or started yet.

        Args:
            request: the rank.
            record: what it remembers.
            identity: what it has in common with its peers.
            key: of the group.
        """
        self._request, self._record, self._key = request, record, key
        self._memory = record.read()
        self._instance = secrets.token_hex(6)
        self._attempt = 0
        self._asked = False
        self._ended: dict[int, int] = {}
        self._engine: dict[str, Any] = {}
        self._said: tuple[tuple[str, ...], float] = ((), 0.0)
        self._status = Status(request.rank, request.own.node, RESOLVING, identity, self._instance)
        self._guard = MemoryGuard(request.guard, processes.kill_all)
        self._traffic = Traffic()
        self._endpoint: Listening | None = None
        self._peers: Peers | None = None
        self._front: Front | None = None

    def run(self) -> int:
        """Runs the rank and returns the exit code of its container."""
        try:
            if self._memory.parked:
                return self._stay_parked(self._memory.parked)
            while True:
                code = self._one_life()
                if code is not None:
                    return code
        except _ParkError as error:
            try:
                return self._stay_parked(error.parked)
            except _AskedToStopError:
                return 0
        except _AskedToStopError:
            return 0
        finally:
            if self._endpoint:
                self._endpoint.close()

    def status(self) -> dict[str, Any]:
        """Returns what is answered to peers and people: what was decided, with the figures of this moment."""
        engine = dict(self._engine)
        if "started" in engine:
            engine["seconds"] = int(time.monotonic() - engine.pop("started"))
        return replace(
            self._status,
            clock_seconds=time.time(),
            memory=self._guard.figures(),
            engine=engine,
            exchanged_bytes=self._traffic.bytes,
        ).to_plain()

    # What happens in one life of the group.

    def _one_life(self) -> int | None:
        """Resolves, gathers and runs the engine once; returns an exit code if the container is to end."""
        environment = self._resolve()
        view = self._gather()
        return self._run_engine(view, environment)

    def _resolve(self) -> dict[str, str]:
        self._publish(state=RESOLVING, ready=False, view=None, waiting_for=(), answer=None, draining=False)
        for problem in limit_problems(self._request.limits):
            self._fail(problem)
        self._open_endpoint()
        try:
            found = fabric.resolve_fabric(self._request, self._rest, self._say)
        except FabricError as error:
            self._fail(f"fabric: {error}")
        for notice in found.notices:
            self._say(notice)
        self._publish(rails=fabric.rails_to_plain(found))
        if not self._open_endpoint():
            self._fail(f"the status endpoint cannot listen: {'; '.join(self._status.waiting_for)}")
        return environment_for(self._request, fabric.environment_of_engine(found))

    def _gather(self) -> tuple[str, ...]:
        """Returns the view of a group that starts together now."""
        request = self._request
        self._attempt += 1
        self._publish(state=GATHERING, token=f"{self._instance}-{self._attempt}", ready=False, view=None)
        self._wait_for_memory()
        self._publish(ready=True)
        deadline = time.monotonic() + request.patience.gather
        while True:
            sights = self._sights()
            found = gather(self._status, request.others, sights)
            if found.parked and found.parked.cause:
                raise _ParkError(found.parked.state, found.parked.cause)
            waiting = found.waiting_for
            if found.view:
                statuses = [self._status, *(sight.status for sight in sights.values() if sight.status)]
                waiting = (*waiting, *fabric.mtu_differences(statuses))
            self._publish(view=found.view, waiting_for=waiting)
            if found.view and found.may_start and not waiting:
                return found.view
            if time.monotonic() > deadline:
                self._fail(
                    f"the group did not come together within {request.patience.gather:g} s: {'; '.join(waiting)}"
                )
            self._rest(_GATHER_TICK_SECONDS)

    def _wait_for_memory(self) -> None:
        """Memory lags behind an engine that has ended: waits until what the plan needs is really free."""
        required = self._request.required_bytes
        deadline = time.monotonic() + self._request.patience.memory
        while (free := self._free_bytes()) < required:
            text = f"memory: {free >> 20} MiB are available, {required >> 20} MiB are needed"
            self._publish(waiting_for=(text,))
            if time.monotonic() > deadline:
                self._fail(f"{text}, for {self._request.patience.memory:g} s: end what else uses memory on this node")
            self._rest(_TICK_SECONDS)
        self._publish(waiting_for=())

    def _free_bytes(self) -> int:
        """Returns what an engine could take: of the accelerators' own memory the least, where they have any."""
        if not self._request.accelerator_memory:
            return self._guard.available_bytes
        with open(os.memfd_create("free"), "r+b") as answer:  # noqa: PTH123 - a descriptor
            try:
                process = processes.start(ACCELERATOR_MEMORY, os.environ, answer.fileno())
            except OSError as error:
                self._fail(f"the accelerators' memory cannot be asked for: {error}")
            while process not in self._ended:
                self._rest(_TICK_SECONDS)
            answer.seek(0)
            found, code = answer.read().split(), self._ended.pop(process)
        if code != 0 or not found:
            self._fail(f"the accelerators' memory cannot be asked for: nvidia-smi {ending(code)}")
        return min(map(int, found)) << 20

    def _run_engine(self, view: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
        """Runs everything that the engine needs and the engine itself, until it has ended and all is gone."""
        self._publish(state=STARTING, waiting_for=())
        wipe_autotune_cache(environment)
        self._guard.arm()
        cache = PageCacheRelease(self._request.page_cache)
        health = Health(self._request.http_port) if self._request.serves and self._request.rank == 0 else None
        try:
            self._open_front()
            end = self._start_and_follow(environment, health, cache)
        finally:
            cache.end()
            self._close_front()
            if health:
                health.end()
        return self._after(end, view)

    def _start_and_follow(
        self, environment: Mapping[str, str], health: Health | None, cache: PageCacheRelease
    ) -> _Ending:
        for step in self._request.before:
            end = self._run_step(step, environment)
            if end.code != 0:
                return end
        end = self._await_accelerators(environment)
        if end:
            return end
        try:
            engine = processes.start(self._request.argv, environment)
        except OSError as error:
            self._fail(f"the engine cannot be started: {error}")
        processes.prefer_as_victim(engine)
        self._engine = {"process": engine, "started": time.monotonic()}
        return self._follow(engine, health, cache)

    def _run_step(self, step: Sequence[str], environment: Mapping[str, str]) -> _Ending:
        try:
            process = processes.start(step, environment)
        except OSError as error:
            self._fail(f"{step[0]} cannot be started: {error}")
        end = self._follow(process, None, None)
        if end.code:
            return replace(end, code=None, cause=self._own_cause(f"{' '.join(step)} {ending(end.code)}"))
        return end

    def _await_accelerators(self, environment: Mapping[str, str]) -> _Ending | None:
        """Waits until Ray knows of all accelerators: vLLM started earlier fails in NCCL."""
        wanted = self._request.awaited_accelerators
        deadline = time.monotonic() + self._request.patience.gather
        while wanted:
            with open(os.memfd_create("ray"), "r+b") as answer:  # noqa: PTH123 - a descriptor
                end = self._follow(processes.start(RAY_COUNT, environment, answer.fileno()), None, None)
                answer.seek(0)
                known = int(answer.read().strip() or 0) if end.code == 0 else 0
            if end.code is None:
                return end
            if known >= wanted:
                break
            self._publish(waiting_for=(f"Ray knows of {known} accelerators of {wanted}",))
            if time.monotonic() > deadline:
                return _Ending(cause=self._own_cause(self._status.waiting_for[0]))
            self._pause(1.0)
        return None

    def _follow(self, process: int, health: Health | None, cache: PageCacheRelease | None) -> _Ending:
        """Waits until a process has ended or has to be ended."""
        request = self._request
        started = time.monotonic()
        while True:
            if self._guard.trip:
                return _Ending(tripped=True)
            if not self._guard.is_awake:
                self._fail("the memory guard has ended")
            if process in self._ended:
                return _Ending(code=self._ended.pop(process))
            if self._asked and self._is_drained():
                return _Ending(asked=True)
            if cause := lost(self._status, request.others, self._sights(), request.patience, time.time()):
                return _Ending(cause=cause)
            if cache and self._status.state == STARTING and request.serves:
                if self._is_serving(health):
                    cache.end()
                    self._memory = replace(self._memory, served=True)
                    self._record.write(self._memory)
                    self._publish(state=SERVING, waiting_for=())
                    if self._front:
                        self._front.begin()
                elif time.monotonic() - started > request.patience.start:
                    return _Ending(cause=self._own_cause(f"not serving within {request.patience.start:g} s"))
            if self._front and self._front.answer != self._status.answer:
                self._publish(answer=self._front.answer)
            self._pause(_TICK_SECONDS)

    def _is_serving(self, health: Health | None) -> bool:
        """A head serves when it is healthy, a worker when its head does."""
        if self._request.rank == 0:
            return health is not None and health.answered
        head = self._sights()[0].status
        return head is not None and head.state == SERVING and head.view == self._status.view

    # What a router of a pool is told.

    def _open_front(self) -> None:
        request = self._request
        if request.front and request.rank == 0:
            try:
                self._front = Front(request.front, request.http_port, request.secrets_folder / "api-key")
            except OSError as error:
                self._fail(f"port {request.front.port}, where the router asks, cannot be opened: {error.strerror}")

    def _close_front(self) -> None:
        if self._front:
            self._front.end()
        self._front = None

    def _is_drained(self) -> bool:
        """Tells whether a rank that was asked to stop may: a head that serves behind a router first ends what runs."""
        if self._front is None or self._status.state != SERVING:
            return True
        if not self._status.draining:
            self._publish(draining=True)
            self._say("draining: nothing new is taken")
        return self._front.is_drained()

    # What happens after it.

    def _after(self, end: _Ending, view: tuple[str, ...]) -> int | None:
        """Stops what is left of the engine and decides how it goes on."""
        if end.asked:
            return self._stop_as_asked()
        if end.code == 0 and not self._request.serves:
            return self._finish_job()
        trip = self._guard.trip
        if trip:
            cause = self._own_cause(f"{self._request.own.name}: {trip}")
        elif end.code is not None:
            cause = self._own_cause(f"the engine of {self._request.own.name} {ending(end.code)}")
        else:
            assert end.cause is not None
            cause = end.cause
        cause = self._stop(cause, view)
        if self._asked:
            raise _AskedToStopError
        if trip or self._guard.trip:
            raise _ParkError(TRIPPED, cause)
        if not self._request.serves:
            return self._fail_job(end.code if end.code is not None else ENDED_BY_A_PEER)
        self._count(cause, by_itself=end.code is not None or cause.rank == self._request.rank)
        return None

    def _stop(self, cause: Cause, view: tuple[str, ...]) -> Cause:
        """Ends the engine, confirms that nothing of it is left, and returns what came first on any rank."""
        self._publish(state=STOPPING, cause=cause, cause_view=view, waiting_for=(), answer=None)
        self._say(f"stopping: {cause.text}")
        processes.end_all(_GRACE_AFTER_LOSS_SECONDS, self._pause, self._say)
        self._guard.disarm()
        self._engine = {"gone_at_seconds": time.time()}
        self._ended.clear()
        deadline = time.monotonic() + _CAUSES_SECONDS
        while self._request.others and time.monotonic() < deadline:
            self._pause(_GATHER_TICK_SECONDS)
        first = earliest([cause, *causes_of(view, self._request.others, self._sights())])
        assert first is not None
        if first != cause:
            self._publish(cause=first)
        self._say(f"nothing of the engine is left; first cause: {first.text}")
        return first

    def _stop_as_asked(self) -> int:
        """Passes the request on, gives the engine its time, and returns its exit code."""
        cause = replace(self._own_cause(f"{self._request.own.name} was asked to stop"), asked=True)
        self._publish(state=STOPPING, cause=cause, cause_view=self._status.view, waiting_for=(), answer=None)
        engine, told = self._engine.get("process"), time.monotonic()
        deadline = told + self._request.patience.stop
        if engine:
            processes.ask_to_end(engine)
            while engine not in self._ended and time.monotonic() < deadline:
                self._pause(_TICK_SECONDS)
        code = self._ended.get(engine, 0) if engine else 0
        killed = bool(engine) and engine not in self._ended
        processes.end_all(0.0 if killed else _GRACE_AFTER_LOSS_SECONDS, self._pause, self._say)
        # Peers must hear that it was meant, or they would take it for a failure.
        while self._request.others and (left := told + _CAUSES_SECONDS - time.monotonic()) > 0:
            self._pause(left)
        return self._ended.get(engine, code) if engine else code

    def _finish_job(self) -> int:
        """Stays until every peer knows that this rank has done its part."""
        self._publish(state=STOPPING, ended=0)
        self._guard.disarm()

        def is_over() -> bool:
            others, sights = self._request.others, self._sights()
            return (
                all_done(others, sights)
                or lost(self._status, others, sights, self._request.patience, time.time()) is not None
            )

        self._linger(is_over)
        return 0

    def _fail_job(self, code: int) -> int:
        """Stays until every peer knows: one that has not started yet would wait for this rank."""
        self._publish(ended=code)
        self._linger(lambda: all_ended(self._request.others, self._sights(), self._request.patience))
        return code

    def _linger(self, is_over: Callable[[], bool]) -> None:
        """Waits until a job is over on the other ranks too, and then until they have seen that it is here."""
        while not self._asked and not is_over():
            self._pause(_TICK_SECONDS)
        if self._request.others:
            self._pause_whole(_LINGER_SECONDS)

    def _count(self, cause: Cause, by_itself: bool) -> None:
        """Remembers a stop; parks the rank if it must not start again by itself."""
        if cause.asked:
            return
        window_begin = time.time() - self._request.restarts.window_seconds
        stops = (*(stop for stop in self._memory.stops if stop.at_seconds > window_begin), cause)
        self._memory = replace(self._memory, stops=stops)
        self._record.write(self._memory)
        self._publish(restarts=len(stops))
        if by_itself and not self._memory.served:
            raise _ParkError(FAILED, cause)
        if len(stops) > self._request.restarts.most:
            first = stops[0]
            text = f"{len(stops)} stops within {self._request.restarts.window_seconds:g} s, the first: {first.text}"
            raise _ParkError(FAILED, replace(first, text=text))

    def _stay_parked(self, parked: Parked) -> int:
        """Stays down, says why, and ends only when somebody asks for it; nothing else runs here meanwhile."""
        processes.end_all(_GRACE_AFTER_LOSS_SECONDS, self._pause, self._say)
        self._guard.disarm()
        self._remember_parked(parked)
        while True:
            self._open_endpoint()
            for sight in self._sights().values() if self._peers else ():
                status = sight.status
                if (
                    status
                    and status.state == parked.state
                    and status.cause
                    and status.identity == self._status.identity
                    and status.cause.at_seconds < parked.cause.at_seconds
                ):
                    parked = Parked(parked.state, status.cause)
                    self._remember_parked(parked)
            self._rest(1.0)

    def _remember_parked(self, parked: Parked) -> None:
        self._memory = replace(self._memory, parked=parked)
        self._record.write(self._memory)
        self._publish(state=parked.state, cause=parked.cause, ready=False, view=None, waiting_for=())
        self._say(f"{parked.state}, and stays so until `pulumi up`: {parked.cause.text}")

    # Small things.

    def _open_endpoint(self) -> bool:
        """Lets peers see this rank as soon as its address is there, and asks them."""
        if self._endpoint is None:
            own = self._request.own
            try:
                self._endpoint = answer_peers(own.address, own.port, self._key, self.status, self._traffic)
            except OSError as error:
                self._publish(waiting_for=(f"{own.address}:{own.port}: {error.strerror}",))
                return False
            self._peers = Peers(own, self._request.others, self._key, self._traffic)
        return True

    def _sights(self) -> dict[int, Any]:
        assert self._peers is not None
        return self._peers.sights()

    def _own_cause(self, text: str) -> Cause:
        return Cause(self._request.rank, text, time.time())

    def _fail(self, text: str) -> NoReturn:
        raise _ParkError(FAILED, self._own_cause(f"{self._request.own.name}: {text}"))

    def _publish(self, **changes: Any) -> None:
        """Changes the status as one; what is new is told and left for the node to read."""
        before = self._status
        self._status = replace(before, **changes)
        if self._status.state != before.state:
            self._say(self._status.state)
        if self._status != before:
            self._record.show(self.status())
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Says what it waits for: soon when that is something else, rarely when only figures in it have changed."""
        waiting, now = self._status.waiting_for, time.monotonic()
        told, at = self._said
        pause = _SAY_AGAIN_SECONDS if _without_figures(waiting) == _without_figures(told) else _SAY_OTHER_SECONDS
        if waiting and waiting != told and now - at > pause:
            self._said = (waiting, now)
            self._say(f"{self._status.state}: waiting: {'; '.join(waiting)}")

    def _say(self, text: str) -> None:
        print(f"supervisor: {text}", file=sys.stderr, flush=True)

    def _pause(self, seconds: float) -> None:
        """Lets time pass, at most so long, and takes what comes meanwhile."""
        for number in signals.taken_within(seconds):
            if number == signals.CHILD_ENDED:
                self._ended.update(processes.reap())
            else:
                self._asked = True

    def _pause_whole(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._pause(left)

    def _rest(self, seconds: float) -> None:
        """Lets time pass where nothing runs that would have to be stopped first."""
        self._pause(seconds)
        if self._asked:
            raise _AskedToStopError
