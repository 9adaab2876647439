"""Where runs are kept, and how one is found again."""

from pathlib import Path

from pydantic import ValidationError

from ops.bench.record import Run
from ops.errors import OperationError
from ops.places import STATE

FOLDER = STATE / "bench"


def keep(run: Run, folder: Path = FOLDER) -> Path:
    """Writes a run as IDENTIFIER.json and returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run.identifier}.json"
    temporary = path.with_suffix(".writing")
    temporary.write_text(run.model_dump_json(indent=1))
    temporary.replace(path)
    return path


def kept_runs(folder: Path = FOLDER) -> list[Run]:
    """Returns all runs, the oldest first.

    Raises:
        OperationError: a file is none.
    """
    return sorted((_read(path) for path in folder.glob("*.json")), key=lambda run: run.started)


def find_run(name: str, folder: Path = FOLDER) -> Run:
    """Returns a run by its file, its identifier, or the last one of a stack or address.

    Raises:
        OperationError: there is none.
    """
    if name.endswith(".json"):
        return _read(Path(name))
    runs = kept_runs(folder)
    found = [run for run in runs if name in (run.identifier, run.setup.name)]
    if not found:
        known = ", ".join(sorted({run.setup.name for run in runs})) or "none yet"
        raise OperationError(
            f"no run is called {name}, and none was made of a stack or address of that name (runs of: {known}). "
            f"`./fleet bench list` shows those in {folder}"
        )
    return found[-1]


def _read(path: Path) -> Run:
    try:
        return Run.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        raise OperationError(
            f"{path} is no run of this program's bench: {error}. Remove it, or run the bench anew"
        ) from None
