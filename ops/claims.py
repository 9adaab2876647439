"""Claims of nodes as the controller sees them: taken on all nodes of a group or on none, looked at, cleared."""

import getpass
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ops.errors import OperationError
from ops.progress import Report
from ops.remote import NodeError, run_on_node
from spec.claims import Found, RankContainer, StackView, judge_claim
from spec.cluster import Cluster
from spec.connection import Connection, connection_to

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Holding:
    """A node that can be claimed: how to reach it, and our folder there."""

    connection: Connection
    storage_folder: str


def operator() -> str:
    """Returns who acts, as USER@HOST, for a claim's `by`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def take_all(holdings: Sequence[Holding], stack: str, group: str) -> None:
    """Takes every node for a group; if one is refused or does not answer, those taken here are given back.

    Raises:
        OperationError: naming every node that could not be taken, and why.
    """
    by = operator()
    outcomes = _on_all(holdings, lambda one: _ask(one, "claim", {"stack": stack, "group": group, "by": by}))
    failed = [str(outcome) for _, outcome in outcomes if isinstance(outcome, OperationError)]
    if not failed:
        return
    taken = [(one, outcome["before"]) for one, outcome in outcomes if not isinstance(outcome, OperationError)]
    failed += _given_back(taken, stack, group, by)
    raise OperationError("\n".join([f"group {group} takes all its nodes or none, and got none:", *failed]))


def free_all(holdings: Sequence[Holding], stack: str, group: str, report: Report) -> None:
    """Gives up every node that a group still holds; says which nodes could not be asked, and goes on."""
    asked = {"stack": stack, "group": group}
    for one, outcome in _on_all(holdings, lambda holding: _ask(holding, "release-claim", asked)):
        if isinstance(outcome, OperationError):
            report(f"{one.connection.node}: a claim of {stack}, group {group} may be left there: {outcome}")


def looked_at(cluster: Cluster, stacks: Mapping[str, StackView]) -> dict[str, Found]:
    """Looks at the claim of every node of a cluster and judges it by what the backend knows.

    Args:
        cluster: whose nodes are asked, all at the same time.
        stacks: what the backend's stacks say that they hold, by name.
    """
    holdings = [Holding(connection_to(cluster, node), cluster.storage_folder) for node in cluster.nodes]
    found: dict[str, Found] = {}
    for one, outcome in _on_all(holdings, lambda holding: _ask(holding, "look-at-claim", {})):
        machine = f"{one.connection.address}:{one.connection.port}"
        if isinstance(outcome, OperationError):
            found[one.connection.node] = Found(state="unknown", claim=None, containers=(), why=str(outcome))
            continue
        containers = tuple(RankContainer.model_validate(each) for each in outcome["containers"])
        found[one.connection.node] = judge_claim(outcome["claim"], containers, machine, stacks)
    return found


def clear(cluster: Cluster, node: str, found: Found) -> None:
    """Removes a stale claim and what its ranks left on the node.

    Raises:
        OperationError: somebody stands behind the claim, or the node cannot be asked.
    """
    if found.state not in ("stale", "left"):
        raise OperationError(
            f"{node} is {found.state}: {found.why}. Only a claim that nobody stands behind can be cleared; "
            "`pulumi destroy --stack STACK`, or `active: false` in the stack file, gives up the others"
        )
    names = [one.name for one in found.containers]
    holding = Holding(connection_to(cluster, node), cluster.storage_folder)
    _ask(holding, "clear-claim", {"claim": found.claim, "containers": names})


def _given_back(taken: Iterable[tuple[Holding, str | None]], stack: str, group: str, by: str) -> list[str]:
    """Undoes what was taken, and returns what could not be undone."""

    def undo(entry: tuple[Holding, str | None]) -> str | None:
        holding, before = entry
        try:
            if before is None:
                _ask(holding, "release-claim", {"stack": stack, "group": group})
            elif before != group:
                _ask(holding, "claim", {"stack": stack, "group": before, "by": by})
        except OperationError as error:
            return f"{holding.connection.node} was taken and could not be given back: {error}"
        return None

    entries = list(taken)
    with ThreadPoolExecutor(max(1, len(entries))) as pool:
        return [text for text in pool.map(undo, entries) if text]


def _on_all(
    holdings: Sequence[Holding], ask: Callable[[Holding], Answer]
) -> list[tuple[Holding, Answer | OperationError]]:
    """Asks all nodes side by side; an answer that could not be had is its error."""

    def answer(holding: Holding) -> Answer | OperationError:
        try:
            return ask(holding)
        except NodeError as error:
            return error

    with ThreadPoolExecutor(max(1, len(holdings))) as pool:
        return list(zip(holdings, pool.map(answer, holdings), strict=True))


def _ask(holding: Holding, verb: str, request: dict[str, Any]) -> Any:
    asked = {"storage_folder": holding.storage_folder, **request}
    return run_on_node(holding.connection, holding.storage_folder, verb, asked)
