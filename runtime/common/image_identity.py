"""The identity of an image by its content: equal on two nodes exactly if a container of it would be equal."""

import hashlib
import json
from typing import Any

_CONFIG_KEYS = ("Cmd", "Entrypoint", "Env", "User", "WorkingDir")


def image_identity(layers: list[str], config: dict[str, Any], architecture: str) -> str:
    """Returns one hash of an image's layers and of the part of its configuration that decides how it runs.

    `docker image inspect .Id` differs between image stores for the same image (shared/facts/engine.md section 3), and
    stores write empty settings in different ways, so empty ones do not count.

    Args:
        layers: diff ids, lowest layer first.
        config: the image's `Config` as Docker writes it.
        architecture: as Docker names it, such as `arm64`.
    """
    relevant = {key: config[key] for key in _CONFIG_KEYS if config.get(key)}
    text = json.dumps([layers, relevant, architecture], sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
