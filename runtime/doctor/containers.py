"""Checks of Docker, its limits, and containers that should not be there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.doctor.look import CouldNotAsk, Found, Look

_LEAST_DOCKER = (20, 10)
_ALWAYS = ("always", "unless-stopped")
_SYS_RESOURCE = 24
_OUR_STACK = "gb10-serving.stack"
_OUR_GROUP = "gb10-serving.group"


def engine(look: Look) -> Iterator[Found]:
    """Docker must be new enough for what ranks are given."""
    version = look.run(["docker", "version", "--format", "{{.Server.Version}}"]).strip()
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < _LEAST_DOCKER:
        least = ".".join(map(str, _LEAST_DOCKER))
        yield Found("docker-too-old", f"Docker {version}", {"version": version, "least": least})


def runtime_for_gpus(look: Look) -> Iterator[Found]:
    """A node with GPUs must be able to hand them to a container."""
    if not look.request["gpus"]:
        return
    info = json.loads(look.run(["docker", "info", "--format", "{{json .}}"]))
    runtimes = sorted(info.get("Runtimes") or {})
    if "nvidia" not in runtimes and not (info.get("CDISpecDirs") and list((look.root / "etc/cdi").glob("nvidia*"))):
        yield Found("no-nvidia-runtime", f"runtimes of Docker: {', '.join(runtimes) or 'none'}", {})


def limits(look: Look) -> Iterator[Found]:
    """The Docker engine must be allowed to give a rank its open files and locked memory."""
    engines = look.processes("dockerd")
    if not engines:
        raise CouldNotAsk("no process is called dockerd; a rootless or remote engine has other limits")
    number = engines[0][0]
    if _may_raise(look, number):
        return
    for line in look.needed(f"/proc/{number}/limits").splitlines():
        if line.startswith("Max open files") and _below(line.split()[4], look.request["open_files"]):
            wanted = look.request["open_files"]
            read = f"dockerd may give {line.split()[4]} open files, a rank wants {wanted:,}"
            yield Found("docker-open-files", read, {"wanted": wanted})
        if line.startswith("Max locked memory") and _below(line.split()[4], look.request["locked_memory_bytes"]):
            wanted = look.request["locked_memory_bytes"]
            shown = "no limit" if wanted < 0 else f"{wanted:,} bytes"
            yield Found("docker-locked-memory", f"dockerd may give {line.split()[4]} bytes, a rank wants {shown}", {})


def leftovers(look: Look) -> Iterator[Found]:
    """No container of ours may be dead, and a claim and its ranks must go together."""
    found = _containers(look)
    ours = [container for container in found if _OUR_STACK in _labels(container)]
    for container in ours:
        if not container["State"]["Running"]:
            read = f"{_name(container)} of stack {_labels(container)[_OUR_STACK]} is {container['State']['Status']}"
            yield Found("leftover-container", read, {"container": _name(container)})
    claim = _claim(look)
    stacks = {_labels(container)[_OUR_STACK] for container in ours}
    if claim and claim["stack"] not in stacks:
        read = f"claimed by stack {claim['stack']}, group {claim['group']}, since {claim['since']}; no container of it"
        yield Found("claim-without-rank", read, {"stack": claim["stack"]})
    ranks = [container for container in ours if container["State"]["Running"] and _OUR_GROUP in _labels(container)]
    for stack in sorted({_labels(rank)[_OUR_STACK] for rank in ranks} - ({claim["stack"]} if claim else set())):
        holder = f"stack {claim['stack']}" if claim else "nobody"
        read = f"a container of stack {stack} is here, the claim is {holder}'s"
        yield Found("rank-without-claim", read, {"stack": stack})


def strangers(look: Look) -> Iterator[Found]:
    """No container of somebody else may come back after a boot and take the GPU or the host's ports."""
    for container in _containers(look):
        host = container["HostConfig"]
        policy = (host.get("RestartPolicy") or {}).get("Name")
        takes = [
            *(["the GPU"] if host.get("DeviceRequests") or host.get("Runtime") == "nvidia" else []),
            *(["the host's network"] if host.get("NetworkMode") == "host" else []),
        ]
        if _OUR_STACK not in _labels(container) and policy in _ALWAYS and takes:
            read = f"{_name(container)} has restart policy {policy} and takes {' and '.join(takes)}"
            yield Found("stranger-restarts", read, {"container": _name(container)})


def _containers(look: Look) -> list[dict[str, Any]]:
    names = look.run(["docker", "ps", "--all", "--quiet"]).split()
    return json.loads(look.run(["docker", "container", "inspect", *names])) if names else []


def _claim(look: Look) -> dict[str, Any] | None:
    text = look.text(str(Path(look.request["storage_folder"]) / "claim.json"))
    return json.loads(text) if text else None


def _labels(container: dict[str, Any]) -> dict[str, str]:
    return container["Config"].get("Labels") or {}


def _name(container: dict[str, Any]) -> str:
    return container["Name"].lstrip("/")


def _below(limit: str, wanted: int) -> bool:
    if limit == "unlimited":
        return False
    return wanted < 0 or int(limit) < wanted


def _may_raise(look: Look, process: int) -> bool:
    """Whether the engine has CAP_SYS_RESOURCE, with which hard limits do not bind it."""
    status = look.needed(f"/proc/{process}/status")
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _SYS_RESOURCE & 1)
