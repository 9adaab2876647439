"""Asks all nodes of a stack at once how it stands."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ops.diagnosis import LastWords, diagnosis
from ops.errors import OperationError
from ops.remote import run_on_node
from spec.release import Release
from spec.standing import Standing, Verdict, judge_release, status_request, worst

_ANSWER_SECONDS = 60


@dataclass(frozen=True)
class StackStatus:
    """How a stack stands now.

    Attributes:
        release: what it is compared with.
        standings: everything that the Release asks for, by node.
        memory: MemAvailable and MemTotal in bytes, by node; none of a node that cannot be asked.
        silent: why a node could not be asked, by node.
        diagnosis: cause and cure, where what ranks said last is a known failure.
    """

    release: Release
    standings: list[Standing]
    memory: dict[str, dict[str, int] | None]
    silent: dict[str, str]
    diagnosis: str | None

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return worst(one.verdict for one in self.standings)

    @property
    def endpoints(self) -> dict[str, str]:
        """Where each group answers, by its name."""
        nodes = self.release.nodes
        return {
            group.name: f"http://{nodes[group.ranks[0].node].connection.address}:{group.port}/v1"
            for group in self.release.groups
            if group.serves
        }

    @property
    def front(self) -> str | None:
        """Where users of all groups are answered."""
        router = self.release.router
        return f"http://{self.release.nodes[router.node].connection.address}:{router.port}/v1" if router else None

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, for JSON."""
        return {
            "stack": self.release.stack,
            "release": self.release.hash,
            "verdict": self.verdict,
            "generations": {group.name: group.hash for group in self.release.groups},
            "endpoints": self.endpoints,
            "front": self.front,
            "memory": self.memory,
            "silent": self.silent,
            "standings": [one.as_data() for one in self.standings],
            "diagnosis": self.diagnosis,
        }


def stack_status(release: Release) -> StackStatus:
    """Asks every node of a Release, all at once; a node that cannot be asked makes its parts unknown, never absent."""
    with ThreadPoolExecutor(max_workers=len(release.nodes)) as pool:
        answers = dict(zip(release.nodes, pool.map(lambda node: ask_node(release, node), release.nodes), strict=True))
    standings = judge_release(release, answers)
    memory = {node: _known(answer.get("memory")) for node, answer in answers.items()}
    silent = {node: answer["unknown"] for node, answer in answers.items() if "unknown" in answer}
    return StackStatus(release, standings, memory, silent, _diagnosis(standings))


def ask_node(release: Release, node: str) -> dict[str, Any]:
    """Returns what one node has of a Release; `{"unknown": why}` where it cannot be asked."""
    try:
        return run_on_node(
            release.nodes[node].connection,
            release.storage_folder,
            "status",
            status_request(release, node),
            timeout_seconds=_ANSWER_SECONDS,
        )
    except OperationError as error:
        return {"unknown": str(error)}


def _known(memory: dict[str, Any] | None) -> dict[str, int] | None:
    return memory if memory and "unknown" not in memory else None


def _diagnosis(standings: list[Standing]) -> str | None:
    words = [
        LastWords(f"rank {one.name} on {one.node}", one.last_lines)
        for one in standings
        if one.kind == "rank" and one.verdict == "wrong" and one.last_lines
    ]
    return diagnosis(words) if words else None
