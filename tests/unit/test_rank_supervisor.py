"""Real supervisors on the loopback address, each the first process of a namespace, with a cheap child as engine."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.rank.exchange import ExchangeError, ask_status
from tests.rank.group import LoopbackGroup, LoopbackRank
from tests.virtual import wait_until

Change = Callable[[dict[str, Any]], None]
MakeGroup = Callable[..., LoopbackGroup]


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[MakeGroup]:
    """Returns a function that makes a group; what it started is gone afterwards."""
    made: list[LoopbackGroup] = []

    def make(ranks: int, change: Change | None = None) -> LoopbackGroup:
        made.append(LoopbackGroup(tmp_path / f"group{len(made)}", ranks, change))
        return made[-1]

    yield make
    for group in made:
        group.end()


def assert_nobody_met_a_stranger(group: LoopbackGroup) -> None:
    assert not [event for event in group.events() if event["word"] in ("overlap", "met-old")]


def assert_one_view(group: LoopbackGroup) -> set[tuple[int, str]]:
    """Checks that every rank has an engine and all are of one view; returns them."""
    alive = group.alive()
    assert sorted(rank for rank, _ in alive) == list(range(len(group.ranks)))
    assert len({view for _, view in alive}) == 1
    return alive


def assert_restarted(group: LoopbackGroup, view: set[tuple[int, str]]) -> None:
    """Waits for the group and checks that all of it is new and met nothing of the old one."""
    wait_until(lambda: not group.alive() & view, "the old engines to end")
    group.wait_for("serving")
    assert not assert_one_view(group) & view
    assert_nobody_met_a_stranger(group)


def in_rank(rank: LoopbackRank, argv: list[str]) -> str:
    """Runs a program in a rank's namespace and returns what it prints."""
    first = str(rank.first_process())
    return subprocess.run(
        ["nsenter", "--target", first, "--pid", "--mount", *argv], capture_output=True, text=True, check=True
    ).stdout


def test_a_group_starts_together_and_ends_when_it_is_asked_to(make_group: MakeGroup) -> None:
    group = make_group(3)
    group.start()
    group.wait_for("serving")
    status = group.ranks[1].status()
    assert status
    assert len(set(status["view"])) == 3
    assert status["memory"]["available_bytes"] > status["memory"]["floor_bytes"]
    assert group.ranks[0].stop() == 128 + signal.SIGTERM
    # The others have heard of it meanwhile, and may have no engine any more that could have an exit code.
    assert {rank.stop() for rank in group.ranks[1:]} <= {0, 128 + signal.SIGTERM}
    assert group.alive() == set()


def test_a_rank_that_is_missing_is_waited_for_by_name(make_group: MakeGroup) -> None:
    group = make_group(2)
    group.ranks[0].start()
    wait_until(lambda: bool(group.ranks[0].shown().get("waiting_for")), "a word about the missing rank")
    assert "rank 1 on node-1 (127.0.0.1): nothing listens there" in group.ranks[0].shown()["waiting_for"]
    assert group.events() == []
    group.ranks[1].start()
    group.wait_for("serving")
    assert_one_view(group)
    assert group.ranks[0].shown()["waiting_for"] == []


def test_a_group_that_does_not_come_together_fails_with_the_name(make_group: MakeGroup) -> None:
    group = make_group(2, lambda request: request["patience"].update(gather=1.0))
    group.ranks[0].start()
    wait_until(lambda: group.ranks[0].shown().get("state") == "failed", "the end of patience")
    assert "did not come together within 1 s: rank 1 on node-1" in group.ranks[0].shown()["cause"]["text"]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_engine_that_dies_takes_the_group_and_the_group_comes_back(make_group: MakeGroup, rank: int) -> None:
    group = make_group(3)
    group.start()
    group.wait_for("serving")
    view = group.alive()
    assert group.ranks[rank].kill_child()
    assert_restarted(group, view)
    for each in group.ranks:
        assert f"the engine of rank {rank}" in each.words()
        assert "was killed by signal 9" in each.words()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_supervisor_that_dies_takes_the_group_and_the_group_comes_back(make_group: MakeGroup, rank: int) -> None:
    group = make_group(3)
    group.start()
    group.wait_for("serving")
    view = group.alive()
    group.ranks[rank].kill()
    assert_restarted(group, view)
    assert [len(each.codes) for each in group.ranks] == [int(number == rank) for number in range(3)]


