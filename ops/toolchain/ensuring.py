"""Making the engine ready: what is installed is used, else downloaded, else built."""

from pathlib import Path
from typing import TYPE_CHECKING

from ops.toolchain.building import MANIFEST, Builder
from ops.toolchain.errors import ToolchainError
from ops.toolchain.files import is_program, link_or_copy, lock_of, locked, new_folder, read_json
from ops.toolchain.official import Downloads, Memory, find_plugin, find_pulumi, plugin_folder
from ops.toolchain.parts import LANGUAGE_PYTHON, PROVIDERS, PULUMI, Part
from ops.toolchain.surroundings import Surroundings
from ops.toolchain.toolchain import Toolchain, ToolchainPart

if TYPE_CHECKING:
    from ops.progress import Report


def ensure_toolchain(report: "Report", surroundings: Surroundings | None = None) -> Toolchain:
    """Makes the engine ready and says which one it is.

    For `pulumi` with its language host, and for each provider, the first of these is used: an official one that is
    installed; one that was built here from these very sources; the official download; a build from the Go modules in
    `engine/`. The last two happen once. When all is there, only files are looked at.

    Args:
        report: Told what is being done, line by line, if anything is.
        surroundings: Where to look; this machine if absent.

    Raises:
        ToolchainError: the engine can neither be found nor downloaded nor built.
    """
    where = surroundings or Surroundings.of_this_machine()
    try:
        return _Search(where, report).run()
    except OSError as error:
        raise ToolchainError(
            f"The engine could not be made ready: {error}. Is there room, and may this user write below {where.cache}? "
            "Another folder can be chosen with GB10_SERVING_CACHE."
        ) from error


class _Search:
    """One run of `ensure_toolchain`."""

    def __init__(self, where: Surroundings, report: "Report") -> None:
        self._where = where
        self._report = report
        self._memory = Memory(where.engine_cache / "memory.json")
        self._builder = Builder(where, report)
        self._downloads = Downloads(where, self._memory, report)

    def run(self) -> Toolchain:
        installed = find_pulumi(self._where, self._memory)
        program, engine = self._official_engine(*installed) if installed else self._other_engine()
        # An installed pulumi keeps its home, with the operator's login in it, unless something of ours has to go there.
        home = self._where.chosen_home or (self._where.usual_home if installed else self._where.own_home)
        found = [self._provider(part, home) for part in PROVIDERS]
        if home != self._where.chosen_home and any(provider.origin != "official" for provider in found):
            home = self._where.own_home
        providers = [self._placed(part, provider, home) for part, provider in zip(PROVIDERS, found, strict=True)]
        return Toolchain(pulumi=program, home=home, parts=(*engine, *providers))

    def _may_download(self) -> bool:
        """A download that failed lately is not tried again as long as a build is a way out."""
        return self._downloads.failed_lately() is None or not self._builder.is_possible()

    def _official_engine(self, program: Path, version: str) -> tuple[Path, tuple[ToolchainPart, ...]]:
        host = program.resolve().with_name(LANGUAGE_PYTHON.binary)
        return program, (
            ToolchainPart(PULUMI.name, version, "official", program),
            ToolchainPart(LANGUAGE_PYTHON.name, version, "official", host),
        )

    def _other_engine(self) -> tuple[Path, tuple[ToolchainPart, ...]]:
        program = self._downloads.find_pulumi()
        if program is None and not self._builder.joined_before() and self._may_download():
            program = self._downloads.fetch_pulumi()
        if program is not None:
            return self._official_engine(program, PULUMI.version)
        folder = self._builder.join()
        program, host = folder / PULUMI.binary, folder / LANGUAGE_PYTHON.binary
        return program, (
            ToolchainPart(PULUMI.name, PULUMI.version, "built from Go modules", program),
            ToolchainPart(LANGUAGE_PYTHON.name, LANGUAGE_PYTHON.version, "built from Go modules", host),
        )

    def _provider(self, part: Part, home: Path) -> ToolchainPart:
        """Returns a provider wherever it lies; official ones may be taken from the usual home, too."""
        homes = (home,) if self._where.chosen_home else (home, self._where.usual_home)
        official = next((found for place in homes if (found := find_plugin(place, part))), None)
        built = None
        if official is None:
            built = self._builder.find(part)
        if official is None and built is None and self._may_download():
            official = self._downloads.fetch_plugin(part, home)
        if official is not None:
            return ToolchainPart(part.name, part.version, "official", official)
        folder = built or self._builder.build(part)
        return ToolchainPart(part.name, part.version, "built from Go modules", folder / part.binary)

    def _placed(self, part: Part, found: ToolchainPart, home: Path) -> ToolchainPart:
        """Puts a provider into the home's plugin cache, unless it is there already."""
        target = plugin_folder(home, part)
        source = found.path.parent

        def in_place() -> bool:
            if not is_program(target / part.binary):
                return False
            return source == target or read_json(target / MANIFEST) == read_json(source / MANIFEST)

        if not in_place():
            with locked(lock_of(target), lambda: None), new_folder(target) as filling:
                if found.origin == "official":
                    (filling / part.binary).symlink_to(found.path)
                else:
                    for file in source.iterdir():
                        link_or_copy(file, filling / file.name)
        return ToolchainPart(part.name, part.version, found.origin, target / part.binary)
