"""Where lab/ keeps what it makes on this machine."""

from pathlib import Path

from ops.places import cache_folder

ENGINE_RUN_FOLDER = Path("/run/gb10-serving-lab")
ENGINE_DATA_FOLDER = Path("/var/lib/gb10-serving/lab-docker")


def lab_cache_folder() -> Path:
    """Returns the folder of base systems and of the nodes' own image."""
    return cache_folder() / "lab"


def base_archive(identity: str) -> Path:
    """Returns the file of a base that is made here (spec/image_plan.py names it in the same way)."""
    return cache_folder() / "images" / f"{identity}.tar"


def lock_folder() -> Path:
    """Returns the folder of the lock files of fabrics and of the Docker engine."""
    return Path("~/.local/state/gb10-serving/lab/locks").expanduser()
