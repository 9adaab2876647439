"""The transfer engine with nodes that are processes on loopback: what it brings, and what breaks it and what not."""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops import fan_out as fan_out_module
from ops.errors import OperationError
from ops.fan_out import Break, FanOut, Member, guilty, progress_line
from ops.transfers import Receiver, TransferFile, brought, fan_out, inspect
from runtime.transfer.frames import CHUNK_BYTES
from runtime.transfer.state import FolderState
from tests.transfer_faults import LOOPBACK, Scene, Wire, kill_some, local_party, processes_of, sending_processes

MEBI = 1 << 20


@pytest.fixture
def scene() -> Iterator[Scene]:
    """In memory where that is possible: what is tested is not how fast the disk syncs."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        made = Scene(Path(folder))
        made.source_folder.mkdir()
        yield made


@pytest.fixture
def filled(scene: Scene) -> Scene:
    """Sizes on both sides of every limit, and names that shells and encodings stumble over."""
    chance = random.Random(1)
    sizes = [0, 1, 4096, MEBI, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 77]
    for number, size in enumerate(sizes):
        scene.add(f"part-{number}.safetensors", chance.randbytes(size))
    for name in ("with space/a b.json", "ünï/日本語.txt", "quote'\"$(x)/`y`", "new\nline", "-dash"):
        scene.add(name, name.encode())
    return scene


def carry(scene: Scene, receivers: list[Receiver], degree: int | None = None) -> dict[str, Member]:
    with FanOut(scene.source, str(scene.source_folder), receivers, scene.files, scene.said.append, degree) as transfer:
        return transfer.run()


def total(scene: Scene) -> int:
    return sum(file.size_bytes for file in scene.files)


@pytest.mark.parametrize(("count", "degree"), [(1, None), (3, 1), (3, 3), (4, 2)])
def test_every_shape_brings_everything(filled: Scene, count: int, degree: int | None) -> None:
    receivers = filled.receivers(count)
    done = carry(filled, receivers, degree)
    filled.assert_complete(receivers)
    assert {member.moved_bytes for member in done.values()} == {total(filled)}
    again = fan_out(filled.source, str(filled.source_folder), receivers, filled.files, filled.said.append)
    assert {received.moved_bytes for received in again.values()} == {0}
    assert {received.present_bytes for received in again.values()} == {total(filled)}


def test_shapes_are_measured_when_there_is_much_to_move(filled: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out_module, "PROBE_FROM_BYTES", 0)
    monkeypatch.setattr(fan_out_module, "COMPARE_FROM_SECONDS", 0)
    receivers = filled.receivers(4)
    done = fan_out(filled.source, str(filled.source_folder), receivers, filled.files, filled.said.append)
    filled.assert_complete(receivers)
    assert {received.moved_bytes for received in done.values()} == {total(filled)}
    told = [line for line in filled.said if line.startswith("shape: ")]
    assert len(told) == 1
    assert all(shape in told[0] for shape in ("star", "chain", "tree of 2"))


def test_a_new_node_alone_gets_bytes_and_others_keep_foreign_files(filled: Scene) -> None:
    first, second = filled.receivers(2)
    fan_out(filled.source, str(filled.source_folder), [first], filled.files, filled.said.append)
    foreign = Path(first.folder) / "notes.txt"
    foreign.write_text("mine")
    done = fan_out(filled.source, str(filled.source_folder), [first, second], filled.files, filled.said.append)
    assert done["node-1"].moved_bytes == 0
    assert done["node-2"].moved_bytes == total(filled)
    assert foreign.read_text() == "mine"
    filled.assert_complete([first, second])


def test_files_that_came_otherwise_are_hashed_and_not_moved(filled: Scene) -> None:
    (receiver,) = filled.receivers(1)
    for file in filled.files[2:]:
        target = Path(receiver.folder) / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((filled.source_folder / file.path).read_bytes())
    wrong = Path(receiver.folder) / filled.files[4].path
    wrong.write_bytes(bytes(wrong.stat().st_size))
    done = fan_out(filled.source, str(filled.source_folder), [receiver], filled.files, filled.said.append)
    moved = sum(filled.files[number].size_bytes for number in (0, 1, 4))
    assert done["node-1"].moved_bytes == moved
    filled.assert_complete([receiver])


def test_a_relay_serves_what_it_has_to_those_behind_it(filled: Scene) -> None:
    """The chain runs through a node that lacks other files than the one behind it."""
    first, second = filled.receivers(2)
    fan_out(filled.source, str(filled.source_folder), [first], filled.files[:6], filled.said.append)
    fan_out(filled.source, str(filled.source_folder), [second], filled.files[6:], filled.said.append)
    done = carry(filled, [first, second], degree=1)
    filled.assert_complete([first, second])
    assert done["node-1"].moved_bytes == sum(file.size_bytes for file in filled.files[6:])
    assert done["node-2"].moved_bytes == sum(file.size_bytes for file in filled.files[:6])


def test_what_was_brought_is_kept_from_others_until_it_was_used(filled: Scene) -> None:
    (receiver,) = filled.receivers(1)
    folder = Path(receiver.folder)
    with brought(filled.source, str(filled.source_folder), [receiver], filled.files, filled.said.append) as received:
        assert received["node-1"].moved_bytes == total(filled)
        filled.assert_complete([receiver])
        assert not FolderState(folder).try_lock()
        assert not FolderState(folder).discard()
    filled.assert_complete([receiver])
    assert FolderState(folder).discard()
    assert list(folder.parent.iterdir()) == []


def test_who_waited_for_a_folder_that_was_discarded_begins_anew_and_alone(scene: Scene) -> None:
    folder = scene.folder / "node" / "model"
    first, second, third = (FolderState(folder) for _ in range(3))
    assert first.try_lock()
    (folder / "file").touch()
    assert not second.try_lock()
    assert first.discard()
    assert second.try_lock()
    assert list(folder.iterdir()) == []
    assert not third.try_lock()


def test_a_folder_that_is_discarded_while_somebody_takes_it_is_not_taken_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = scene.folder / "node" / "model"
    first, second, third = (FolderState(folder) for _ in range(3))
    assert first.try_lock()
    lock = fcntl.flock

    def discard_and_lock(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        assert first.discard()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", discard_and_lock)
    assert second.try_lock()
    assert folder.is_dir()
    assert not third.try_lock()


def test_inspection_tells_what_is_missing_and_deep_finds_a_flipped_byte(filled: Scene) -> None:
    receivers = filled.receivers(2)
    fan_out(filled.source, str(filled.source_folder), receivers, filled.files, filled.said.append)
    flipped = filled.files[7]
    path = Path(receivers[0].folder) / flipped.path
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[MEBI] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (Path(receivers[1].folder) / filled.files[5].path).unlink()

    found = inspect(receivers, filled.files, deep=False)
    assert found["node-1"].missing == ()
    assert found["node-2"].missing == (filled.files[5].path,)
    assert found["node-2"].missing_bytes == filled.files[5].size_bytes
    assert inspect(receivers, filled.files, deep=True)["node-1"].missing == (flipped.path,)
    done = fan_out(filled.source, str(filled.source_folder), receivers, filled.files, filled.said.append)
    assert done["node-1"].moved_bytes == flipped.size_bytes
    filled.assert_complete(receivers)


def test_inspection_of_a_folder_that_does_not_exist_makes_nothing(filled: Scene) -> None:
    (receiver,) = filled.receivers(1)
    assert inspect([receiver], filled.files, deep=True)["node-1"].missing_bytes == total(filled)
    assert not Path(receiver.folder).parent.exists()


@pytest.fixture
def large(scene: Scene) -> Scene:
    """A few files that take long enough to be interrupted."""
    chance = random.Random(2)
    block = chance.randbytes(4 * MEBI)
    for number in range(4):
        scene.add(f"model-{number}.safetensors", bytes([number]) + block * (2 + number))
    for number in range(30):
        scene.add(f"small/{number}.json", chance.randbytes(number * 1000))
    return scene


@pytest.mark.parametrize("seed", range(36))
def test_killed_at_a_random_point_and_repeated(large: Scene, seed: int) -> None:
    """kill -9 of source, middle or last receiver: no wrong file is left, and repeating finishes."""
    chance = random.Random(seed)
    receivers = large.receivers(3)
    who = ("source", "middle", "last")[seed % 3]
    processes: Callable[[], list[int]] = (
        sending_processes if who == "source" else lambda: processes_of(receivers[1 if who == "middle" else 2])
    )
    killer = threading.Thread(target=kill_some, args=(processes, chance, chance.uniform(0, 0.4)))
    killer.start()
    # Whoever is killed gets another chance at once, but for the source, and for one that had not yet told what it has.
    with contextlib.suppress(OperationError):
        carry(large, receivers, degree=1)
    killer.join()
    large.assert_nothing_wrong(receivers)
    carry(large, receivers, degree=1)
    large.assert_complete(receivers)


def test_a_broken_middle_node_is_bypassed_and_reported(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    receivers = large.receivers(3)
    start = FanOut._run_round
    killed: list[int] = []

    def kill_then_run(transfer: FanOut, members: list[Member]) -> None:
        if len(members) == 3:
            killed.extend(processes_of(receivers[1])[:1])
            os.kill(killed[0], 9)
        start(transfer, members)

    monkeypatch.setattr(FanOut, "_run_round", kill_then_run)
    done = carry(large, receivers, degree=1)
    assert killed
    large.assert_complete(receivers)
    assert any("node-2 is left out for now" in line for line in large.said)
    assert all("node-2" in text for member in (done["node-1"], done["node-3"]) for text in member.bypassed)
    assert done["node-1"].bypassed


def test_a_transfer_goes_on_from_whole_chunks_and_not_from_damaged_ones(scene: Scene) -> None:
    """A killed receiver leaves a beginning; a byte of it flips on the disk; only what follows the flip moves again."""
    file = scene.add("model.safetensors", random.Random(3).randbytes(6 * CHUNK_BYTES + 5))
    (receiver,) = scene.receivers(1)
    state = Path(receiver.folder).parent / ".model.transfer" / "parts"
    state.mkdir(parents=True)
    content = (scene.source_folder / file.path).read_bytes()
    name = hashlib.sha256(f"{file.path}\0{file.sha256}".encode()).hexdigest()[:32]
    sums = [hashlib.sha256(content[: end * CHUNK_BYTES]).hexdigest() for end in range(1, 6)]
    (state / f"{name}.sums").write_text("".join(f"{line}\n" for line in sums))
    (state / "0123456789abcdef").write_bytes(b"of a file that nobody asks for any more")
    begun = bytearray(content[: 5 * CHUNK_BYTES + 100])
    begun[3 * CHUNK_BYTES + 7] ^= 1
    (state / name).write_bytes(begun)

    done = fan_out(scene.source, str(scene.source_folder), [receiver], scene.files, scene.said.append)["node-1"]
    assert done.present_bytes == 3 * CHUNK_BYTES
    assert done.moved_bytes == file.size_bytes - 3 * CHUNK_BYTES
    scene.assert_complete([receiver])


def test_what_a_kill_left_of_a_file_that_is_in_place_is_removed(scene: Scene) -> None:
    """A receiver that is killed after it renamed a file has not removed the hashes of its beginning."""
    file = scene.add("model.safetensors", random.Random(4).randbytes(2 * CHUNK_BYTES))
    (receiver,) = scene.receivers(1)
    carry(scene, [receiver])
    name = hashlib.sha256(f"{file.path}\0{file.sha256}".encode()).hexdigest()[:32]
    (Path(receiver.folder).parent / ".model.transfer" / "parts" / f"{name}.sums").write_text("0" * 64 + "\n")
    carry(scene, [receiver])
    scene.assert_complete([receiver])


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts a wire that misbehaves in front of a node."""
    made: dict[tuple[str, int], Wire] = {}
    wanted: dict[str, dict[str, Any]] = {}
    note = FanOut._note_look

    def note_with_wire(transfer: FanOut, member: Member, event: dict[str, Any]) -> None:
        note(transfer, member, event)
        if member.node in wanted and member.port:
            key = (member.node, member.port)
            made.setdefault(key, Wire(member.port, **wanted[member.node]))
            member.port = made[key].port

    monkeypatch.setattr(FanOut, "_note_look", note_with_wire)
    yield lambda node, **options: wanted.__setitem__(node, options)
    for wire in made.values():
        wire.close()


