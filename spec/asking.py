"""What the controller asks about a group before and after its start: one request, whoever asks."""

from typing import Any

from spec.handover import held_ports
from spec.release import GroupPlan, RankPlan, Release, RouterPlan
from spec.router import FOLDER, PROGRAM
from spec.supervision import fabric_request, rank_folder, sysfs_folder_on_node

_ANSWERS_SECONDS = 600
"""What all probes together may take after the start."""

_CREATION_SECONDS = 300
"""What making the containers of a group may take."""


def preflight_checks(
    release: Release, group: GroupPlan, rank: RankPlan, image: dict[str, Any], manifests: dict[str, Any]
) -> dict[str, Any]:
    """Returns what the preflight of a rank's node looks at (runtime/node/preflight.py), without the moment.

    Args:
        release: what shall run.
        group: of it.
        rank: of the group.
        image: `identity` and `layers` as built.
        manifests: hash of the manifest of each model and drafter by its name.
    """
    plan = release.nodes[rank.node]
    return {
        "stack": release.stack,
        "group": group.name,
        "storage_folder": release.storage_folder,
        "image": {"node": rank.node, "reference": release.image.reference, **image},
        "weights": [{**one.receipt_request, "manifest": manifests[one.name]} for one in release.weights],
        "mounts": [mount.source for mount in rank.mounts],
        "devices": list(rank.devices),
        "fabric": {**fabric_request(rank), "environment": rank.environment},
        "sysfs_folder": sysfs_folder_on_node(rank),
        "floor_percent": release.memory.floor_percent,
        "gpus": rank.gpus,
        "ports": list(held_ports(group, rank)),
        "required_bytes": group.required_bytes,
        "shared_memory_bytes": plan.shared_memory_bytes,
        "open_files": rank.open_files,
        "leaving": [],
    }


def ready_request(release: Release, group: GroupPlan) -> dict[str, Any]:
    """Returns what `ops.readiness.wait_until_ready` needs to know of a group."""
    readiness = release.readiness
    return {
        "storage_folder": release.storage_folder,
        "group": group.name,
        "ranks": [
            {
                "rank": rank.rank,
                "node": rank.node,
                "container": rank.container,
                "interfaces": sorted(release.nodes[rank.node].fabric),
                "supervisor": {key: getattr(rank.supervision.peers[rank.rank], key) for key in ("address", "port")},
                "connection": release.nodes[rank.node].connection.model_dump(mode="json"),
            }
            for rank in group.ranks
        ],
        "probe": _probe(release, group) if group.serves else None,
        "start_timeout_seconds": readiness.start_timeout_seconds,
        "watch_seconds": readiness.start_timeout_seconds + _ANSWERS_SECONDS,
    }


def turn_request(release: Release, router: RouterPlan, group: GroupPlan) -> dict[str, Any]:
    """Returns what `ops.turns.take_turn` needs to know of a member of a pool."""
    before = release.groups[: release.groups.index(group)]
    ending = release.stop_grace_seconds * max(len(one.ranks) for one in release.groups) + router.drain_seconds
    return {
        "group": group.name,
        "generation": group.hash,
        "storage_folder": release.storage_folder,
        "router": {
            "connection": release.nodes[router.node].connection.model_dump(mode="json"),
            "folder": router.folder,
            "container": router.container,
        },
        "before": [
            {
                "group": one.name,
                "generation": one.hash,
                "connection": release.nodes[one.ranks[0].node].connection.model_dump(mode="json"),
                "container": one.ranks[0].container,
            }
            for one in before
        ],
        "wait_seconds": len(before) * (release.readiness.start_timeout_seconds + _ANSWERS_SECONDS + ending),
        "absent_seconds": ending + _CREATION_SECONDS,
    }


def router_request(release: Release, router: RouterPlan) -> dict[str, Any]:
    """Returns what a node needs to know of the router that it runs (runtime/node/router.py)."""
    return {
        "stack": release.stack,
        "container": router.container,
        "image": router.image,
        "program": PROGRAM,
        "folder": router.folder,
        "seen_folder": FOLDER,
        "port": router.port,
        "settings": router.settings,
    }


def router_ready_request(release: Release, router: RouterPlan) -> dict[str, Any]:
    """Returns what a node needs to know in order to wait until the router sends requests to every group."""
    return {
        "folder": router.folder,
        "container": router.container,
        "members": {one.group: f"{one.address}:{one.port}" for one in router.members},
        "generations": {group.name: group.hash for group in release.groups},
        "wait_seconds": release.readiness.answer_timeout_seconds * 2,
    }


def _probe(release: Release, group: GroupPlan) -> dict[str, Any]:
    readiness = release.readiness
    return {
        "port": group.port,
        "served_name": group.served_name,
        "probes": [probe.model_dump(mode="json") for probe in group.probes],
        "api_key_file": f"{rank_folder(release, group.ranks[0])}/secrets/api-key",
        "start_timeout_seconds": readiness.start_timeout_seconds,
        "answer_timeout_seconds": readiness.answer_timeout_seconds,
    }
