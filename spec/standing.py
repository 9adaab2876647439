"""How reality stands to a Release: right, wrong, absent or unknown, each with its reason. Pure: asks nobody."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from spec.dockerfile import IDENTITY_LABEL
from spec.release import GroupPlan, RankPlan, Release, WeightsPlan
from spec.supervision import supervisor_command, supervisor_mounts

Verdict = Literal["right", "wrong", "absent", "unknown"]

_SERVING = "serving"
_ORDER: tuple[Verdict, ...] = ("wrong", "absent", "unknown")


@dataclass(frozen=True)
class Standing:
    """One thing that a Release asks for, as it is.

    Attributes:
        kind: `rank`, `image`, `weights`, `claim` or `router`.
        name: which one, such as `main/0`.
        node: where.
        verdict: `unknown` where it could not be asked, which never means absent.
        state: in a word or two, for people.
        differs: what is otherwise than the Release says, each with both sides.
        mend: what to run, where something would mend it.
        facts: figures, by name.
        last_lines: of a rank that is not right.
    """

    kind: Literal["rank", "image", "weights", "claim", "router"]
    name: str
    node: str
    verdict: Verdict
    state: str
    differs: tuple[str, ...] = ()
    mend: str | None = None
    facts: Mapping[str, Any] | None = None
    last_lines: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Returns it as plain data, for JSON."""
        return asdict(self)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns the worst of all: wrong before absent before unknown."""
    found = set(verdicts)
    for verdict in _ORDER:
        if verdict in found:
            return verdict
    return "right"


def status_request(release: Release, node: str) -> dict[str, Any]:
    """Returns what a node must know to say how a Release stands on it (runtime/node/status.py)."""
    router = release.router
    return {
        "storage_folder": release.storage_folder,
        "image": release.image.reference,
        "weights": [{"name": plan.name, **plan.receipt_request} for plan in release.weights],
        "ranks": [
            {
                "container": rank.container,
                **{key: getattr(rank.supervision.peers[rank.rank], key) for key in ("address", "port")},
            }
            for _, rank in ranks_on(release, node)
        ],
        "router": {"folder": router.folder, "container": router.container} if router and router.node == node else None,
    }


def ranks_on(release: Release, node: str) -> list[tuple[GroupPlan, RankPlan]]:
    """Returns the ranks of a node, each with its group."""
    return [(group, rank) for group in release.groups for rank in group.ranks if rank.node == node]


def judge_release(release: Release, answers: Mapping[str, dict[str, Any]]) -> list[Standing]:
    """Compares what nodes answered with a Release.

    Args:
        release: what should be.
        answers: of each node of the Release: what runtime/node/status.py returns, or `{"unknown": why}`.
    """
    return [standing for node in release.nodes for standing in _on_node(release, node, answers)]


def _on_node(release: Release, node: str, answers: Mapping[str, dict[str, Any]]) -> Iterator[Standing]:
    answer = answers[node]
    for group, rank in ranks_on(release, node):
        yield _rank(release, group, rank, _part(answer, "ranks", rank.container))
        yield _claim(release, group, node, _part(answer, "claim"))
    if node in release.rank_nodes or node == release.image.build_on:
        built = _part(answers.get(release.image.build_on, {"unknown": "it was not asked"}), "image")
        yield _image(release, node, _part(answer, "image"), built)
    if node in release.rank_nodes:
        for plan in release.weights:
            yield _weights(release, plan, node, _part(answer, "weights", plan.name))
    if release.router and release.router.node == node:
        yield _router(release, node, _part(answer, "router"))


def _part(answer: Mapping[str, Any], *keys: str) -> Any:
    """Returns a part of a node's answer; what made the whole unknown makes each part unknown."""
    if "unknown" in answer:
        return {"unknown": answer["unknown"]}
    found: Any = answer
    for key in keys:
        found = found[key]
    return found


def _why_unknown(part: Any) -> str | None:
    return part["unknown"] if isinstance(part, dict) and "unknown" in part else None


