"""Building parts from the Go modules in `engine/`, once for each state of their sources."""

import functools
import hashlib
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ops.toolchain.errors import ToolchainError
from ops.toolchain.files import is_program, link_or_copy, lock_of, locked, new_folder, read_json, write_json
from ops.toolchain.golang import Go, find_go
from ops.toolchain.parts import LANGUAGE_PYTHON, PULUMI, Part
from ops.toolchain.surroundings import Surroundings

if TYPE_CHECKING:
    from ops.progress import Report

MANIFEST = "built-from-go-modules.json"
"""File beside a program that was built here: what it was built from."""


class Builder:
    """Builds parts and finds those that were built before.

    A part lies in `<cache>/engine/<part>-<hash>/`. The hash covers all files below `engine/<part>/`, the recipe, the
    platform and the version of Go. Such a folder appears as a whole or not at all.
    """

    def __init__(self, surroundings: Surroundings, report: "Report") -> None:
        """Prepares for building; nothing happens yet."""
        self._surroundings = surroundings
        self._report = report

    def find(self, part: Part) -> Path | None:
        """Returns the folder of a part that was built before from these very sources.

        Without a usable Go, one that was built with any version of it will do.
        """
        content = self.content_hash(part)
        try:
            folder = self._folder(part, content, self._go)
        except ToolchainError:
            for manifest in sorted(self._surroundings.engine_cache.glob(f"{part.name}-*/{MANIFEST}")):
                if read_json(manifest).get("content") == content and is_program(manifest.parent / part.binary):
                    return manifest.parent
            return None
        return folder if is_program(folder / part.binary) else None

    def build(self, part: Part) -> Path:
        """Builds a part, unless it is there already, and returns its folder.

        Raises:
            ToolchainError: there is no usable Go, or the build failed.
        """
        content = self.content_hash(part)
        folder = self._folder(part, content, self._go)

        def waiting() -> None:
            self._report(f"another process is building {part.name}; waiting for it")

        with locked(lock_of(folder), waiting):
            if not is_program(folder / part.binary):
                self._report(f"building {part.name} {part.version} from Go modules (once; {part.size})")
                log = folder.with_name(f"{folder.name}.log")
                with new_folder(folder) as filling:
                    self._compile(part, filling, log)
                    self._add_scripts(part, filling)
                    manifest = {"content": content, "go": self._go.version, "version": part.version}
                    write_json(filling / MANIFEST, manifest | {"platform": str(self._surroundings.platform)})
                log.unlink(missing_ok=True)
        return folder

    def join(self) -> Path:
        """Returns a folder with the built `pulumi` and everything that it looks for beside itself.

        Raises:
            ToolchainError: a part cannot be built.
        """
        folders = [self.find(part) or self.build(part) for part in (PULUMI, LANGUAGE_PYTHON)]
        name = hashlib.sha256("".join(folder.name for folder in folders).encode()).hexdigest()[:16]
        joined = self._surroundings.engine_cache / f"program-{name}"
        if not is_program(joined / PULUMI.binary):
            with locked(lock_of(joined), lambda: None), new_folder(joined) as filling:
                for folder in folders:
                    for file in folder.iterdir():
                        if file.name != MANIFEST:
                            link_or_copy(file, filling / file.name)
        return joined

    def joined_before(self) -> bool:
        """Reports whether `join` has nothing to build."""
        return all(self.find(part) for part in (PULUMI, LANGUAGE_PYTHON))

    def is_possible(self) -> bool:
        """Reports whether there is a Go that can build."""
        try:
            return bool(self._go)
        except ToolchainError:
            return False

    def content_hash(self, part: Part) -> str:
        """Returns a hash of everything that a build depends on, except for Go itself.

        Raises:
            ToolchainError: the part's folder is missing.
        """
        root = self._surroundings.sources / part.name
        if not (root / "go.mod").is_file():
            raise ToolchainError(
                f"{part.name} cannot be built: {root} has no go.mod. Is the checkout complete? Otherwise install the "
                "official pulumi from https://www.pulumi.com/docs/install."
            )
        recipe = {name: value for name, value in asdict(part).items() if name != "size"}
        digest = hashlib.sha256(f"{recipe} {self._surroundings.platform}\n".encode())
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    @functools.cached_property
    def _go(self) -> Go:
        surroundings = self._surroundings
        return find_go(surroundings.search_path, surroundings.environment, surroundings.sources / PULUMI.name)

    def _folder(self, part: Part, content: str, go: Go) -> Path:
        key = hashlib.sha256(f"{content} {go.version}".encode()).hexdigest()[:16]
        return self._surroundings.engine_cache / f"{part.name}-{key}"

    def _compile(self, part: Part, folder: Path, log: Path) -> None:
        arguments = ["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w -X {part.linked}"]
        if part.tags:
            arguments += ["-tags", part.tags]
        arguments += ["-o", str(folder / part.binary), part.package]
        title = f"building {part.name}"
        self._go.run(arguments, self._surroundings.sources / part.name, log, self._report, title)

    def _add_scripts(self, part: Part, folder: Path) -> None:
        for script in part.scripts:
            module = self._go.module_folder(script.module, self._surroundings.sources / part.name / script.folder)
            target = folder / Path(script.path).name
            shutil.copyfile(module / script.path, target)
            target.chmod(0o755)
