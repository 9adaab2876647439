"""The command plugin in use behaves as the official one: 185 recorded exchanges, and what recordings cannot hold."""

import copy
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ops.toolchain import ToolchainPart, ensure_toolchain
from tests.engine.command_plugin import LogLine, Plugin, running_plugin, urn
from tests.engine.loopback_ssh import SshServer, silent_port, ssh_server

EXCHANGES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "command-provider.json").read_text(encoding="utf-8")
)
UNREACHABLE = "198.51.100.250"
"""The recorded address at which nobody answers."""


@dataclass(frozen=True)
class Place:
    """What stands where the recording has placeholders, or the recording machine's own values."""

    server: SshServer
    silent_port: int
    local: Path
    remote: Path

    def filled(self, exchange: dict[str, Any]) -> dict[str, Any]:
        """Returns an exchange as it should happen here."""
        checks = exchange["call"] == "Check"
        unreachable = UNREACHABLE in json.dumps(exchange)
        port = self.silent_port if unreachable else self.server.port
        text = {
            "<host>": "127.0.0.1",
            UNREACHABLE + ":22": f"127.0.0.1:{port}",
            UNREACHABLE: "127.0.0.1",
            "<private key>": self.server.private_key,
            "ssh-ed25519 <another key>": self.server.other_host_key,
            "<dir>": str(self.local),
            "/root/": f"{self.remote}/",
        }

        def fill(value: Any) -> Any:
            if isinstance(value, str):
                for placeholder, replacement in text.items():
                    value = value.replace(placeholder, replacement)
                return value
            if isinstance(value, list):
                return [fill(element) for element in value]
            if not isinstance(value, dict):
                return value
            filled = {key: fill(element) for key, element in value.items()}
            # Check fills in the usual port, which has to be compared; all others have to reach our server.
            if not checks and "host" in filled and "port" in filled:
                filled["port"] = float(port)
            if "host" in filled and "user" in filled and exchange["case"] != "remote-defaults/check":
                filled["user"] = self.server.user
            return filled

        return {
            "call": exchange["call"],
            "request": fill(exchange["request"]),
            "response": fill(exchange["response"]),
            "log": fill(exchange["log"]),
        }


@pytest.fixture(scope="module")
def part() -> ToolchainPart:
    return ensure_toolchain(print).part("command-provider")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(scope="module")
