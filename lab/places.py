"""Where lab/ keeps what it makes on this machine."""

import os
from pathlib import Path

ENGINE_RUN_FOLDER = Path("/run/gb10-serving-lab")
ENGINE_DATA_FOLDER = Path("/var/lib/gb10-serving/lab-docker")


def cache_folder() -> Path:
    """Returns the folder of everything that can be made again; the environment's GB10_SERVING_CACHE moves it."""
    return Path(os.environ.get("GB10_SERVING_CACHE", "~/.cache/gb10-serving")).expanduser()


def lab_cache_folder() -> Path:
    """Returns the folder of base systems and of the nodes' own image."""
    return cache_folder() / "lab"


def rank_images_folder() -> Path:
    """Returns the folder of the docker archives that ranks run."""
    return cache_folder() / "images"


def lock_folder() -> Path:
    """Returns the folder of the lock files of fabrics and of the Docker engine."""
    return Path("~/.local/state/gb10-serving/lab/locks").expanduser()
