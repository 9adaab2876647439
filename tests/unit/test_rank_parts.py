"""The pieces of a supervisor, each alone."""

import json
import mmap
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from ops.stacks import planned, stacks
from runtime.rank import processes
from runtime.rank.endpoint import answer_peers
from runtime.rank.exchange import ExchangeError, Traffic, answer_to, ask_status, read_key, read_line
from runtime.rank.guard import LOOK_SECONDS, MemoryGuard
from runtime.rank.meminfo import MemoryFigures
from runtime.rank.page_cache import release
from runtime.rank.record import AnotherSupervisorError, Memory, Parked, Record
from runtime.rank.request import GuardLimits, Limits, RankRequest
from runtime.rank.status import Cause, Identity, Status
from runtime.rank.surroundings import limit_problems, nccl_version, secret_variables, wipe_autotune_cache
from spec.errors import SpecificationError
from spec.supervision import refuse_secrets, supervisor_request
from tests.rank.group import free_ports
from tests.virtual import wait_until

KEY = b"a key of a group, which is long enough"
MIB = 1 << 20


@pytest.mark.parametrize("stack", stacks())
def test_every_rank_of_every_stack_is_asked_what_a_supervisor_understands(stack: str) -> None:
    plan = planned(stack)
    for group in plan.groups:
        for rank in group.ranks:
            request = RankRequest.from_plain(json.loads(json.dumps(supervisor_request(plan, group, rank))))
            assert request.argv == rank.command
            assert request.own.node == rank.node
            assert len(request.peers) == len(group.ranks)
            assert request.generation == group.hash
            assert request.patience.stop >= plan.stop_grace_seconds
            assert request.guard.backstop_percent <= request.guard.floor_percent
            assert len(json.dumps(supervisor_request(plan, group, rank))) < 128 << 10, "the longest word of a command"


def test_a_status_survives_its_journey() -> None:
    cause = Cause(1, "the engine died", 5.0)
    status = Status(
        1,
        "gb10-2",
        "stopping",
        Identity("g", "i", "n", "a", "r"),
        "t",
        view=("t", "u"),
        cause=cause,
        cause_view=("t", "u"),
        rails=({"address": "203.0.113.1"},),
    )
    assert Status.from_plain(json.loads(json.dumps(status.to_plain()))) == status


class OneAnswer:
    """A server that gives each question one answer."""

    def __init__(self, answer: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.questions: list[bytes] = []
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                self.questions.append(read_line(connection, 5.0))
                connection.sendall(self._answer(self.questions[-1]))


def test_a_genuine_answer_is_believed_and_counted() -> None:
    server, traffic = OneAnswer(lambda question: answer_to(KEY, question, {"state": "serving"})), Traffic()
    assert ask_status(KEY, "127.0.0.1", server.port, "127.0.0.1", 1.0, traffic) == {"state": "serving"}
    assert traffic.bytes > len(server.questions[0])
    assert KEY not in server.questions[0]


def test_an_old_answer_shown_again_is_not_believed() -> None:
    kept: list[bytes] = []

    def replay(question: bytes) -> bytes:
        kept.append(answer_to(KEY, question, {"state": "serving"}))
        return kept[0]

    server = OneAnswer(replay)
    ask_status(KEY, "127.0.0.1", server.port, None, 1.0)
    with pytest.raises(ExchangeError, match="not signed with this group's key"):
        ask_status(KEY, "127.0.0.1", server.port, None, 1.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "another group's key, or is no supervisor"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program listens there"),
        (b'{"status": "{}", "signature": "00"}\n', "another deployment listens there"),
    ],
)
def test_what_is_not_signed_is_not_believed(answer: bytes, words: str) -> None:
    server = OneAnswer(lambda _: answer)
    with pytest.raises(ExchangeError, match=words):
        ask_status(KEY, "127.0.0.1", server.port, None, 1.0)


@pytest.mark.parametrize(
    "question", [b"", b"GET / HTTP/1.1\r\n", b'{"nonce": "1", "signature": "0"}\n', b"[]\n", b"{}\n"]
)
def test_who_has_not_the_key_is_told_nothing(question: bytes) -> None:
    assert answer_to(KEY, question, {"state": "serving"}) == b""


def test_peers_are_answered_beside_one_that_says_nothing_and_after_one_that_left_until_it_is_closed() -> None:
    (port,) = free_ports(1)
    listening = answer_peers("127.0.0.1", port, KEY, lambda: {"state": "serving"}, Traffic())
    with socket.create_connection(("127.0.0.1", port)):
        with socket.create_connection(("127.0.0.1", port)) as leaving:
            leaving.sendall(b"half a question")
        for _ in range(5):
            assert ask_status(KEY, "127.0.0.1", port, None, 1.0) == {"state": "serving"}
        listening.close()
        with pytest.raises(ExchangeError, match="nothing listens there"):
            ask_status(KEY, "127.0.0.1", port, None, 1.0)


