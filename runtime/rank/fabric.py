"""The fabric as a rank finds it each time it starts."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from runtime.fabric.request import FabricRequest
from runtime.fabric.resolving import Patience, Surroundings, engine_environment, resolve
from runtime.fabric.result import ResolvedFabric, ResolvedRail, mtu_problems
from runtime.rank.request import RankRequest
from runtime.rank.status import Status


def resolve_fabric(request: RankRequest, sleep: Callable[[float], None], tell: Callable[[str], None]) -> ResolvedFabric:
    """Finds devices, GID index and addresses of this node, waiting for links that come up late.

    Raises:
        FabricError: the fabric is not what the deployment asks for; with every problem and a table.
    """
    asked = FabricRequest.from_plain({**request.fabric, "environment": request.environment})
    patience = Patience(wait_seconds=request.patience.fabric, sleep=sleep, tell=tell)
    return resolve(asked, os.environ, Surroundings(sysfs=request.sysfs_folder), patience)


def environment_of_engine(fabric: ResolvedFabric) -> dict[str, str]:
    """Returns this container's environment as the engine may see it: without what an image bakes in of the fabric."""
    return engine_environment(os.environ, fabric)


def rails_to_plain(fabric: ResolvedFabric) -> tuple[Mapping[str, Any], ...]:
    """Returns the rails for the status."""
    return tuple(fabric.to_plain()["rails"])


def mtu_differences(statuses: list[Status]) -> list[str]:
    """Returns on which rails the MTUs of the ranks' nodes differ."""
    return mtu_problems({status.node: [ResolvedRail(**rail) for rail in status.rails] for status in statuses})
