"""Starts and stops groups of real supervisors again and again, kills at random, and checks by program what happened.

`python -m bench.rank_cycles --cycles 200 --groups 4`: three ranks a group on the loopback address, each the first
process of a namespace of its own, with tests/rank/cheap_child.py in place of an engine. Exit codes: 0 no case, 1 cases.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rank.group import LoopbackGroup

RANKS = 3
EVENTS = ("kill-engine", "kill-supervisor", "stop-and-start", "freeze", "kill-two", "nothing")
_FREEZE_SECONDS = 6.0
_LONGEST_SECONDS = 60.0


@dataclass
class Findings:
    """What a run of cycles showed.

    Attributes:
        cycles: that were completed.
        events: how often each happened.
        starts: engines that were started.
        meetings: of ranks of one view.
        strangers: where an engine lived beside, or met, one of another view.
        alone: where an engine outlived its group, or a group did not come back.
        gone_seconds: from an event to the end of the last engine that it concerns, by event and whether all served.
    """

    cycles: int = 0
    events: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    meetings: int = 0
    strangers: list[str] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    gone_seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, other: "Findings") -> None:
        """Takes another run's findings in."""
        self.cycles += other.cycles
        self.starts += other.starts
        self.meetings += other.meetings
        self.strangers += other.strangers
        self.alone += other.alone
        for event, seconds in other.gone_seconds.items():
            self.gone_seconds.setdefault(event, []).extend(seconds)
        for event, count in other.events.items():
            self.events[event] = self.events.get(event, 0) + count

    def text(self) -> str:
        """Returns all of it for people."""
        gone = [
            f"  {event}: median {sorted(seconds)[len(seconds) // 2]:.2f} s, most {max(seconds):.2f} s ({len(seconds)})"
            for event, seconds in sorted(self.gone_seconds.items())
        ]
        return "\n".join(
            [
                f"{self.cycles} cycles of {RANKS} ranks, {self.starts} engines started, {self.meetings} meetings",
                f"events: {', '.join(f'{name} {count}' for name, count in sorted(self.events.items()))}",
                f"an engine beside or with one of another view: {len(self.strangers)} {self.strangers[:3]}",
                f"an engine that stayed alone, a group that did not come back: {len(self.alone)} {self.alone[:3]}",
                "from an event to the end of all engines:",
                *gone,
            ]
        )


def may_restart_always(request: dict[str, Any]) -> None:
    """Lets a group start again however often it was killed."""
    request["restarts"]["most"] = 10**6


def run_cycles(folder: Path, cycles: int, seed: int) -> Findings:
    """Runs one group through its cycles; stops at the first that does not end well."""
    chance, found = random.Random(seed), Findings()
    group = LoopbackGroup(folder, RANKS, may_restart_always)
    for rank in group.ranks:
        # As after its first service: before that, an engine's end is final.
        record = {"parked": None, "served": True, "stops": []}
        (Path(rank.request["record_folder"]) / "memory.json").write_text(json.dumps(record))
    try:
        for _ in range(cycles):
            _one_cycle(group, chance, found)
            if found.alone:
                break
            found.cycles += 1
    finally:
        group.end()
    _check_log(group, found)
    return found


def _one_cycle(group: LoopbackGroup, chance: random.Random, found: Findings) -> None:
    for rank in chance.sample(group.ranks, len(group.ranks)):
        rank.start()
        time.sleep(chance.uniform(0, 0.2))
    time.sleep(chance.uniform(0, 4))
    event = chance.choice(EVENTS)
    found.events[event] = found.events.get(event, 0) + 1
    before, kind = group.alive(), f"{event}, {'serving' if set(group.states()) == {'serving'} else 'starting'}"
    begun = time.monotonic()
    concerned = _happen(group, chance, event, before)
    if concerned:
        if _until(lambda: not group.alive() & concerned):
            found.gone_seconds.setdefault(kind, []).append(time.monotonic() - begun)
        else:
            found.alone.append(f"after {event}: {sorted(group.alive() & concerned)}")
    if event == "freeze":
        time.sleep(max(0.0, _FREEZE_SECONDS - (time.monotonic() - begun)))
    for rank in group.ranks:
        rank.freeze(stopped=False)
    if not _until(lambda: set(group.states()) == {"serving"} and len({view for _, view in group.alive()}) == 1):
        words = "\n".join(rank.words()[-1500:] for rank in group.ranks)
        found.alone.append(f"after {event}: {group.states()}\n{words}")
    for rank in chance.sample(group.ranks, len(group.ranks)):
        rank.stop()
    if left := group.alive():
        found.alone.append(f"after the stop: {sorted(left)}")


def _happen(
    group: LoopbackGroup, chance: random.Random, event: str, before: set[tuple[int, str]]
) -> set[tuple[int, str]]:
    """Makes the event happen and returns the engines that must end by it."""
    one, other = chance.sample(group.ranks, 2)
    if event == "kill-engine":
        return before if one.kill_child() else set()
    if event == "kill-supervisor":
        one.kill()
        return before
    if event == "kill-two":
        one.kill()
        other.kill_child()
        return before
    if event == "stop-and-start":
        one.stop()
        one.start()
        return before
    if event == "freeze":
        one.freeze(stopped=True)
        return {(rank, view) for rank, view in before if rank != one.request["rank"]}
    return set()


def _until(condition: Any) -> bool:
    end = time.monotonic() + _LONGEST_SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _check_log(group: LoopbackGroup, found: Findings) -> None:
    for event in group.events():
        found.starts += event["word"] == "start"
        found.meetings += event["word"] == "met"
        if event["word"] in ("overlap", "met-old"):
            found.strangers.append(json.dumps(event))


def main() -> int:
    """Runs groups beside each other and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=200, help="of all groups together")
    parser.add_argument("--groups", type=int, default=4, help="that run beside each other")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rank-cycles-"))
    with ThreadPoolExecutor(arguments.groups) as pool:
        each = -(-arguments.cycles // arguments.groups)
        runs = pool.map(
            lambda number: run_cycles(folder / str(number), each, arguments.seed + number), range(arguments.groups)
        )
        total = Findings()
        for run in runs:
            total.add(run)
    shutil.rmtree(folder)
    print(json.dumps(vars(total)) if arguments.json else total.text())
    return 1 if total.strangers or total.alone else 0


if __name__ == "__main__":
    sys.exit(main())