def place(server: SshServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    local, remote = tmp_path_factory.mktemp("local"), tmp_path_factory.mktemp("remote")
    (local / "dir" / "below").mkdir(parents=True)
    (local / "dir" / "one.txt").write_text("one")
    (local / "dir" / "below" / "two.txt").write_text("two")
    with silent_port() as port:
        yield Place(server, port, local, remote)


@pytest.fixture(scope="module")
def plugin(part: ToolchainPart) -> Iterator[Plugin]:
    with without_agent(), running_plugin(part.path) as running:
        yield running


@pytest.fixture
def fresh_plugin(part: ToolchainPart) -> Iterator[Plugin]:
    """A plugin of its own for a test after which it is of no use, on behaviour that only ours has."""
    if part.origin == "official":
        pytest.skip("the official plugin is in use; what it does here is known to be different")
    with without_agent(), running_plugin(part.path) as running:
        yield running


class without_agent:  # noqa: N801 - used like a function
    """An ssh agent of the operator's must not take part."""

    def __enter__(self) -> None:
        self._socket = os.environ.pop("SSH_AUTH_SOCK", None)

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            os.environ["SSH_AUTH_SOCK"] = self._socket


def differences(expected: dict[str, Any], response: dict[str, Any], log: list[LogLine]) -> list[str]:
    """Returns in what an exchange differs from the expected one."""
    found = []
    wanted = _comparable(expected["response"])
    got = _comparable(response)
    if got != wanted:
        found.append(f"response {json.dumps(got, sort_keys=True)}\ninstead of {json.dumps(wanted, sort_keys=True)}")
    wanted_log: list[LogLine] = sorted((severity, text, passing) for severity, text, passing in expected["log"])
    if log != wanted_log and log != _log_of_the_other_order(expected, wanted_log):
        found.append(f"log {log}\ninstead of {wanted_log}")
    return found


def _log_of_the_other_order(expected: dict[str, Any], wanted: list[LogLine]) -> list[LogLine]:
    """Returns the log if standard error came before standard output, whose last line has no end here.

    Which of two streams is read first is chance, in the official plugin as well: `in` and then `2` is logged as one
    line, `2` and then `in` as two. Only an exchange with both streams has another order.
    """
    streams = expected["response"].get("properties") or {}
    output, errors = str(streams.get("stdout") or ""), str(streams.get("stderr") or "")
    if not output or not errors or wanted != [(1, output + errors, True)]:
        return wanted
    return sorted([(1, output, True), (1, errors, True)])


def _comparable(response: dict[str, Any]) -> dict[str, Any]:
    """Returns a response without what differs from run to run."""
    plain = copy.deepcopy(response)
    plain.pop("id", None)  # random
    if "ERROR" in plain:
        # Two streams are read at the same time: the order of their lines is chance.
        code, text = plain["ERROR"]
        head, separator, output = text.partition('":\n')
        plain["ERROR"] = [code, head + separator + "\n".join(sorted(output.splitlines()))]
    return plain


def replay(plugin: Plugin, exchange: dict[str, Any]) -> list[str]:
    """Has an exchange with the plugin and returns in what it differs."""
    plugin.take_log()
    response = plugin.call(exchange["call"], exchange["request"])
    return differences(exchange, response, plugin.take_log(expected=len(exchange["log"])))


def test_recording_is_complete() -> None:
    assert len(EXCHANGES) == 185
    assert {exchange["call"] for exchange in EXCHANGES} == {
        *("GetPluginInfo", "Configure", "Check", "Diff", "Create", "Update", "Read", "Delete"),
    }


@pytest.mark.parametrize("exchange", EXCHANGES, ids=[exchange["case"] for exchange in EXCHANGES])
def test_exchange(exchange: dict[str, Any], plugin: Plugin, place: Place) -> None:
    found = replay(plugin, place.filled(exchange))
    assert not found, "\n".join(found)


def test_create_gives_an_id(plugin: Plugin) -> None:
    request = {"urn": urn("local:Command"), "properties": {"create": "true"}}
    first, second = (plugin.call("Create", request).get("id") for _ in range(2))
    assert first
    assert second
    assert first != second


def test_copies_arrive(plugin: Plugin, place: Place) -> None:
    for exchange in EXCHANGES:
        if exchange["case"].startswith("copy-"):
            plugin.call(exchange["call"], place.filled(exchange)["request"])
    files = {path.relative_to(place.remote).as_posix(): path.read_text() for path in place.remote.rglob("*.txt")}
    assert files == {
        "copied/x.txt": "hello",
        "copied/y.txt": "hello",
        "arch/dir/one.txt": "one",
        "arch/dir/below/two.txt": "two",
        "arch2/one.txt": "one",
        "arch2/below/two.txt": "two",
    }


def _alterations() -> dict[str, tuple[str, Callable[[dict[str, Any]], Any]]]:
    """Returns for each kind of mistake a case and what is done to its recording."""
    return {
        "another output": ("local-same/create", lambda e: e["response"]["properties"].update(stdout="ha")),
        "one property more": ("local-same/create", lambda e: e["response"]["properties"].update(more="x")),
        "one property less": ("local-same/create", lambda e: e["response"]["properties"].pop("stderr")),
        "no secret": ("remote-same/check-old", lambda e: e["response"]["inputs"].update(connection={})),
        "another default": (
            "remote-same/check-old",
            lambda e: e["response"]["inputs"]["connection"]["value"].update(port=23.0),
        ),
        "known in a preview": (
            "local-create-preview/create",
            lambda e: e["response"]["properties"].update(stdout="never"),
        ),
        "another kind of difference": (
            "local-triggers-added/diff",
            lambda e: e["response"]["detailedDiff"]["triggers"].update(kind="UPDATE_REPLACE"),
        ),
        "another error code": ("local-fails/create", lambda e: e["response"]["ERROR"].__setitem__(0, "INTERNAL")),
        "another error text": ("local-fails/create", lambda e: e["response"]["ERROR"].__setitem__(1, "exit status 4")),
        "a line not logged": ("local-same/create", lambda e: e["log"].append([1, "more", True])),
        "a line too much": ("local-same/create", lambda e: e["log"].clear()),
        "another severity": ("remote-env/create", lambda e: e["log"][0].__setitem__(0, 2)),
        "a passing message": ("copy-text/create", lambda e: e["log"][0].__setitem__(2, True)),
    }


@pytest.mark.parametrize("kind", _alterations())
def test_a_wrong_answer_would_be_noticed(kind: str, plugin: Plugin, place: Place) -> None:
    case, alter = _alterations()[kind]
    altered = place.filled(next(exchange for exchange in EXCHANGES if exchange["case"] == case))
    assert replay(plugin, altered) == []
    alter(altered)
    assert replay(plugin, altered)


# What recordings do not hold.


def connection(server: SshServer, **more: Any) -> dict[str, Any]:
    """Returns a connection as a program states it, without defaults."""
    login = {"user": server.user, "privateKey": server.private_key}
    return {"host": "127.0.0.1", "port": server.port, **login, **more}


def create(kind: str, **properties: Any) -> dict[str, Any]:
    """Returns the request to create a resource."""
    return {"urn": urn(kind), "properties": properties}


@pytest.mark.parametrize("kind", ["local:Command", "remote:Command"])
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("head -c 300000 /dev/zero | tr '\\0' x; echo; echo end", "x" * 300_000 + "\nend"),
        ("head -c 300000 /dev/zero | tr '\\0' '\\r'; echo end", "\r" * 300_000 + "end"),
        ("head -c 6000000 /dev/zero | tr '\\0' y", "y" * 6_000_000),
    ],
    ids=["long line", "progress bar", "more than grpc takes by default"],
)
def test_output_of_any_length(kind: str, command: str, expected: str, fresh_plugin: Plugin, server: SshServer) -> None:
    where = {"connection": connection(server)} if kind.startswith("remote") else {}
    response = fresh_plugin.call("Create", create(kind, create=command, **where))
    assert response.get("ERROR") is None
    assert response["properties"]["stdout"] == expected
    logged = "".join(message for _, message, _ in fresh_plugin.raw_log())
    assert logged.replace("\n", "") == expected.replace("\n", "").rstrip("\r")


