"""A node's claim: which stack it serves, with all its accelerators. On disk, so that it survives a reboot."""

import shutil
import time
from pathlib import Path
from typing import Any

from runtime.node.docker import docker
from runtime.node.errors import NodeTaskError
from runtime.node.files import locked_folder, read_json, remove_file, write_json


def holder(request: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the claim on the node of `storage_folder`, none when it is free.

    It holds `stack`, `group`, `generation` (hash of the group whose rank was last made here, none before), `since` and
    `by` (who took it, as USER@HOST).
    """
    return read_json(_path(request))


def take(request: dict[str, Any]) -> dict[str, Any]:
    """Takes the node for `stack` and `group`; taking it again is no change.

    Args:
        request: `storage_folder`, `stack`, `group`, `by`.

    Returns:
        `before`: group of this stack that held it, none if it was free.

    Raises:
        NodeTaskError: another stack holds it.
    """
    with _locked(request):
        before = holder(request)
        _refuse(request, before)
        if before is None:
            _write(request, generation=None)
        elif before["group"] != request["group"]:
            write_json(_path(request), {**before, "group": request["group"]})
    return {"before": before and before["group"]}


def release(request: dict[str, Any]) -> dict[str, Any]:
    """Gives the node up if `stack` and `group` hold it; anybody else's claim stays."""
    with _locked(request):
        found = holder(request)
        held = bool(found) and (found["stack"], found["group"]) == (request["stack"], request["group"])
        if held:
            remove_file(_path(request))
    return {"released": held}


def note_generation(request: dict[str, Any]) -> None:
    """Writes into the claim which generation of the group is made here; takes a node that lost its claim again.

    Args:
        request: `storage_folder`, `stack`, `group`, `generation`, `by`.

    Raises:
        NodeTaskError: another stack holds it.
    """
    with _locked(request):
        found = holder(request)
        _refuse(request, found)
        if found is None:
            _write(request, generation=request["generation"])
        else:
            write_json(_path(request), {**found, "group": request["group"], "generation": request["generation"]})


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the `claim`, and the `containers` of this program (`name`, `stack`, `group`, `state`), running or not."""
    return {"claim": holder(request), "containers": _rank_containers()}


def clear(request: dict[str, Any]) -> dict[str, Any]:
    """Removes a claim that nobody stands behind, with what its ranks left; the controller has judged that.

    Args:
        request: `storage_folder`, `claim` (as `look` showed it; another one stays), `containers` (names to remove).

    Raises:
        NodeTaskError: the node has another claim by now.
    """
    with _locked(request):
        if holder(request) != request["claim"]:
            raise NodeTaskError("the claim on this node has changed meanwhile: look again")
        ranks = Path(request["storage_folder"]) / "ranks"
        for container in request["containers"]:
            docker("rm", "--force", container)
            shutil.rmtree(ranks / container, ignore_errors=True)
        if request["claim"] is not None:
            remove_file(_path(request))
    return {"cleared": True}


def refuse_other_stack(request: dict[str, Any]) -> None:
    """Raises NodeTaskError if a stack holds the node of `storage_folder` that is neither `stack` nor `leaving`."""
    _refuse(request, holder(request))


def refuse_other_group(request: dict[str, Any]) -> None:
    """Raises NodeTaskError if another group of the same `stack` runs here: new groups come before old ones are gone."""
    groups = {
        one["group"]
        for one in _rank_containers()
        if one["stack"] == request["stack"] and one["group"] not in ("", request["group"]) and one["state"] == "running"
    }
    if groups:
        raise NodeTaskError(
            f"this node runs group {', '.join(sorted(groups))} of this stack, and within one stack a node changes "
            f"groups only once it is free. Way out: set `active: false` in Pulumi.{request['stack']}.yaml and `pulumi "
            "up`, then the new groups without it and `pulumi up` again"
        )


def _refuse(request: dict[str, Any], found: dict[str, Any] | None) -> None:
    if found is None or found["stack"] in (request["stack"], *request.get("leaving", ())):
        return
    stack = found["stack"]
    by = f", by {found['by']}" if found.get("by") else ""
    raise NodeTaskError(
        f"this node serves stack {stack}, group {found['group']}, since {found['since']}{by}: a node belongs to one "
        f"deployment. Way out: `./fleet switch {stack} {request['stack']}` hands it over, `pulumi destroy --stack "
        f"{stack}` ends the other one, or choose other nodes. If nothing of {stack} runs any more, `./fleet claims` "
        "says how to clear this claim"
    )


def _rank_containers() -> list[dict[str, str]]:
    """Returns this program's containers on the node."""
    labels = (f'{{{{.Label "gb10-serving.{key}"}}}}' for key in ("stack", "group"))
    shown = "\t".join(["{{.Names}}", *labels, "{{.State}}"])
    rows = docker("ps", "--all", "--filter", "label=gb10-serving.stack", "--format", shown).stdout.splitlines()
    return [dict(zip(("name", "stack", "group", "state"), row.split("\t"), strict=True)) for row in rows]


def _write(request: dict[str, Any], generation: str | None) -> None:
    write_json(
        _path(request),
        {
            "stack": request["stack"],
            "group": request["group"],
            "generation": generation,
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "by": request["by"],
        },
    )


def _locked(request: dict[str, Any]) -> Any:
    return locked_folder(Path(request["storage_folder"]))


def _path(request: dict[str, Any]) -> Path:
    return Path(request["storage_folder"]) / "claim.json"
