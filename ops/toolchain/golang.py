"""The Go compiler: finding it, and running it so that a build depends on nothing but its sources."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ops.toolchain.errors import ToolchainError

if TYPE_CHECKING:
    from ops.progress import Report

_USUAL_PLACES = ("/usr/local/go/bin/go", "/opt/homebrew/bin/go", "/usr/lib/go/bin/go")
_REPORT_INTERVAL = 20.0
_QUOTED_LINES = 12


@dataclass(frozen=True)
class Go:
    """A Go compiler that can build the parts."""

    program: Path
    version: str
    """As Go says it, for example "go1.26.8"."""
    environment: Mapping[str, str]
    """The environment to run it in."""

    def run(self, arguments: Sequence[str], folder: Path, log: Path, report: "Report", title: str) -> None:
        """Runs a go command that may take minutes, and says now and then that it still runs.

        Raises:
            ToolchainError: it failed; the text quotes the end of its output.
        """
        started = time.monotonic()
        with log.open("w", encoding="utf-8") as output:
            output.write(f"$ cd {folder} && go {' '.join(arguments)}\n")
            output.flush()
            process = subprocess.Popen(
                [str(self.program), *arguments],
                cwd=folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while True:
                    try:
                        code = process.wait(timeout=_REPORT_INTERVAL)
                        break
                    except subprocess.TimeoutExpired:
                        report(f"{title}: {time.monotonic() - started:.0f} s so far")
            except BaseException:
                _end(process)
                raise
        if code:
            raise ToolchainError(
                f"{title} failed: `go {arguments[0]}` in {folder} ended with code {code}. The end of its output: "
                f"{_quoted_end(log)} All of it is in {log}. If a module could not be fetched, make the Go module proxy "
                "reachable (GOPROXY, default https://proxy.golang.org) and try again; what is built already stays."
            )

    def module_folder(self, module: str, folder: Path) -> Path:
        """Returns where a module that `folder/go.mod` pins lies; fetches it if needed and checks its hash.

        Raises:
            ToolchainError: it cannot be fetched or is not what go.sum says.
        """
        _capture(self.program, ["mod", "download", module], folder, self.environment)
        found = _capture(
            self.program, ["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module], folder, self.environment
        )
        return Path(found)


def find_go(search_path: str, environment: Mapping[str, str], sources: Path) -> Go:
    """Finds a Go compiler that is new enough, or that can fetch one that is.

    Args:
        search_path: PATH.
        environment: The operator's environment.
        sources: Folder with a go.mod, which says which version is needed.

    Raises:
        ToolchainError: there is none; the text says what to install.
    """
    needed = _needed_version(sources / "go.mod")
    reason = "The engine has to be built from Go modules, because it is neither installed nor could it be downloaded"
    advice = (
        f"Install Go {needed} or newer from https://go.dev/dl (with network access any Go from 1.21 on will do: it "
        "fetches the newer one by itself), or the official pulumi from https://www.pulumi.com/docs/install."
    )
    program = shutil.which("go", path=search_path) or next((p for p in _USUAL_PLACES if os.access(p, os.X_OK)), None)
    if program is None:
        raise ToolchainError(f"{reason}, and there is no Go to do that with. {advice}")
    clean = _clean(environment)
    try:
        # Go of another version than the go.mod asks for replaces itself here, if it can.
        version = _capture(Path(program), ["env", "GOVERSION"], sources, clean)
    except ToolchainError as error:
        raise ToolchainError(f"{reason}, and {program} is not usable: {error} {advice}") from error
    if _numbers(version) < _numbers(needed):
        raise ToolchainError(f"{reason}, and {program} ({version}) is too old. {advice}")
    return Go(Path(program), version, clean)


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without what would make a build differ from machine to machine."""
    dropped = {"GOOS", "GOARCH", "GOWORK"}
    clean = {name: value for name, value in environment.items() if name not in dropped}
    return clean | {"CGO_ENABLED": "0", "GOWORK": "off"}


def _needed_version(module: Path) -> str:
    try:
        found = re.search(r"^go\s+(\S+)", module.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError as error:
        raise ToolchainError(
            f"The engine cannot be built: {module} cannot be read ({error.strerror}). Is the checkout complete?"
        ) from error
    return found.group(1) if found else "1.21"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _capture(program: Path, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [str(program), *arguments],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ToolchainError(f"{program} cannot be run ({error.strerror}).") from error
    if done.returncode:
        raise ToolchainError(f"`go {' '.join(arguments)}` in {folder} failed: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


def _quoted_end(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    end = [line for line in lines[1:] if line and not line.startswith("go: downloading")][-_QUOTED_LINES:]
    return f'"{" | ".join(end)}".' if end else "(it printed nothing)."


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a go command and the compilers that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
