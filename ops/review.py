"""Gathers what a review needs: Releases from state and stack files, Pulumi's preview, what other stacks hold."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.errors import OperationError
from ops.places import PROJECT
from ops.preview import preview_steps
from ops.progress import Report
from ops.release_history import StackHistory, history_in, read_release
from ops.stack_state import known_stacks, resources
from ops.stacks import planned
from spec.catalog import Catalog
from spec.compare import compare
from spec.conflicts import Claim, Conflict, find_conflicts
from spec.errors import SpecificationError
from spec.release import Release
from spec.review import Review
from spec.yaml_files import parse


@dataclass(frozen=True)
class Outcome:
    """What a review came to for one stack: exactly one of the two is there.

    Attributes:
        stack: its name.
        review: what the change does.
        refused: why it cannot be deployed, with the way out.
    """

    stack: str
    review: Review | None
    refused: str | None


@dataclass(frozen=True)
class Reviewed:
    """Reviews of one or several stacks that are to run at the same time."""

    outcomes: tuple[Outcome, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def is_refused(self) -> bool:
        """Whether at least one stack could not be deployed."""
        return bool(self.conflicts) or any(one.refused is not None for one in self.outcomes)

    @property
    def interrupts(self) -> bool:
        """Whether something that serves is stopped."""
        return any(one.review is not None and one.review.interrupts for one in self.outcomes)

    @property
    def verdict(self) -> str:
        """What it comes to in a word: `refused`, `restart`, `no restart` or `nothing changes`."""
        if self.is_refused:
            return "refused"
        if self.interrupts:
            return "restart"
        same = all(one.review is not None and one.review.before == one.review.after for one in self.outcomes)
        return "nothing changes" if same else "no restart"

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, for JSON."""
        return {
            "verdict": self.verdict,
            "stacks": [
                {
                    "stack": one.stack,
                    "refused": one.refused,
                    "review": one.review.model_dump(mode="json") if one.review else None,
                }
                for one in self.outcomes
            ],
            "conflicts": [one.model_dump(mode="json") for one in self.conflicts],
        }


def review_stacks(
    stacks: Sequence[str], variables: Mapping[str, str], report: Report, project: Path = PROJECT
) -> Reviewed:
    """Reviews stacks of this project against what is deployed; contacts no node and changes nothing.

    A stack that the backend does not know is compared with nothing, and is not created for the review.

    Raises:
        OperationError: the backend cannot be used, or a preview failed.
    """
    known = known_stacks(variables, project)
    outcomes, releases = [], []
    claims: list[Claim] = []
    for stack in dict.fromkeys((*stacks, *sorted(known))):
        asked = stack in stacks
        report(f"{stack}: read the state" if stack in known else f"{stack}: never deployed")
        found = resources(stack, variables, project, show_secrets=asked) if stack in known else []
        claims += claims_in(found)
        if asked:
            if stack in known:
                report(f"{stack}: preview")
            outcome, release = _outcome(stack, history_in(stack, found), variables if stack in known else None, project)
            outcomes.append(outcome)
            releases += [release] if release else []
    return Reviewed(tuple(outcomes), find_conflicts(releases, claims))


def review_against_file(stack: str, deployed: Path) -> Reviewed:
    """Reviews one stack against a Release in a file, as `fleet plan --json` writes it; asks neither state nor Pulumi.

    Raises:
        OperationError: the file holds no Release.
    """
    try:
        data = json.loads(deployed.read_text())
    except (OSError, ValueError) as error:
        raise OperationError(f"{deployed}: no readable Release: {error}") from None
    data.pop("hash", None)
    return _against({stack: parse(Release, data, str(deployed))})


def review_against_checkout(stacks: Sequence[str], base: Path) -> Reviewed:
    """Reviews stacks against what another checkout says of them, planned by this program.

    Neither state nor Pulumi is asked. A stack that is absent there, or cannot work there, is compared with nothing.
    """
    return _against({stack: _planned_or_none(stack, base) for stack in stacks})


def _planned_or_none(stack: str, project: Path) -> Release | None:
    try:
        return planned(stack, project)
    except SpecificationError:
        return None


def _against(before: Mapping[str, Release | None]) -> Reviewed:
    judged = [_judged(stack, release, PROJECT) for stack, release in before.items()]
    releases = [release for _, release in judged if release]
    return Reviewed(tuple(outcome for outcome, _ in judged), find_conflicts(releases, ()))


def claims_in(found: Sequence[dict[str, Any]]) -> list[Claim]:
    """Returns the nodes that the resources of a state hold."""
    requests = [
        json.loads(one["inputs"]["stdin"])
        for one in found
        if str(one.get("inputs", {}).get("create", "")).endswith("ops.tasks claim")
    ]
    return [
        Claim(
            stack=request["stack"],
            group=request["group"],
            node=request["connection"]["node"],
            machine=f"{request['connection']['address']}:{request['connection']['port']}",
        )
        for request in requests
    ]


def _outcome(
    stack: str, history: StackHistory, variables: Mapping[str, str] | None, project: Path
) -> tuple[Outcome, Release | None]:
    """Reviews a stack against its state.

    Args:
        stack: its name.
        history: what the state says.
        variables: the environment for a preview; none for a stack that the backend does not know.
        project: where its file is.
    """
    before = read_release(history.ready[0], stack) if history.ready else None
    if before and history.parked:
        before = before.model_copy(update={"active": False})
    unfinished = None if history.ended_ready else history.begun
    return _judged(stack, before, project, variables, unfinished)


def _judged(
    stack: str,
    before: Release | None,
    project: Path,
    variables: Mapping[str, str] | None = None,
    unfinished: str | None = None,
) -> tuple[Outcome, Release | None]:
    try:
        after = planned(stack, project)
    except SpecificationError as error:
        return Outcome(stack, None, str(error)), None
    steps = None if variables is None else preview_steps(stack, variables, project)
    references = Catalog(project / "catalog").references()
    return Outcome(stack, compare(before, after, references, steps, unfinished), None), after
