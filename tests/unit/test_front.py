"""What a head tells the router of its pool, and how it ends what it has begun before it stops."""

import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.rank.front import running_requests
from tests.rank.group import LoopbackGroup, free_ports
from tests.virtual import wait_until

PROBE = {"prompt": "What is 17 x 23?", "answer": "391", "match": "contains", "tokens": 64}

Change = Callable[[dict[str, Any]], None]
MakeGroup = Callable[..., LoopbackGroup]


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[MakeGroup]:
    """Returns a function that makes a group of two whose head tells a router; what it started is gone afterwards."""
    made: list[LoopbackGroup] = []
    (port,) = free_ports(1)

    def make(drain_seconds: float = 20, **child: Any) -> LoopbackGroup:
        def change(request: dict[str, Any]) -> None:
            if request["rank"] == 0:
                request["front"] = {
                    "port": port,
                    "drain_seconds": drain_seconds,
                    "probe": PROBE,
                    "served_name": "lab",
                    "answer_timeout_seconds": 10,
                }
            settings = json.loads(request["argv"][-1]) | child
            request["argv"] = [*request["argv"][:-1], json.dumps(settings)]

        made.append(LoopbackGroup(tmp_path / "group", 2, change))
        return made[-1]

    yield make
    for group in made:
        group.end()


def told(group: LoopbackGroup) -> int:
    """Returns what a router is told; 0 where nobody listens."""
    port = group.ranks[0].request["front"]["port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class SlowRequest(threading.Thread):
    """A request whose answer takes a while."""

    def __init__(self, group: LoopbackGroup, seconds: float) -> None:
        super().__init__(daemon=True)
        self.port = group.ranks[0].request["http_port"]
        self.seconds = seconds
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        body = json.dumps({"seconds": self.seconds}).encode()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1", body, timeout=60) as response:
                self.outcome = response.status
        except OSError as error:
            self.outcome = error


def serving(group: LoopbackGroup) -> None:
    group.start()
    group.wait_for("serving")
    wait_until(lambda: told(group) == 200, "a right answer")


def test_requests_are_wanted_only_after_a_right_answer_and_again_after_a_restart(make_group: MakeGroup) -> None:
    group = make_group()
    assert told(group) == 0
    serving(group)
    wait_until(lambda: (group.ranks[0].status() or {}).get("answer") == "right", "the answer in the status")
    group.ranks[1].kill_child()
    wait_until(lambda: told(group) != 200, "the router to be told")
    group.wait_for("serving")
    wait_until(lambda: told(group) == 200, "a right answer of the new engine")


def test_a_wrong_answer_is_told_and_takes_no_requests(make_group: MakeGroup) -> None:
    group = make_group(answer="17 x 23 = 392")
    group.start()
    group.wait_for("serving")
    wait_until(lambda: (group.ranks[0].status() or {}).get("answer") == "wrong", "the answer in the status")
    assert told(group) == 503


def test_a_head_that_is_asked_to_stop_ends_what_it_has_begun(make_group: MakeGroup) -> None:
    group = make_group()
    serving(group)
    request = SlowRequest(group, 4)
    wait_until(lambda: running_requests(request.port) > 0, "the request to run")
    group.ranks[0].signal(signal.SIGTERM)
    wait_until(lambda: told(group) == 404, "the router to be told that nothing new is taken")
    status = group.ranks[1].status()
    assert status
    assert status["state"] == "serving", "the workers compute on"
    request.join(20)
    assert request.outcome == 200
    wait_until(lambda: told(group) == 0, "the head to stop")


def test_running_requests_hold_up_a_stop_for_their_time_only(make_group: MakeGroup) -> None:
    group = make_group(drain_seconds=3)
    serving(group)
    request = SlowRequest(group, 60)
    wait_until(lambda: running_requests(request.port) > 0, "the request to run")
    began = time.monotonic()
    assert group.ranks[0].stop() == 128 + signal.SIGTERM
    assert time.monotonic() - began >= 3
    request.join(20)
    assert isinstance(request.outcome, OSError)


def test_only_open_connections_to_the_port_count(tmp_path: Path) -> None:
    header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    rest = "00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1\n"
    rows = (
        ("0B33C6C6:1F40", "2C33C6C6:9C40", "01"),  # running
        ("0B33C6C6:1F40", "2C33C6C6:9C42", "06"),  # over
        ("00000000:1F40", "00000000:0000", "0A"),  # listening
        ("0B33C6C6:9C44", "2C33C6C6:1F40", "01"),  # to another's port
    )
    (tmp_path / "tcp").write_text(
        header + "".join(f"   0: {local} {remote} {state} {rest}" for local, remote, state in rows)
    )
    assert running_requests(8000, tmp_path) == 1
    assert running_requests(8001, tmp_path) == 0