def test_a_rank_that_hangs_takes_the_group_and_comes_back_without_meeting_it(make_group: MakeGroup) -> None:
    group = make_group(2)
    group.start()
    group.wait_for("serving")
    view = group.alive()
    group.ranks[1].freeze(stopped=True)
    try:
        wait_until(lambda: not {found for found in group.alive() & view if found[0] == 0}, "the head's end")
        assert group.ranks[0].shown()["cause"]["rank"] == 1
        assert "has not answered for" in group.ranks[0].shown()["cause"]["text"]
    finally:
        group.ranks[1].freeze(stopped=False)
    assert_restarted(group, view)


def test_a_rank_that_was_asked_to_stop_is_waited_for_and_no_failure(make_group: MakeGroup) -> None:
    group = make_group(2, lambda request: request["restarts"].update(most=0))
    group.start()
    group.wait_for("serving")
    group.ranks[0].stop()
    wait_until(lambda: (group.ranks[1].status() or {}).get("state") == "gathering", "the worker to gather")
    assert group.ranks[1].shown()["cause"]["asked"]
    group.ranks[0].start()
    group.wait_for("serving")
    assert_one_view(group)
    assert [rank.shown()["restarts"] for rank in group.ranks] == [0, 0]
    assert group.ranks[1].codes == []


def test_too_many_stops_fail_with_the_first_cause(make_group: MakeGroup) -> None:
    group = make_group(2, lambda request: request["restarts"].update(most=1))
    group.start()
    group.wait_for("serving")
    view = group.alive()
    assert group.ranks[1].kill_child()
    assert_restarted(group, view)
    assert group.ranks[0].kill_child()
    group.wait_for("failed")
    for rank in group.ranks:
        assert "2 stops within 1800 s, the first: the engine of rank 1 on node-1" in rank.shown()["cause"]["text"]
    assert group.alive() == set()
    started = len(group.events())
    group.ranks[1].kill()
    wait_until(lambda: len(group.ranks[1].codes) == 1, "the container's restart")
    group.wait_for("failed")
    assert "the first: the engine of rank 1 on node-1" in group.ranks[1].shown()["cause"]["text"]
    assert len(group.events()) == started


def test_an_engine_that_never_served_is_not_tried_again(make_group: MakeGroup) -> None:
    def end_at_once(request: dict[str, Any]) -> None:
        if request["rank"] == 1:
            settings = json.loads(request["argv"][2])
            request["argv"][2] = json.dumps({**settings, "exit_code": 7})

    group = make_group(2, end_at_once)
    group.start()
    group.wait_for("failed")
    for rank in group.ranks:
        assert rank.shown()["cause"] | {"at_seconds": 0} == {
            "rank": 1,
            "text": "the engine of rank 1 on node-1 ended with exit code 7",
            "at_seconds": 0,
            "asked": False,
        }
    assert "a last word\n" in group.ranks[1].words()


def test_a_rank_of_another_generation_is_refused_by_name(make_group: MakeGroup) -> None:
    def make_old(request: dict[str, Any]) -> None:
        if request["rank"] == 1:
            request["generation"] = "c" * 64

    group = make_group(2, make_old)
    group.start()
    words = "rank 1 on node-1 is of generation cccccccccccc and this group is of aaaaaaaaaaaa: refused"
    wait_until(lambda: words in group.ranks[0].words(), "the refusal")
    assert group.events() == []


def test_another_deployment_at_a_peers_address_is_no_peer(make_group: MakeGroup) -> None:
    group = make_group(2)
    (Path(group.ranks[1].request["secrets_folder"]) / "group-key").write_text("of another group, and as long as a key")
    group.start()
    wait_until(lambda: "has another group's key" in group.ranks[0].words(), "the refusal")
    assert group.events() == []


def test_the_endpoint_answers_nobody_without_the_key(make_group: MakeGroup) -> None:
    group = make_group(1)
    group.start()
    group.wait_for("serving")
    own = group.ranks[0].request["peers"][0]
    with pytest.raises(ExchangeError, match="another group's key"):
        ask_status(b"guessed, and as long as a key is", own["address"], own["port"], None, 1.0)
    listening = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
    assert f"127.0.0.1:{own['port']}" in listening