def test_nothing_that_listens_is_told_apart_from_silence() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ExchangeError, match="no answer within") as error:
        ask_status(KEY, "127.0.0.1", silent.getsockname()[1], None, 0.2)
    assert not error.value.refused
    port = silent.getsockname()[1]
    silent.close()
    with pytest.raises(ExchangeError, match="nothing listens there") as error:
        ask_status(KEY, "127.0.0.1", port, None, 0.2)
    assert error.value.refused


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "group-key").write_text("\n")
    with pytest.raises(ValueError, match="no key of a group"):
        read_key(tmp_path / "group-key")


class FakeMemory:
    """A file like /proc/meminfo whose figures a test sets."""

    def __init__(self, path: Path, available: int) -> None:
        self._path = path
        self.set(available)

    def set(self, available: int) -> None:
        """Sets MemAvailable, in MiB, of 1000; in place, as the kernel does."""
        text = f"MemTotal: {1000 * 1024} kB\nMemFree: 1 kB\nMemAvailable: {available * 1024:>9} kB\nCached: 7 kB\n"
        with self._path.open("r+" if self._path.exists() else "w") as file:
            file.write(text)


def make_guard(tmp_path: Path, available: int) -> tuple[MemoryGuard, FakeMemory, list[int]]:
    memory, kills = FakeMemory(tmp_path / "meminfo", available), []
    guard = MemoryGuard(GuardLimits(12, 2), lambda: kills.append(1), str(tmp_path / "meminfo"))
    return guard, memory, kills


def test_memory_figures_are_read_by_name(tmp_path: Path) -> None:
    FakeMemory(tmp_path / "meminfo", 123)
    figures = MemoryFigures(str(tmp_path / "meminfo"))
    assert figures.read_bytes(b"MemAvailable:") == 123 * MIB
    assert figures.read_bytes(b"\nCached:") == 7 * 1024
    with pytest.raises(ValueError, match="has no SwapTotal"):
        figures.read_bytes(b"SwapTotal:")
    assert MemoryFigures().read_bytes(b"MemTotal:") > MIB


def test_a_guard_kills_below_the_floor_and_says_with_which_figures(tmp_path: Path) -> None:
    guard, memory, kills = make_guard(tmp_path, 500)
    guard.arm()
    memory.set(130)
    assert not kills
    memory.set(119)
    wait_until(lambda: guard.trip is not None, "the trip")
    assert kills
    assert "MemAvailable 119 MiB (11.9 %)" in str(guard.trip)
    assert "below the floor; the floor is 120 MiB (12.0 %) of 1000 MiB" in str(guard.trip)


def test_a_guard_does_not_kill_what_does_not_run(tmp_path: Path) -> None:
    guard, memory, kills = make_guard(tmp_path, 500)
    memory.set(10)
    wait_until(lambda: guard.available_bytes == 10 * MIB, "a look")
    threading.Event().wait(2 * LOOK_SECONDS)
    assert not kills
    guard.arm()
    wait_until(lambda: bool(kills), "the kill")
    guard.disarm()
    guard.arm()
    wait_until(lambda: guard.trip is not None, "the trip of the next engine")


def test_a_guard_shows_the_trend(tmp_path: Path) -> None:
    guard, memory, _ = make_guard(tmp_path, 900)
    for available in (800, 700, 600):
        memory.set(available)
        wait_until(lambda expected=available: guard.available_bytes == expected * MIB, "a look")
    figures = guard.figures()
    assert figures["bytes_per_second"] < 0
    assert 0 < figures["seconds_to_floor"] < 60
    memory.set(950)
    wait_until(lambda: "seconds_to_floor" not in guard.figures(), "memory that grows")


def test_the_backstop_acts_on_a_steep_trend(tmp_path: Path) -> None:
    memory, kills = FakeMemory(tmp_path / "meminfo", 900), []
    guard = MemoryGuard(GuardLimits(2, 2), lambda: kills.append(1), str(tmp_path / "meminfo"))
    guard.arm()
    memory.set(60)
    wait_until(lambda: bool(kills), "the kill")
    assert guard.trip
    assert guard.trip.by_trend
    assert "the trend leads below the backstop" in str(guard.trip)