def test_a_byte_that_flips_on_the_wire_is_found_and_fetched_again(large: Scene, wires: Callable[..., None]) -> None:
    wires("node-2", flip_at=3 * MEBI)
    receivers = large.receivers(3)
    done = carry(large, receivers, degree=1)
    large.assert_complete(receivers)
    assert not done["node-1"].wrong
    assert len(done["node-2"].wrong) == len(done["node-3"].wrong) == 1


def test_a_byte_that_always_flips_is_an_error_that_names_node_and_file(
    scene: Scene, wires: Callable[..., None]
) -> None:
    scene.add("weights/model.safetensors", bytes(20 * MEBI))
    wires("node-2", flip_at=9 * MEBI, always=True)
    receivers = scene.receivers(2)
    with pytest.raises(
        OperationError, match=r"node-2: weights/model.safetensors arrived twice .* source reads it right"
    ):
        carry(scene, receivers, degree=2)
    assert not (Path(receivers[1].folder) / "weights" / "model.safetensors").exists()
    scene.assert_complete(receivers[:1])


def test_a_link_that_is_cut_is_named_and_a_restored_one_is_used(
    large: Scene, wires: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fan_out_module, "SILENCE_SECONDS", 1)
    wires("node-2", hold_after=12 * MEBI)
    receivers = large.receivers(3)
    with pytest.raises(OperationError, match=r"node-1 cannot send to node-2|source cannot send to node-2"):
        carry(large, receivers, degree=1)
    large.assert_complete([receivers[0], receivers[2]])
    large.assert_nothing_wrong(receivers)
    wires("node-2")
    done = carry(large, receivers, degree=1)
    large.assert_complete(receivers)
    assert done["node-2"].present_bytes