def test_a_crossed_floor_kills_trips_and_stays_so(make_group: MakeGroup) -> None:
    def set_floor(request: dict[str, Any]) -> None:
        if request["rank"] == 1:
            request["guard"] = {"floor_percent": 99.9, "backstop_percent": 0.5}

    group = make_group(2, set_floor)
    group.start()
    group.wait_for("tripped")
    assert group.alive() == set()
    for rank in group.ranks:
        text = rank.shown()["cause"]["text"]
        assert "rank 1 on node-1: MemAvailable" in text
        assert "below the floor; the floor is" in text
    started = len(group.events())
    group.ranks[0].kill()
    wait_until(lambda: len(group.ranks[0].codes) == 1, "the container's restart")
    group.wait_for("tripped")
    assert "rank 1 on node-1: MemAvailable" in group.ranks[0].shown()["cause"]["text"]
    assert len(group.events()) == started
    for rank in group.ranks:
        rank.stop()
        rank.request["guard"]["floor_percent"] = 0.5
        (Path(rank.request["record_folder"]) / "memory.json").unlink()
    group.start()
    group.wait_for("serving")
    assert_one_view(group)


def test_memory_that_is_not_free_is_waited_for(make_group: MakeGroup) -> None:
    def ask_for_all(request: dict[str, Any]) -> None:
        request["required_bytes"] = 1 << 50
        request["patience"]["memory"] = 1.0

    group = make_group(1, ask_for_all)
    group.start()
    group.wait_for("failed")
    assert "MiB are available, 1073741824 MiB are needed, for 1 s" in group.ranks[0].shown()["cause"]["text"]


def test_memory_of_accelerators_is_waited_for_where_they_have_their_own(make_group: MakeGroup, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/asked\n"
        f"[ $(wc -l < {tmp_path}/asked) -lt 3 ] && echo 10 || {{ echo 90; echo 80; }}\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    group = make_group(1, lambda request: request.update(accelerator_memory=True, required_bytes=75 << 20))
    group.ranks[0].environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    group.start()
    group.wait_for("serving")
    assert "memory: 10 MiB are available, 75 MiB are needed" in group.ranks[0].words()


def test_a_job_ends_with_its_own_code_when_all_have_done_their_part(make_group: MakeGroup) -> None:
    def make_job(request: dict[str, Any]) -> None:
        seconds = 0.2 + request["rank"]
        request.update(serves=False, argv=["/bin/sh", "-c", f"sleep {seconds}; echo done"])

    group = make_group(2, make_job)
    for rank in group.ranks:
        rank.restarts = False
    group.start()
    wait_until(lambda: all(rank.codes for rank in group.ranks), "the end of the job")
    assert [rank.codes for rank in group.ranks] == [[0], [0]]
    assert all("done\n" in rank.words() for rank in group.ranks)


def test_a_job_that_fails_ends_on_all_ranks(make_group: MakeGroup) -> None:
    def make_job(request: dict[str, Any]) -> None:
        command = "exit 3" if request["rank"] else "sleep 60"
        request.update(serves=False, argv=["/bin/sh", "-c", command])

    group = make_group(2, make_job)
    for rank in group.ranks:
        rank.restarts = False
    group.start()
    wait_until(lambda: all(rank.codes for rank in group.ranks), "the end of the job")
    assert [rank.codes for rank in group.ranks] == [[70], [3]]


def test_steps_come_before_the_engine_and_must_succeed(make_group: MakeGroup, tmp_path: Path) -> None:
    def add_steps(request: dict[str, Any]) -> None:
        request["before"] = [["touch", str(tmp_path / "first")], ["test", "-e", str(tmp_path / "first")], ["false"]]

    group = make_group(1, add_steps)
    group.start()
    group.wait_for("failed")
    assert group.ranks[0].shown()["cause"]["text"] == "false ended with exit code 1"
    assert group.events() == []


def test_the_engine_waits_until_ray_knows_of_all_accelerators(make_group: MakeGroup, tmp_path: Path) -> None:
    (tmp_path / "python3").write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/asked\n[ $(wc -l < {tmp_path}/asked) -lt 3 ] && echo 1 || echo 4\n"
    )
    (tmp_path / "python3").chmod(0o755)

    def await_four(request: dict[str, Any]) -> None:
        request["awaited_accelerators"] = 4
        request["environment"] = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    group = make_group(1, await_four)
    group.ranks[0].environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    group.start()
    group.wait_for("serving")
    assert (tmp_path / "asked").read_text() == "x\nx\nx\n"
    assert "Ray knows of 1 accelerators of 4" in group.ranks[0].words()


def test_what_the_engine_leaves_behind_ends_with_it(make_group: MakeGroup) -> None:
    def leave_helpers(request: dict[str, Any]) -> None:
        command = "setsid sleep 3600 & sleep 0.3; exit 9"
        request.update(argv=["/bin/sh", "-c", command])

    group = make_group(1, leave_helpers)
    group.start()
    group.wait_for("failed")
    assert "sleep" not in in_rank(group.ranks[0], ["ps", "-eo", "args"])


