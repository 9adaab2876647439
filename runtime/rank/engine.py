"""The engine of one life of a rank: what it is given and how it is followed until it ends or has to."""

from collections.abc import Mapping

from runtime.rank.request import RankRequest
from runtime.rank.surroundings import SILENT, secret_variables

RAY_COUNT = (
    "python3",
    "-c",
    "import ray; ray.init(address='auto', logging_level='ERROR'); print(int(ray.cluster_resources().get('GPU', 0)))",
)
"""Prints how many accelerators Ray knows of."""


ACCELERATOR_MEMORY = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
"""Prints the free memory of each accelerator in MiB."""


def environment_for(request: RankRequest, found: Mapping[str, str]) -> dict[str, str]:
    """Returns the engine's environment: silent unless the Release says otherwise, and with its secrets.

    Args:
        request: the rank.
        found: the container's environment after the fabric was resolved.
    """
    silent = {name: value for name, value in SILENT.items() if name not in request.environment}
    return {**found, **silent, **secret_variables(request.secrets_folder)}


def ending(code: int) -> str:
    """Tells how a process ended."""
    return f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