@pytest.mark.parametrize("size", ["same", "shorter"])
def test_a_file_that_changes_at_the_source_during_the_transfer(
    large: Scene, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    changed = large.source_folder / "model-2.safetensors"
    choose = FanOut._choose_shape

    def change_then_choose(transfer: FanOut, members: list[Member]) -> None:
        with changed.open("r+b") as file:
            if size == "same":
                file.seek(MEBI)
                file.write(b"something else")
            else:
                file.truncate(5 * MEBI)
        choose(transfer, members)

    monkeypatch.setattr(FanOut, "_choose_shape", change_then_choose)
    receivers = large.receivers(2)
    with pytest.raises(OperationError, match=r"source.*changed since") as raised:
        carry(large, receivers, degree=1)
    assert "model-2.safetensors" in str(raised.value)
    large.assert_nothing_wrong(receivers)
    assert (Path(receivers[1].folder) / "model-1.safetensors").exists()


def test_a_source_that_lacks_a_file_is_named_before_anything_moves(large: Scene) -> None:
    (large.source_folder / "model-1.safetensors").unlink()
    with pytest.raises(OperationError, match=r"source: .*model-1\.safetensors cannot be read"):
        carry(large, large.receivers(1))


def test_too_little_disk_is_said_before_anything_moves(filled: Scene) -> None:
    filled.files.append(TransferFile("huge", 1 << 60, "0" * 64))
    receivers = filled.receivers(2)
    with pytest.raises(
        OperationError, match=r"nothing was moved:\nnode-1: .*model needs \d+ more bytes .* free \d+ bytes"
    ):
        carry(filled, receivers)
    assert list(Path(receivers[0].folder).iterdir()) == []


def test_a_stranger_is_refused_and_the_transfer_goes_on(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    note = FanOut._note_look
    strangers: list[socket.socket] = []

    def note_and_intrude(transfer: FanOut, member: Member, event: dict[str, Any]) -> None:
        note(transfer, member, event)
        if member.port and not strangers:
            strangers.extend(
                socket.create_connection((LOOPBACK, member.port), source_address=(address, 0))
                for address in ("127.0.0.2", LOOPBACK, LOOPBACK)
            )
            strangers[1].sendall(os.urandom(64))
            strangers[2].sendall(b"GET / HTTP/1.1\r\n")

    monkeypatch.setattr(FanOut, "_note_look", note_and_intrude)
    receivers = large.receivers(1)
    carry(large, receivers)
    large.assert_complete(receivers)
    refusals = [line for line in large.said if "refused a connection" in line]
    assert any("127.0.0.2: it is not source" in line for line in refusals)
    assert any("does not know this transfer's secret" in line for line in refusals)
    for stranger in strangers:
        assert b"model" not in stranger.recv(1 << 16)
        stranger.close()


def test_a_wrong_secret_moves_nothing(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = FanOut._open

    def open_with_wrong_secret(transfer: FanOut, member: Member, verb: str, folder: str) -> None:
        right, transfer._secret = transfer._secret, "00" * 32 if member.node == "node-2" else transfer._secret
        opened(transfer, member, verb, folder)
        transfer._secret = right

    monkeypatch.setattr(FanOut, "_open", open_with_wrong_secret)
    receivers = large.receivers(2)
    with pytest.raises(OperationError, match="source cannot send to node-2"):
        carry(large, receivers, degree=2)
    assert any("node-2 refused a connection from 127.0.0.1" in line for line in large.said)
    large.assert_complete(receivers[:1])
    assert list(Path(receivers[1].folder).iterdir()) == []


def test_the_secret_is_in_no_argument_and_no_output(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "5ec2e7" * 10 + "abcd"
    monkeypatch.setattr(fan_out_module.secrets, "token_bytes", lambda _: bytes.fromhex(secret))
    arguments: list[bytes] = []
    start = FanOut._run_round

    def read_arguments(transfer: FanOut, members: list[Member]) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                arguments.append((process / "cmdline").read_bytes() + (process / "environ").read_bytes())
        start(transfer, members)

    monkeypatch.setattr(FanOut, "_run_round", read_arguments)
    receivers = large.receivers(1)
    carry(large, receivers)
    assert any(b"runtime.transfer" in words for words in arguments)
    texts = [*arguments, *(line.encode() for line in large.said)]
    state = Path(receivers[0].folder).parent / ".model.transfer"
    texts += [path.read_bytes() for path in state.rglob("*") if path.is_file()]
    assert not any(secret.encode() in text or bytes.fromhex(secret) in text for text in texts)


def test_two_transfers_into_the_same_folders_wait_for_each_other(large: Scene) -> None:
    """In opposite orders, so that each could hold what the other one waits for."""
    receivers = large.receivers(2)
    results: dict[int, dict[str, Member]] = {}

    def run(number: int, order: list[Receiver]) -> None:
        results[number] = carry(large, order)

    threads = [
        threading.Thread(target=run, args=(number, receivers if number % 2 else receivers[::-1])) for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    large.assert_complete(receivers)
    for node in ("node-1", "node-2"):
        assert sorted(results[number][node].moved_bytes for number in results) == [0, 0, total(large)]


def test_a_killed_controller_leaves_no_process_and_the_next_one_goes_on(
    large: Scene,
) -> None:
    (receiver,) = large.receivers(1)
    text = (
        "import sys, json; from ops.transfers import *; a = json.load(sys.stdin); p = lambda n: Party(node=n, "
        "connection=None, storage_folder=a['folder'], address='127.0.0.1', switch='s'); "
        "fan_out(p('source'), a['source'], [Receiver(p('node-1'), a['target'])], "
        "[TransferFile(*f) for f in a['files']], print)"
    )
    request = {
        "folder": str(large.folder),
        "source": str(large.source_folder),
        "target": receiver.folder,
        "files": [[file.path, file.size_bytes, file.sha256] for file in large.files],
    }
    controller = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert controller.stdin is not None
    controller.stdin.write(json.dumps(request).encode())
    controller.stdin.close()
    while not processes_of(receiver) and controller.poll() is None:
        time.sleep(0.01)
    controller.kill()
    controller.wait()
    end = time.monotonic() + 20
    while processes_of(receiver):
        assert time.monotonic() < end, "the node's processes outlive the controller"
        time.sleep(0.02)
    large.assert_nothing_wrong([receiver])
    carry(large, [receiver])
    large.assert_complete([receiver])


def test_many_small_files(scene: Scene) -> None:
    scene.files = []
    for number in range(55_000):
        content = b"%d" % number
        folder = scene.source_folder / str(number % 50)
        if number < 50:
            folder.mkdir()
        (folder / str(number)).write_bytes(content)
        scene.files.append(TransferFile(f"{number % 50}/{number}", len(content), hashlib.sha256(content).hexdigest()))
    receivers = scene.receivers(1)
    assert carry(scene, receivers)["node-1"].moved_bytes == total(scene)
    scene.assert_complete(receivers)
    assert carry(scene, receivers)["node-1"].moved_bytes == 0


def test_one_file_of_five_gigabytes(tmp_path: Path) -> None:
    """Zeros without blocks at the source, so that only one copy lies on the disk."""
    scene = Scene(tmp_path)
    scene.source_folder.mkdir()
    size = 5_000_000_000
    with (scene.source_folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    digest, zeros = hashlib.sha256(), bytes(10_000_000)
    for _ in range(size // len(zeros)):
        digest.update(zeros)
    scene.files = [TransferFile("model.safetensors", size, digest.hexdigest())]
    receivers = scene.receivers(1)
    done = carry(scene, receivers)
    assert done["node-1"].moved_bytes == size
    target = Path(receivers[0].folder) / "model.safetensors"
    assert target.stat().st_size == size
    target.unlink()


def test_a_link_out_of_the_folder_is_not_followed(scene: Scene) -> None:
    scene.add("sub/file", b"content")
    (receiver,) = scene.receivers(1)
    outside = scene.folder / "outside"
    outside.mkdir()
    Path(receiver.folder).mkdir(parents=True)
    (Path(receiver.folder) / "sub").symlink_to(outside)
    with pytest.raises(OperationError, match=r"node-1.*goes through a link out of"):
        carry(scene, [receiver])
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_a_path_out_of_the_folder_is_refused(scene: Scene, path: str) -> None:
    with pytest.raises(OperationError, match="leads out of the folder"):
        fan_out(scene.source, "/nowhere", scene.receivers(1), [TransferFile(path, 1, "0" * 64)], print)


def test_a_file_is_named_once(scene: Scene) -> None:
    file = TransferFile("a", 1, "0" * 64)
    with pytest.raises(OperationError, match="'a' is twice in the list"):
        fan_out(scene.source, "/nowhere", scene.receivers(1), [file, file], print)


def test_a_node_takes_part_once(scene: Scene) -> None:
    twice = Receiver(local_party("source", scene.folder), "/somewhere")
    with pytest.raises(OperationError, match="source is named twice"):
        fan_out(scene.source, "/nowhere", [twice], [], print)


def test_progress_names_bytes_rate_and_time_left() -> None:
    assert progress_line("node-1", 3 << 30, 5 << 30, 512 << 20) == "node-1: 3.0 GiB of 5.0 GiB, 512 MiB/s, 4 s left"
    assert progress_line("node-1", 0, 5 << 30, 0).endswith("waiting")


def test_progress_is_told_during_a_transfer(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out_module, "_TELL_SECONDS", 0.001)
    carry(large, large.receivers(2), degree=1)
    # Either node may be the one that ends a moment after the other, too soon to be told of again.
    assert any(line.startswith("node-") and line.endswith(" s left") for line in large.said)


def test_who_broke_a_round() -> None:
    order = ["a", "b", "c"]
    to_a, to_b = Break("source", "child", "a", "silent"), Break("a", "child", "b", "silent")
    from_a, own = Break("b", "parent", "b", "ended"), Break("a", "self", "a", "killed")
    assert guilty([to_a, to_b], order) is to_b
    assert guilty([from_a, to_a, own], order) is own
    assert guilty([from_a], order) is from_a