def test_output_that_is_not_text(fresh_plugin: Plugin) -> None:
    response = fresh_plugin.call("Create", create("local:Command", create="printf 'a\\377b'"))
    assert response["properties"]["stdout"] == "a\ufffdb"


def test_error_with_much_output_arrives(fresh_plugin: Plugin) -> None:
    command = "echo first; head -c 40000000 /dev/zero | tr '\\0' x; echo last; exit 3"
    code, text = fresh_plugin.call("Create", create("local:Command", create=command, logging="none"))["ERROR"]
    assert code == "UNKNOWN"
    assert text.startswith("exit status 3: running")
    assert "first" in text
    assert text.endswith("last\n")
    assert len(text) < 200_000


def _wait(condition: Callable[[], Any], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    """Reports whether a process exists and is not merely waiting to be forgotten."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


# A shell with a child and a grandchild, one of which does not want to end.
STUBBORN = """
sleep 600 & echo $! >> {pids}
sh -c 'trap "" TERM; echo $$ >> {pids}; sleep 600; sleep 600' &
echo $$ >> {pids}; wait
"""


def _pids(file: Path) -> list[int]:
    _wait(lambda: file.exists() and len(file.read_text().split()) == 3)
    return [int(pid) for pid in file.read_text().split()]


def test_cancel_ends_a_local_command_with_its_descendants(fresh_plugin: Plugin, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    call = fresh_plugin.start("Create", create("local:Command", create=STUBBORN.format(pids=pids)))
    running = _pids(pids)
    assert all(_alive(pid) for pid in running)
    fresh_plugin.call("Cancel", {})
    code, text = fresh_plugin.answer(call)["ERROR"]
    assert code == "UNKNOWN"
    assert text.startswith("cancelled: ")
    _wait(lambda: not any(_alive(pid) for pid in running), 2)


def test_cancel_before_the_command_starts_it_not(fresh_plugin: Plugin, tmp_path: Path) -> None:
    fresh_plugin.call("Cancel", {})
    response = fresh_plugin.call("Create", create("local:Command", create=f"touch {tmp_path}/started"))
    assert "cancelled" in response["ERROR"][1]
    assert not (tmp_path / "started").exists()


def test_timeout_ends_a_local_command(fresh_plugin: Plugin, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    started = time.monotonic()
    request = create("local:Command", create=STUBBORN.format(pids=pids)) | {"timeout": 1}
    text = fresh_plugin.call("Create", request)["ERROR"][1]
    assert text.startswith("timed out: ")
    assert time.monotonic() - started < 8
    assert not any(_alive(pid) for pid in _pids(pids))


def test_a_child_that_left_the_group_does_not_block_cancellation(fresh_plugin: Plugin, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = f"setsid sh -c 'echo $$ > {pid}; exec sleep 600' & wait"
    call = fresh_plugin.start("Create", create("local:Command", create=command))
    _wait(lambda: pid.exists() and pid.read_text())
    try:
        fresh_plugin.call("Cancel", {})
        assert "cancelled" in fresh_plugin.answer(call)["ERROR"][1]
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_the_end_of_the_plugin_ends_its_commands(fresh_plugin: Plugin, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    call = fresh_plugin.start("Create", create("local:Command", create=STUBBORN.format(pids=pids)))
    running = _pids(pids)
    fresh_plugin.process.terminate()
    assert fresh_plugin.process.wait(timeout=15) == 0
    assert "ERROR" in fresh_plugin.answer(call)
    assert not any(_alive(pid) for pid in running)


def test_cancel_ends_a_remote_command(fresh_plugin: Plugin, server: SshServer, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; echo 0 >> {pids}; wait"
    call = fresh_plugin.start("Create", create("remote:Command", create=command, connection=connection(server)))
    running = [pid for pid in _pids(pids) if pid]
    fresh_plugin.call("Cancel", {})
    assert fresh_plugin.answer(call)["ERROR"][1].startswith("cancelled: ")
    _wait(lambda: not any(_alive(pid) for pid in running), 5)


def test_cancel_ends_dialling(fresh_plugin: Plugin, server: SshServer) -> None:
    with silent_port() as port:
        where = connection(server, port=port, dialErrorLimit=-1, perDialTimeout=1)
        call = fresh_plugin.start("Create", create("remote:Command", create="true", connection=where))
        _wait(lambda: any("Dial 1/inf failed" in message for _, message, _ in fresh_plugin.raw_log()))
        fresh_plugin.call("Cancel", {})
        assert fresh_plugin.answer(call)["ERROR"][1].startswith("cancelled: ")


def test_a_connection_without_check_gets_its_defaults(fresh_plugin: Plugin, server: SshServer) -> None:
    bare = {"host": "127.0.0.1", "port": server.port, "privateKey": server.private_key}
    response = fresh_plugin.call("Create", create("remote:Command", create="id -un", connection=bare))
    if server.user == "root":
        assert response["properties"]["stdout"] == "root"
    else:
        assert "unable to authenticate" in response["ERROR"][1]


def test_a_server_that_says_nothing_is_given_up(fresh_plugin: Plugin, server: SshServer) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        where = connection(server, port=listener.getsockname()[1], dialErrorLimit=1, perDialTimeout=1)
        text = fresh_plugin.call("Create", create("remote:Command", create="true", connection=where))["ERROR"][1]
    assert "does not finish the ssh handshake" in text


def test_the_right_host_key_is_accepted(plugin: Plugin, server: SshServer) -> None:
    where = connection(server, hostKey=server.host_key)
    inputs = plugin.call("Check", {"urn": urn("remote:Command"), "news": {"create": "echo ok", "connection": where}})
    response = plugin.call("Create", {"urn": urn("remote:Command"), "properties": inputs["inputs"]})
    assert response["properties"]["stdout"] == "ok"


def test_a_proxy_is_used(fresh_plugin: Plugin, server: SshServer) -> None:
    where = connection(server, proxy=connection(server, hostKey=server.host_key))
    response = fresh_plugin.call("Create", create("remote:Command", create="echo $SSH_CONNECTION", connection=where))
    assert response["properties"]["stdout"].startswith("127.0.0.1 ")
    wrong = connection(server, proxy=connection(server, hostKey=server.other_host_key, dialErrorLimit=1))
    wrong["dialErrorLimit"] = 1
    text = fresh_plugin.call("Create", create("remote:Command", create="true", connection=wrong))["ERROR"][1]
    assert re.search(r"proxy .*host key mismatch", text)


@pytest.mark.parametrize("kind", ["local:Command", "remote:Command"])
def test_input_is_passed_to_every_command(kind: str, plugin: Plugin, server: SshServer, tmp_path: Path) -> None:
    where = {"connection": connection(server)} if kind.startswith("remote") else {}
    news = {"create": "cat", "delete": f"cat > {tmp_path}/deleted", **where}
    inputs = plugin.call("Check", {"urn": urn(kind), "news": {**news, "stdin": "one"}})["inputs"]
    old = plugin.call("Create", {"urn": urn(kind), "properties": inputs})["properties"]
    assert old["stdout"] == "one"
    new = plugin.call("Update", {"urn": urn(kind), "olds": old, "news": {**inputs, "stdin": "two"}})["properties"]
    assert new["stdout"] == "two"
    assert plugin.call("Delete", {"urn": urn(kind), "properties": new}) == {}
    assert (tmp_path / "deleted").read_text() == "two"


@pytest.mark.parametrize("kind", ["local:Command", "remote:Command"])
def test_input_that_nobody_reads(kind: str, plugin: Plugin, server: SshServer) -> None:
    where = {"connection": connection(server)} if kind.startswith("remote") else {}
    inputs = {"create": "true", "stdin": "x" * 1_000_000, **where}
    inputs = plugin.call("Check", {"urn": urn(kind), "news": inputs})["inputs"]
    response = plugin.call("Create", {"urn": urn(kind), "properties": inputs})
    assert response["properties"]["stdout"] == ""


def test_run_returns_the_output(plugin: Plugin) -> None:
    response = plugin.call("Invoke", {"tok": "command:local:run", "args": {"command": "echo hi", "logging": "none"}})
    assert response["return"]["stdout"] == "hi"
    response = plugin.call("Invoke", {"tok": "command:local:run", "args": {}})
    assert response["failures"][0]["property"] == "command"


def test_patterns_of_collected_files(fresh_plugin: Plugin, tmp_path: Path) -> None:
    names = ("assets/logos/logo.svg", "src/index.js", "src/deep/more.js", "src/secret.js", "other.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    rules = ["assets/**", "src/**.js", "!**secret.*"]
    request = create("local:Command", create="true", dir=str(tmp_path), assetPaths=rules, archivePaths=["*.txt"])
    properties = fresh_plugin.call("Create", request)["properties"]
    assert sorted(properties["assets"]) == ["assets/logos/logo.svg", "src/deep/more.js", "src/index.js"]
    assert list(properties["archive"]["assets"]) == ["other.txt"]


def test_a_removed_trigger_replaces(plugin: Plugin) -> None:
    old = {"create": "true", "triggers": ["a"]}
    request = {"urn": urn("local:Command"), "olds": old, "old_inputs": old, "news": {"create": "true"}}
    response = plugin.call("Diff", request)
    assert response["detailedDiff"] == {"triggers": {"kind": "DELETE_REPLACE"}}


def test_an_unknown_resource_is_named(fresh_plugin: Plugin) -> None:
    _, text = fresh_plugin.call("Create", create("remote:CopyFile"))["ERROR"]
    assert "command:remote:CopyFile" in text
