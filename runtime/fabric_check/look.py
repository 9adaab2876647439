"""A node's links as they are now: addresses, MTU, speed and width, RDMA devices and GID tables, and who uses them."""

from pathlib import Path
from typing import Any

from runtime.fabric.node import read_node, table_of
from runtime.fabric.request import FabricRequest
from runtime.fabric.resolving import Patience, Surroundings, resolve
from runtime.fabric.result import FabricError
from runtime.node.docker import docker
from runtime.node.errors import NodeTaskError


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Looks at the rails of a request as `runtime.fabric` reads it.

    Returns:
        `problems` (each `code`, `text`, `way_out`), `table`, `links` (one a rail), `indexes` (of the RoCE v2 GIDs of
        each rail's address, by device), `serving` (containers of ours that run; none where Docker cannot be asked) and
        `serving_unknown` (why).
    """
    serving, unknown = _serving()
    return {**look_at_tree(request, Surroundings()), "serving": serving, "serving_unknown": unknown}


def look_at_tree(request: dict[str, Any], surroundings: Surroundings) -> dict[str, Any]:
    """Looks at a tree that describes a node."""
    asked = FabricRequest.from_plain(request)
    node = read_node(surroundings.sysfs, surroundings.addresses())
    try:
        resolve(asked, {}, surroundings, Patience(wait_seconds=0))
        problems = []
    except FabricError as error:
        problems = [{"code": one.code, "text": one.text, "way_out": one.way_out} for one in error.problems]
    return {
        "problems": problems,
        "table": table_of(node, asked.rails),
        "links": [_link(surroundings.sysfs, rail.interface, rail.hca) for rail in asked.rails],
        "indexes": [
            {port.name: sorted(port.indexes_of(rail.address, rail.interface)) for port in node.ports_of(rail)}
            for rail in asked.rails
        ],
    }


def _link(root: Path, interface: str, hca: str | None) -> dict[str, Any]:
    folder = root / "class/net" / interface
    speed = _text(folder / "speed")
    ports = sorted((root / "class/infiniband" / hca / "ports").glob("*")) if hca else []
    return {
        "interface": interface,
        "state": _text(folder / "operstate"),
        "mtu_bytes": int(_text(folder / "mtu") or 0),
        # A link that is down says -1, a virtual one anything.
        "speed_megabits": int(speed) if speed and speed.isdigit() else None,
        "is_physical": (folder / "device").exists(),
        "hca": hca,
        "rate": _text(ports[0] / "rate") if ports else None,
        "pcie": _pcie(folder / "device"),
    }


def _pcie(folder: Path) -> dict[str, str | None]:
    names = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
    return {name: _text(folder / name) for name in names}


def _serving() -> tuple[list[str] | None, str | None]:
    try:
        shown = docker("ps", "--format", "{{.Names}}", "--filter", "label=gb10-serving.stack").stdout
    except NodeTaskError as error:
        return None, str(error)
    return sorted(shown.split()), None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None  # a link that is down answers EINVAL for its speed
