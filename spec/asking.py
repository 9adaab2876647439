"""What the controller asks of a group that was started: one request, whoever waits for it."""

from typing import Any

from spec.release import GroupPlan, Release
from spec.supervision import rank_folder

_ANSWERS_SECONDS = 600
"""What all probes together may take after the start."""


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