def _rank(release: Release, group: GroupPlan, rank: RankPlan, report: dict[str, Any]) -> Standing:
    name = f"{group.name}/{rank.rank}"
    if why := _why_unknown(report):
        return Standing("rank", name, rank.node, "unknown", "cannot be asked", (why,))
    up = f"./fleet pulumi up --stack {release.stack}"
    if report["state"] == "absent":
        return Standing("rank", name, rank.node, "absent", "no container", mend=f"{up} --refresh")
    supervisor = report["supervisor"] or {}
    state = supervisor.get("state", report["state"]) if report["state"] == "running" else _ended(report)
    differs = tuple(_differences(release, group, rank, report["made_from"]))
    facts = {
        "generation": report["generation"],
        "seconds_since_start": report["seconds_since_start"],
        "memory": supervisor.get("memory"),
        "restarts": supervisor.get("restarts"),
        "answer": supervisor.get("answer"),
        "waiting_for": supervisor.get("waiting_for"),
        "cause": (supervisor.get("cause") or {}).get("text") if state != _SERVING else None,
    }
    words = tuple(report["last_lines"])
    if supervisor.get("draining"):
        state = "draining"
    if report["state"] == "running" and report["silent"]:
        return Standing(
            "rank", name, rank.node, "unknown", f"{state}?", (report["silent"], *differs), None, facts, words
        )
    if supervisor.get("answer") == "wrong":
        differs = ("its answer to a known question is wrong", *differs)
    if not group.serves and report["state"] == "ended" and report["exit_code"] == 0:
        return Standing("rank", name, rank.node, "wrong" if differs else "right", "done", differs, None, facts)
    right = state == _SERVING and not differs
    return Standing(
        "rank",
        name,
        rank.node,
        "right" if right else "wrong",
        state,
        differs,
        None if right else _mend_rank(release, group, rank, report),
        facts,
        () if right else words,
    )


def _ended(report: dict[str, Any]) -> str:
    return f"ended ({report['exit_code']})"


def _mend_rank(release: Release, group: GroupPlan, rank: RankPlan, report: dict[str, Any]) -> str | None:
    up = f"./fleet pulumi up --stack {release.stack}"
    if report["generation"] == group.hash and report["made_from"] != _wanted(release, group, rank):
        return f"{up} --refresh --replace '**{group.name}-generation'"
    return up


def _wanted(release: Release, group: GroupPlan, rank: RankPlan) -> dict[str, Any]:
    """Returns what a rank's container is made from, as its node reads it."""
    mounts = (*rank.mounts, *supervisor_mounts(release, rank))
    return {
        "image": release.image.reference,
        "image_is_named_so": True,
        "command": list(supervisor_command(release, group, rank)),
        "mounts": sorted([one.source, one.target, not one.read_only] for one in mounts),
        "network": "host",
        "restart": "unless-stopped" if group.serves else "no",
    }


def _differences(release: Release, group: GroupPlan, rank: RankPlan, found: dict[str, Any]) -> Iterator[str]:
    wanted = _wanted(release, group, rank)
    for key in ("image", "network", "restart"):
        if found[key] != wanted[key]:
            yield f"{key} is {found[key]}, should be {wanted[key]}"
    if not found["image_is_named_so"]:
        yield f"it runs another image than the one that {found['image']} names now"
    if found["command"] != wanted["command"]:
        yield _command_difference(found["command"], wanted["command"])
    for source, target, _ in [one for one in found["mounts"] if one not in wanted["mounts"]]:
        yield f"it mounts {source} at {target} otherwise than it should"
    for source, target, _ in [one for one in wanted["mounts"] if one not in found["mounts"]]:
        yield f"it does not mount {source} at {target} as it should"


def _command_difference(found: list[str], wanted: list[str]) -> str:
    """Says what differs in two requests of a supervisor: names of keys, since the whole is long."""
    try:
        one, other = json.loads(found[-1]), json.loads(wanted[-1])
        keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    except (ValueError, IndexError, AttributeError):
        return f"it runs another program: {' '.join(found)[:80]}"
    if not keys:
        return f"it is started as {' '.join(found[:-1])}"
    generations = (
        f" ({one.get('generation', '')[:12]}, planned {other['generation'][:12]})" if "generation" in keys else ""
    )
    return f"made from another plan{generations}: {', '.join(keys)} differ"


