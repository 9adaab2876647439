"""Official programs and plugins: those that are installed, and downloads of those that are not."""

import contextlib
import io
import queue
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.toolchain.building import MANIFEST
from ops.toolchain.errors import ToolchainError
from ops.toolchain.files import is_program, lock_of, locked, new_folder, read_json, write_json
from ops.toolchain.parts import LANGUAGE_PYTHON, OLDEST_PULUMI, PULUMI, Part
from ops.toolchain.surroundings import Surroundings

if TYPE_CHECKING:
    import httpx

    from ops.progress import Report

_PATIENCE = 4.0
"""Seconds until the release server must have answered. Name resolution counts."""
_READ_PATIENCE = 15.0
"""Seconds that a download may stand still."""
_REMEMBERED = 24 * 3600.0
"""Seconds for which a failed download is not tried again."""


class Memory:
    """What is known from earlier runs, in a small file beside the programs."""

    def __init__(self, path: Path) -> None:
        """Reads the file; it may be missing."""
        self._path = path
        self._content = read_json(path)

    def get(self, topic: str, key: str) -> Any:
        """Returns what is known, or None."""
        return self._content.get(topic, {}).get(key)

    def put(self, topic: str, key: str, value: Any) -> None:
        """Remembers a value. If the file cannot be written, only this run knows it."""
        self._content.setdefault(topic, {})[key] = value
        with contextlib.suppress(OSError):
            write_json(self._path, self._content)


def plugin_folder(home: Path, part: Part) -> Path:
    """Returns where a provider lies in the plugin cache of a PULUMI_HOME."""
    return home / "plugins" / f"{part.binary.removeprefix('pulumi-')}-v{part.version}"


def find_plugin(home: Path, part: Part) -> Path | None:
    """Returns an official provider in a plugin cache, or None."""
    folder = plugin_folder(home, part)
    program = folder / part.binary
    return program if is_program(program) and not (folder / MANIFEST).exists() else None


def find_pulumi(surroundings: Surroundings, memory: Memory) -> tuple[Path, str] | None:
    """Returns the official pulumi on PATH and its version, if it is new enough and complete.

    Programs that were built here do not count, even if PATH leads to them.
    """
    found = shutil.which(PULUMI.binary, path=surroundings.search_path)
    if found is None:
        return None
    program = Path(found).resolve()
    if program.is_relative_to(surroundings.engine_cache.resolve()):
        return None
    if not (
        is_program(program.with_name(LANGUAGE_PYTHON.binary))
        or shutil.which(LANGUAGE_PYTHON.binary, path=surroundings.search_path)
    ):
        return None
    version = _version(program, memory)
    if version is None or _numbers(version) < OLDEST_PULUMI:
        return None
    return Path(found), version


