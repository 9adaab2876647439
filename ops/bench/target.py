"""What is measured: a stack with all its members, or any OpenAI-compatible address."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ops import stacks
from ops.bench import prompts
from ops.bench.record import Setup
from ops.bench.server import Server, look_at
from ops.errors import OperationError
from ops.remote import run_on_node
from ops.runtime_package import runtime_package
from spec.model import Probe
from spec.reference_settings import settings_of
from spec.release import Release
from spec.situation import Situation


@dataclass(frozen=True)
class Target:
    """What is measured.

    Attributes:
        name: of the stack, or the address.
        servers: that are loaded, all at once: the members of a pool, or the router in front of them.
        probes: questions with known answers.
        situation, release: of a stack; none for an address.
    """

    name: str
    servers: tuple[Server, ...]
    probes: tuple[Probe, ...]
    situation: Situation | None = None
    release: Release | None = None


def find_target(
    name: str, router: str | None, model: str | None, key_variable: str | None, wanted: Mapping[str, Any]
) -> Target:
    """Looks a target up and asks its servers what they are.

    Args:
        name: of a stack of this project, or an address such as `http://HOST:8000/v1`.
        router: address in front of a stack's members; the load goes there.
        model: as the server calls it; a stack knows its own.
        key_variable: environment variable that holds the key of the API.
        wanted: fields beyond OpenAI's that the method uses.

    Raises:
        OperationError: there is no such stack, or a server does not answer.
    """
    headers = {"Authorization": f"Bearer {_key(key_variable)}"} if key_variable else {}
    if name not in stacks.stacks():
        if "://" not in name:
            raise OperationError(
                f"{name} is neither a stack ({', '.join(stacks.stacks())}) nor an address with http://"
            )
        server = look_at(name, base_url(name), headers, model, dict(wanted))
        return Target(name, (server,), (prompts.ARITHMETIC,))
    release = stacks.planned(name)
    members = {
        group.name: _address(release, group.ranks[0].node, group.port) for group in release.groups if group.serves
    }
    if not members:
        raise OperationError(f"stack {name} runs offline jobs: there is no API to measure")
    served = release.groups[0].served_name
    if router:
        places = {"router": base_url(router)}
        counters = {"router": tuple(members.values())}
    else:
        places, counters = members, {group: (url,) for group, url in members.items()}
    with ThreadPoolExecutor(max_workers=len(places)) as pool:
        found = list(
            pool.map(
                lambda group: look_at(group, places[group], headers, served, dict(wanted), counters[group]), places
            )
        )
    return Target(name, tuple(found), release.groups[0].probes, stacks.situation_of(name), release)


def setup_of(target: Target) -> Setup:
    """Returns what is measured, with what each node and its image are.

    Raises:
        OperationError: a node does not answer.
    """
    first = target.servers[0]
    plain = Setup(
        name=target.name,
        addresses={server.name: server.base_url for server in target.servers},
        served_name=first.model,
        engine_version=first.version,
    )
    release, situation = target.release, target.situation
    if release is None or situation is None:
        return plain
    names = release.rank_nodes
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        facts = dict(zip(names, pool.map(lambda node: _node_facts(release, node), names), strict=True))
    identities = {found["image_identity"] for found in facts.values()}
    return plain.model_copy(
        update={
            "release_hash": release.hash,
            "image_reference": release.image.reference,
            "image_identity": identities.pop() if len(identities) == 1 else None,
            "settings": settings_of(situation, release).model_dump(mode="json"),
            "nodes": facts,
        }
    )


def program() -> str:
    """Returns what tells versions of this program apart."""
    return runtime_package().hash[:16]


def base_url(address: str) -> str:
    """Returns an address with `/v1` at its end."""
    stripped = address.rstrip("/")
    return stripped if stripped.endswith("/v1") else f"{stripped}/v1"


def _address(release: Release, node: str, port: int) -> str:
    return f"http://{release.nodes[node].connection.address}:{port}/v1"


def _node_facts(release: Release, node: str) -> dict[str, str | None]:
    connection = release.nodes[node].connection
    facts = run_on_node(connection, release.storage_folder, "facts", {})
    image = run_on_node(
        connection, release.storage_folder, "image-identity", {"reference": release.image.reference, "node": node}
    )
    return {**facts, "image_identity": image["identity"]}


def _key(variable: str) -> str:
    if variable not in os.environ:
        raise OperationError(f"the environment has no {variable}: set it, or leave --key-variable out")
    return os.environ[variable]