def test_a_record_survives_and_belongs_to_one(tmp_path: Path) -> None:
    record = Record(tmp_path)
    assert record.read() == Memory()
    memory = Memory(Parked("tripped", Cause(1, "MemAvailable 3 MiB", 5.0)), True, (Cause(0, "died", 4.0, True),))
    record.write(memory)
    with pytest.raises(AnotherSupervisorError, match="two containers of this rank"):
        Record(tmp_path)
    del record
    assert Record(tmp_path).read() == memory


def test_pages_of_the_checkpoint_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(8 * MIB))
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    assert resident_pages(path) > 0
    assert release((str(tmp_path),)) == 1
    assert resident_pages(path) == 0


def resident_pages(path: Path) -> int:
    """Returns how many pages of a file are in memory."""
    import ctypes

    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        pages = -(-len(content) // mmap.PAGESIZE)
        states = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(content)
        address = ctypes.addressof(start)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(content)), states) == 0
        del start
        return sum(state & 1 for state in states)


def test_limits_that_were_not_given_are_named() -> None:
    wanted = Limits(open_files=1 << 40, locked_memory_bytes=1, shared_memory_bytes=1 << 60)
    found = limit_problems(wanted)
    assert [text.split(",")[0].split(" has")[0].rsplit(" ", 1)[0] for text in found] == [
        "limits: open files",
        "limits:",
    ]


def test_the_autotune_cache_is_found_where_vllm_looks(tmp_path: Path) -> None:
    for environment, folder in (
        ({"VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR": str(tmp_path / "own")}, tmp_path / "own"),
        ({"VLLM_CACHE_ROOT": str(tmp_path)}, tmp_path / "flashinfer_autotune_cache"),
        ({"HOME": str(tmp_path)}, tmp_path / ".cache" / "vllm" / "flashinfer_autotune_cache"),
    ):
        (folder / "old").mkdir(parents=True)
        assert wipe_autotune_cache(environment) == folder
        assert not folder.exists()


def test_secrets_reach_the_engine_by_variable_and_file(tmp_path: Path) -> None:
    assert secret_variables(tmp_path) == {}
    (tmp_path / "api-key").write_text("k\n")
    (tmp_path / "hf-token").write_text("t")
    assert secret_variables(tmp_path) == {"VLLM_API_KEY": "k", "HF_TOKEN_PATH": str(tmp_path / "hf-token")}


def test_the_nccl_version_is_that_of_the_libraries(tmp_path: Path) -> None:
    assert nccl_version([str(tmp_path), ""]) == "none"
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"..NCCL version 2.30.7+cuda13.3\0")
    assert nccl_version([str(tmp_path)]) == "2.30.7"


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no program vllm on the PATH of the image"):
        processes.start(["vllm"], {"PATH": "/nowhere"})


def test_a_started_process_has_its_signals_back(tmp_path: Path) -> None:
    output = os.open(tmp_path / "out", os.O_CREAT | os.O_RDWR)
    process = processes.start(["grep", "Sig[BI]", "/proc/self/status"], dict(os.environ), output)
    os.waitpid(process, 0)
    os.close(output)
    masks = dict(line.split(":") for line in (tmp_path / "out").read_text().splitlines())
    ordinary = (1 << 31) - 1  # the next two belong to the C library
    assert {int(mask, 16) & ordinary for mask in masks.values()} == {0}


def test_a_victim_of_the_oom_killer_is_chosen() -> None:
    process = processes.start(["sleep", "60"], dict(os.environ))
    try:
        processes.prefer_as_victim(process)
        assert Path(f"/proc/{process}/oom_score_adj").read_text().strip() == "1000"
        assert process in processes.descendants()
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
    assert process not in processes.descendants()


def test_secrets_are_readable_for_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.node import rank_folders

    request = {"storage_folder": str(tmp_path), "container": "gb10-one-main-rank0"}
    rank_folders.put_secrets({**request, "secrets": {"group-key": "k", "api-key": "a"}})
    assert rank_folders.put_secrets({**request, "secrets": {"group-key": "k"}}) == {"kept": ["group-key"]}
    folder = tmp_path / "ranks" / "gb10-one-main-rank0" / "secrets"
    assert [path.name for path in folder.iterdir()] == ["group-key"]
    assert stat.S_IMODE((folder / "group-key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(rank_folders, "inspect", lambda *_: {"Name": "a container that is there"})
    assert rank_folders.remove(request) == {"removed": False}
    monkeypatch.setattr(rank_folders, "inspect", lambda *_: None)
    assert rank_folders.remove(request) == {"removed": True}
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_would_be_seen_is_refused() -> None:
    refuse_secrets(planned("qwen-sglang"), api_key=False)
    refuse_secrets(planned("glm53"), api_key=True)
    with pytest.raises(SpecificationError, match="SGLang takes a key as --api-key alone"):
        refuse_secrets(planned("qwen-sglang"), api_key=True)