def test_zombies_are_reaped(make_group: MakeGroup) -> None:
    def make_orphans(request: dict[str, Any]) -> None:
        orphans = "for i in 1 2 3 4 5; do (sleep 0.1 & echo orphan $!.); done; echo up; sleep 3600"
        request.update(argv=["/bin/sh", "-c", orphans])

    def processes() -> list[list[str]]:
        return [line.split() for line in in_rank(group.ranks[0], ["ps", "-eo", "pid=,args="]).splitlines()]

    group = make_group(1, make_orphans)
    group.start()
    wait_until(lambda: "up\n" in group.ranks[0].words(), "the engine")
    orphans = set(re.findall(r"orphan (\d+)\.", group.ranks[0].words()))
    assert len(orphans) == 5
    wait_until(lambda: not orphans & {number for number, *_ in processes()}, "the zombies to go")
    assert group.states() == ["starting"]
    assert ["sleep", "3600"] in [words for _, *words in processes()]


def test_the_engine_gets_its_grace_and_its_exit_code_is_kept(make_group: MakeGroup) -> None:
    def end_slowly(request: dict[str, Any]) -> None:
        text = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(5)))\n"
        request.update(argv=[sys.executable, "-c", f"{text}print('up', flush=True)\nwhile True: signal.pause()"])

    group = make_group(1, end_slowly)
    group.start()
    wait_until(lambda: "up\n" in group.ranks[0].words(), "the engine")
    assert group.ranks[0].stop() == 5


def test_an_engine_that_does_not_end_is_killed_after_its_grace(make_group: MakeGroup) -> None:
    def never_end(request: dict[str, Any]) -> None:
        request["patience"]["stop"] = 1.0
        request.update(argv=["/bin/sh", "-c", "trap '' TERM; echo up; while true; do sleep 0.1; done"])

    group = make_group(1, never_end)
    group.start()
    wait_until(lambda: "up\n" in group.ranks[0].words(), "the engine")
    assert group.ranks[0].stop() == 128 + signal.SIGKILL


def test_what_the_engine_writes_is_not_touched(make_group: MakeGroup) -> None:
    def write_anything(request: dict[str, Any]) -> None:
        text = r"import os; os.write(1, bytes(range(256)) * 3); os.write(1, b'\r50 %\rno end of line')"
        request.update(argv=[sys.executable, "-c", text])

    group = make_group(1, write_anything)
    group.start()
    group.wait_for("failed")
    assert bytes(range(256)) * 3 + b"\r50 %\rno end of line" in group.ranks[0].log.read_bytes()


def test_the_engine_is_silent_and_has_its_secrets_and_nobody_else_sees_them(make_group: MakeGroup) -> None:
    def show(request: dict[str, Any]) -> None:
        request.update(argv=["/bin/sh", "-c", "echo $VLLM_NO_USAGE_STATS $DO_NOT_TRACK $VLLM_API_KEY; sleep 3600"])

    group = make_group(1, show)
    (Path(group.ranks[0].request["secrets_folder"]) / "api-key").write_text("correct-horse")
    group.start()
    wait_until(lambda: "1 1 correct-horse\n" in group.ranks[0].words(), "the engine's words")
    status = group.ranks[0].status()
    assert "correct-horse" not in json.dumps(status)
    assert b"correct-horse" not in Path(f"/proc/{group.ranks[0].first_process()}/environ").read_bytes()
    assert "correct-horse" not in in_rank(group.ranks[0], ["ps", "-eo", "args"])


def test_the_autotune_cache_is_empty_when_the_engine_starts(make_group: MakeGroup, tmp_path: Path) -> None:
    cache = tmp_path / "flashinfer_autotune_cache" / "old"
    cache.mkdir(parents=True)
    group = make_group(1)
    group.ranks[0].environment = {"VLLM_CACHE_ROOT": str(tmp_path)}
    group.start()
    group.wait_for("serving")
    assert not cache.exists()


def test_two_supervisors_of_one_rank_are_told_apart(make_group: MakeGroup) -> None:
    group = make_group(1)
    group.start()
    group.wait_for("serving")
    twin = LoopbackRank(group.ranks[0].request, group.folder / "twin", restarts=False)
    twin.start()
    wait_until(lambda: bool(twin.codes), "the twin's end")
    assert twin.codes == [78]
    assert "two containers of this rank run on this node" in twin.words()
    assert group.states() == ["serving"]
    assert group.ranks[0].codes == []