def _claim(release: Release, group: GroupPlan, node: str, holder: Any) -> Standing:
    if why := _why_unknown(holder):
        return Standing("claim", group.name, node, "unknown", "cannot be asked", (why,))
    if holder is None:
        mend = f"./fleet pulumi up --stack {release.stack} --replace '**{group.name}-{node}-claim'"
        return Standing("claim", group.name, node, "absent", "nobody's", mend=mend)
    held = f"{holder['stack']}, group {holder['group']}"
    if (holder["stack"], holder["group"]) == (release.stack, group.name):
        return Standing("claim", group.name, node, "right", "held")
    return Standing("claim", group.name, node, "wrong", "another's", (f"held by {held} since {holder['since']}",))


def _image(release: Release, node: str, found: dict[str, Any], built: dict[str, Any]) -> Standing:
    plan = release.image
    if why := _why_unknown(found):
        return Standing("image", plan.reference, node, "unknown", "cannot be asked", (why,))
    mend = f"./fleet image build {release.stack} --everywhere"
    if found["identity"] is None:
        return Standing("image", plan.reference, node, "absent", "not there", mend=mend)
    facts = {"identity": found["identity"]}
    label = (found["labels"] or {}).get(IDENTITY_LABEL)
    if plan.chain and label != plan.chain.identity:
        differs = (f"it is of chain {label}, should be {plan.chain.identity}",)
        return Standing("image", plan.reference, node, "wrong", "another", differs, mend, facts)
    if why := _why_unknown(built):
        differs = (f"{plan.build_on}, which built it, cannot be asked: {why}",)
        return Standing("image", plan.reference, node, "unknown", "not comparable", differs, None, facts)
    if built["identity"] is None:
        differs = (f"{plan.build_on}, which built it, has it no more",)
        return Standing("image", plan.reference, node, "unknown", "not comparable", differs, mend, facts)
    if built["identity"] != found["identity"]:
        differs = (f"its content is {found['identity']}, {plan.build_on} built {built['identity']}",)
        return Standing("image", plan.reference, node, "wrong", "another", differs, mend, facts)
    return Standing("image", plan.reference, node, "right", "as built", facts=facts)


def _weights(release: Release, plan: WeightsPlan, node: str, found: dict[str, Any]) -> Standing:
    if why := _why_unknown(found):
        return Standing("weights", plan.name, node, "unknown", "cannot be asked", (why,))
    mend = f"./fleet weights sync {release.stack}"
    facts = {"manifest": found["manifest"], "size_bytes": found["size_bytes"]}
    if found["manifest"] is None:
        return Standing("weights", plan.name, node, "absent", "not there", (found["why"],), mend, facts)
    if plan.manifest and found["manifest"] != plan.manifest:
        differs = (f"manifest {found['manifest'][:16]}, the catalogue pins {plan.manifest[:16]}",)
        return Standing("weights", plan.name, node, "wrong", "others", differs, mend, facts)
    if not found["complete"]:
        return Standing("weights", plan.name, node, "wrong", "damaged", (found["why"],), mend, facts)
    return Standing("weights", plan.name, node, "right", "complete", facts=facts)


def _router(release: Release, node: str, found: dict[str, Any]) -> Standing:
    plan = release.router
    assert plan is not None
    if why := _why_unknown(found):
        return Standing("router", plan.container, node, "unknown", "cannot be asked", (why,))
    mend = f"./fleet pulumi up --stack {release.stack} --refresh"
    if found["state"] != "running":
        return Standing("router", plan.container, node, "absent", found["state"], mend=mend)
    differs = [
        f"{one.group} is {found['members'].get(one.group, {}).get('status', 'unknown to it')}"
        for one in plan.members
        if found["members"].get(one.group, {}).get("status") != "UP"
    ]
    if found["image"] != plan.image:
        differs.append(f"image is {found['image']}, should be {plan.image}")
    verdict = "wrong" if differs else "right"
    return Standing(
        "router", plan.container, node, verdict, "running", tuple(differs), None, {"members": found["members"]}
    )