def _version(program: Path, memory: Memory) -> str | None:
    status = program.stat()
    identity = f"{program} {status.st_size} {status.st_mtime_ns}"
    known = memory.get("versions", identity)
    if isinstance(known, str):
        return known
    try:
        done = subprocess.run(
            [str(program), "version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"v?(\d+\.\d+\.\d+\S*)", done.stdout)
    if done.returncode or not found:
        return None
    memory.put("versions", identity, found.group(1))
    return found.group(1)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


class Downloads:
    """Official releases from the release server.

    As with Pulumi's own installer and plugin downloads, what comes over TLS from that server is trusted.
    """

    def __init__(self, surroundings: Surroundings, memory: Memory, report: "Report") -> None:
        """Prepares for downloads; nothing happens yet."""
        self._surroundings = surroundings
        self._memory = memory
        self._report = report

    def failed_lately(self) -> str | None:
        """Returns why the release server could not be used, if that was within the last day."""
        failure = self._memory.get("failures", self._surroundings.releases)
        if not isinstance(failure, dict):
            return None
        age = time.time() - float(failure.get("at", 0))
        return str(failure.get("reason")) if 0 <= age < _REMEMBERED else None

    @property
    def pulumi_folder(self) -> Path:
        """Where a downloaded pulumi lies, with its language hosts."""
        return self._surroundings.engine_cache / f"official-pulumi-{PULUMI.version}"

    def find_pulumi(self) -> Path | None:
        """Returns a pulumi that was downloaded before, or None."""
        program = self.pulumi_folder / PULUMI.binary
        return program if is_program(program) else None

    def fetch_pulumi(self) -> Path | None:
        """Downloads pulumi with its language hosts. Returns None, after saying why, if that is not possible."""
        platform = self._surroundings.platform
        machine = {"amd64": "x64"}.get(platform.machine, platform.machine)
        address = f"{self._surroundings.releases}/sdk/pulumi-v{PULUMI.version}-{platform.system}-{machine}.tar.gz"
        needed = (PULUMI.binary, LANGUAGE_PYTHON.binary)
        return self._fetch(PULUMI, address, self.pulumi_folder, needed)

    def fetch_plugin(self, part: Part, home: Path) -> Path | None:
        """Downloads a provider into a plugin cache. Returns None, after saying why, if that is not possible."""
        platform = self._surroundings.platform
        name = f"{part.binary}-v{part.version}-{platform.system}-{platform.machine}.tar.gz"
        address = f"{self._surroundings.releases}/plugins/{name}"
        return self._fetch(part, address, plugin_folder(home, part), (part.binary,))

    def _fetch(self, part: Part, address: str, folder: Path, needed: tuple[str, ...]) -> Path | None:
        self._report(f"looking for the official {part.name} {part.version}")
        try:
            lock = lock_of(self._surroundings.engine_cache / folder.name)  # nothing strange in the operator's own home
            with locked(lock, lambda: None), new_folder(folder) as filling:
                self._download(address, filling)
                missing = [name for name in needed if not is_program(filling / name)]
                if missing:
                    raise ToolchainError(f"{address} does not hold {', '.join(missing)}")
        except ToolchainError as error:
            self._memory.put("failures", self._surroundings.releases, {"at": time.time(), "reason": str(error)})
            self._report(f"no official {part.name}: {error}")
            return None
        return folder / part.binary

    def _download(self, address: str, folder: Path) -> None:
        import httpx  # only needed here, and slow to import

        client = httpx.Client(follow_redirects=True, timeout=httpx.Timeout(_READ_PATIENCE, connect=_PATIENCE))
        with client:
            response = _first_answer(client, address)
            try:
                if response.status_code != httpx.codes.OK:
                    raise ToolchainError(f"{address} answered {response.status_code} {response.reason_phrase}")
                with tempfile.TemporaryFile(dir=folder) as archive:
                    for piece in response.iter_bytes():
                        archive.write(piece)
                    archive.seek(0)
                    _unpack(archive, folder)
            except (httpx.HTTPError, tarfile.TarError, OSError, EOFError) as error:
                raise ToolchainError(f"{address} could not be read ({error or type(error).__name__})") from error
            finally:
                response.close()


def _first_answer(client: "httpx.Client", address: str) -> "httpx.Response":
    """Returns the response to a request, its content unread.

    Name resolution has no time limit of its own, so the request runs in a thread that is left alone if it takes long.
    """
    import httpx

    answers: queue.Queue[httpx.Response | Exception] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(client.send(client.build_request("GET", address), stream=True))
        except Exception as error:  # noqa: BLE001 - handed to the caller, who judges it
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=_PATIENCE)
    except queue.Empty:
        raise ToolchainError(f"{address} does not answer within {_PATIENCE:.0f} s") from None
    if isinstance(answer, httpx.Response):
        return answer
    raise ToolchainError(f"{address} cannot be reached ({answer or type(answer).__name__})") from answer


def _unpack(archive: Any, folder: Path) -> None:
    """Takes the files out of an archive, all into one folder, whatever folders they are in there."""
    with tarfile.open(fileobj=archive, mode="r:gz") as members:
        for member in members:
            name = Path(member.name).name
            content = members.extractfile(member) if member.isreg() else None
            if content is None or not name or name.startswith("."):
                continue
            target = folder / name
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, io.DEFAULT_BUFFER_SIZE * 16)
            target.chmod(0o755 if member.mode & 0o111 else 0o644)
