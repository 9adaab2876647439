"""What an image or an earlier installation has to say of the fabric, which must not reach the engine."""

import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path

from runtime.fabric.node import NodeFabric
from runtime.fabric.request import FabricRequest
from runtime.fabric.result import Problem, ResolvedRail
from runtime.fabric.selector import Selector, SelectorError, parse_selector

FABRIC_PREFIXES = ("NCCL_", "GLOO_", "TP_SOCKET_", "UCX_", "OMPI_MCA_btl_")
"""Beginnings of names that belong to the fabric; the same as in spec/nccl.py, which nodes do not have."""

FABRIC_NAMES = ("VLLM_HOST_IP", "MN_IF_NAME", "B12X_ROCE_GID_INDEX")
"""Names that belong to the fabric and have none of those beginnings."""

_FOUND_HERE = ("NCCL_IB_GID_INDEX", "B12X_ROCE_GID_INDEX")
_SELECTORS = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")
_INTERFACE_NAMES = (
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "OMPI_MCA_btl_tcp_if_include",
    "MN_IF_NAME",
)


def baked_in(request: FabricRequest, process_environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the fabric's variables that the image brings and the Release does not set."""
    return {
        name: value
        for name, value in sorted(process_environment.items())
        if name not in request.environment and (name.startswith(FABRIC_PREFIXES) or name in FABRIC_NAMES)
    }


def notices_of(removed: Mapping[str, str], rails: list[ResolvedRail], node: NodeFabric) -> tuple[str, ...]:
    """Returns what each variable that the image bakes in would have done, and how to choose it if it is meant."""
    return tuple(
        f"the image sets {name}={value}: {_effect(name, value, rails, node)}; the engine does not see it. To choose "
        "it, say so under `fabric/nccl` in the stack file"
        for name, value in removed.items()
    )


def _effect(name: str, value: str, rails: list[ResolvedRail], node: NodeFabric) -> str:
    if not value:
        return "an empty value hides what is found on the node"
    if name in _FOUND_HERE:
        return _effect_of_index(value, rails, node)
    if name in _INTERFACE_NAMES:
        return _effect_of_interface(value, rails, node)
    return "the Release does not ask for it"


def _effect_of_index(value: str, rails: list[ResolvedRail], node: NodeFabric) -> str:
    rail_ports = {(rail.hca, rail.port) for rail in rails}
    held = [
        f"slot {value} of {port.name} " + (f"holds {entry.address} ({entry.type})" if entry else "is empty, all zeros")
        for port in node.ports
        if (port.hca, port.number) in rail_ports
        for entry in [port.slot(int(value)) if value.isdigit() else None]
    ]
    return f"{'; '.join(held) or 'no rail has a GID table'}, and an index belongs to one node and one boot"


def _effect_of_interface(value: str, rails: list[ResolvedRail], node: NodeFabric) -> str:
    name = value.lstrip("^=").split(",")[0].split(":")[0]
    if any(name == rail.interface for rail in rails):
        return "the Release has its own way to say so"
    if node.interface(name):
        return f"{name} is no rail of this deployment"
    return f"this node has no interface {name}"


def environment_problems(request: FabricRequest, rails: list[ResolvedRail], node: NodeFabric) -> Iterator[Problem]:
    """What the Release itself sets must agree with what the node has."""
    for name in _FOUND_HERE:
        if name in request.environment:
            yield Problem(
                "gid-index-pinned",
                f"the Release sets {name}={request.environment[name]}: "
                f"{_effect_of_index(request.environment[name], rails, node)}",
                f"remove {name} from the stack file: it is found each time a rank starts",
            )
    for name in _SELECTORS:
        if name in request.environment and (name != "NCCL_IB_HCA" or request.kind == "roce"):
            yield from _selector_problems(name, request.environment[name], rails, node)


def _selector_problems(name: str, text: str, rails: list[ResolvedRail], node: NodeFabric) -> Iterator[Problem]:
    try:
        selector = parse_selector(text)
    except SelectorError as error:
        yield Problem("selector-unreadable", f"{name}: {error}", "write `=NAME` or `=NAME:PORT`, joined with commas")
        return
    if name == "NCCL_IB_HCA":
        ports = {(port.hca, port.number) for port in node.ports if port.is_active}
        own = {(rail.hca or "", rail.port or 0) for rail in rails}
    else:
        ports = {(interface.name, 0) for interface in node.interfaces if interface.is_up}
        own = {(rail.interface, 0) for rail in rails}
    taken = {port for port in ports if selector.selects(port[0], port[1] or None)}
    yield from _foreign(name, selector, sorted(taken - own), own)
    missed = sorted(own - taken)
    # Sockets of a RoCE fabric take the first rail only.
    if missed and (name == "NCCL_IB_HCA" or not taken & own):
        yield Problem(
            "selector-misses-a-rail",
            f"{name}={selector} does not take {', '.join(_shown(port) for port in missed)}",
            f"write {name}={_exact(own)}",
        )


def _foreign(
    name: str, selector: Selector, foreign: list[tuple[str, int]], own: set[tuple[str, int]]
) -> Iterator[Problem]:
    for port in foreign:
        if selector.inverted:
            code, why = "selector-takes-another-port", "an inverted list takes all that it does not name"
        elif selector.exact or any(entry.name == port[0] for entry in selector.entries):
            code, why = "twin-port", "it is named, and is cabled to something else"
        else:
            code, why = "prefix-matches-two", "without `=` a name is a beginning"
        yield Problem(
            code,
            f"{name}={selector} also takes {_shown(port)}, which is no rail of this deployment: {why}",
            f"write {name}={_exact(own)}",
        )


def _shown(port: tuple[str, int]) -> str:
    return f"{port[0]}:{port[1]}" if port[1] else port[0]


def _exact(ports: set[tuple[str, int]]) -> str:
    return "=" + ",".join(_shown(port) for port in sorted(ports))


def configuration_problems(files: Mapping[str, str], engine_environment: Mapping[str, str]) -> Iterator[Problem]:
    """A leftover nccl.conf sets what the Release leaves to NCCL, or says otherwise than the Release.

    Args:
        files: content of each file that NCCL would read, by its path.
        engine_environment: what the engine will be started with.
    """
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            name, equals, value = line.strip().partition("=")
            if equals and not name.startswith("#") and engine_environment.get(name) != value:
                ours = engine_environment.get(name)
                yield Problem(
                    "leftover-nccl-conf",
                    f"{path}, line {number}: {name}={value}, "
                    + ("which the Release leaves to NCCL" if ours is None else f"and the Release says {ours}"),
                    f"remove {path} (from the image, or from the folder that is mounted there), or choose it under "
                    "`fabric/nccl` in the stack file",
                )


def read_configuration_files() -> dict[str, str]:
    """Returns the files that NCCL reads beside its environment, where they exist: the user's and the machine's."""
    paths = (Path(_home()) / ".nccl.conf", Path("/etc/nccl.conf"))
    return {str(path): path.read_text(errors="replace") for path in paths if path.is_file()}


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"  # a user id that the image does not know has no home
