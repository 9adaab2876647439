"""What the router's resources run on the controller."""

import sys
from typing import Any

from ops.errors import OperationError
from ops.image_building import archive_identity
from ops.places import PROJECT
from ops.remote import run_on_node, stream_to_node
from ops.router_image import router_archive
from spec.catalog import Catalog
from spec.connection import Connection

_LOAD_SECONDS = 1800
_SETTLE_SECONDS = 120
_OWN_KEYS = ("connection", "storage_folder")


def router_image(request: dict[str, Any]) -> Any:
    """Brings the router's image to its node.

    Args:
        request: `connection`, `storage_folder`, `image` (reference).

    Raises:
        OperationError: the catalogue says something else by now, or the image cannot be made or loaded.
    """
    source = Catalog(PROJECT / "catalog").router("haproxy")
    if source.reference != request["image"]:
        raise OperationError(
            f"catalog/routers/haproxy.yaml makes {source.reference}, this deployment was planned with "
            f"{request['image']}: restore the file, or plan again"
        )
    machine = _run(request, "facts", {})["architecture"]
    archive = router_archive(source, machine, _say)
    wanted = archive_identity(archive)
    asked = {"reference": request["image"]}
    if _run(request, "image-identity", asked)["identity"] != wanted:
        stream_to_node(_connection(request), "docker load --quiet", archive, _LOAD_SECONDS)
        found = _run(request, "image-identity", asked)["identity"]
        if found != wanted:
            raise OperationError(
                f"{_connection(request).node} loaded {request['image']} and holds {found}, sent was {wanted}: its "
                "image store is damaged, look at `docker image inspect` there"
            )
    return {"reference": request["image"], "identity": wanted}


def router_settings(request: dict[str, Any]) -> Any:
    """Writes the router's settings; one that runs takes them over without closing a connection."""
    return _run(request, "router-settings", _without_own_keys(request), _SETTLE_SECONDS)


def remove_router(request: dict[str, Any]) -> Any:
    """Removes what the router left on its node."""
    return _run(request, "remove-router", _without_own_keys(request))


def router_ready(request: dict[str, Any]) -> Any:
    """Waits until the router sends requests to every group."""
    return _run(request, "router-ready", _without_own_keys(request), request["wait_seconds"] + _SETTLE_SECONDS)


def _run(request: dict[str, Any], verb: str, asked: dict[str, Any], seconds: int = 120) -> Any:
    return run_on_node(_connection(request), request["storage_folder"], verb, asked, timeout_seconds=seconds)


def _connection(request: dict[str, Any]) -> Connection:
    return Connection.model_validate(request["connection"])


def _without_own_keys(request: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key not in _OWN_KEYS}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
