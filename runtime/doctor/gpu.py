"""Checks of the GPU: visible, clocked as it should be, and nobody else's."""

from collections.abc import Iterator

from runtime.doctor.look import CouldNotAsk, Found, Look

_LOW_SHARE = 0.35
_BUSY_PERCENT = 50


def visible(look: Look) -> Iterator[Found]:
    """A node must show the GPUs that its hardware class has."""
    wanted = look.request["gpus"]
    if not wanted:
        return
    try:
        rows = _query(look, "name")
    except CouldNotAsk as error:
        yield Found("gpu-not-visible", str(error), {"wanted": wanted})
        return
    if len(rows) < wanted:
        yield Found("gpu-not-visible", f"nvidia-smi shows {len(rows)} of {wanted}", {"wanted": wanted})


def clock(look: Look) -> Iterator[Found]:
    """The clock of a GPU that works must not stay far below its most; one that idles is low by right."""
    if not look.request["gpus"]:
        return
    for index, most, now, busy in _query(look, "index", "clocks.max.sm", "clocks.sm", "utilization.gpu"):
        if most.isdigit() and now.isdigit() and busy.isdigit() and int(busy) >= _BUSY_PERCENT:
            share = int(now) / int(most)
            if share < _LOW_SHARE:
                read = f"GPU {index} works ({busy} %) at {now} MHz of {most}"
                yield Found("gpu-clock-low", read, {"index": index})
    for index, locked, most in _query(look, "index", "clocks.applications.graphics", "clocks.max.graphics"):
        if locked.isdigit() and most.isdigit() and int(locked) < _LOW_SHARE * int(most):
            yield Found("gpu-clock-low", f"GPU {index} is set to {locked} MHz of {most}", {"index": index})


def other_processes(look: Look) -> Iterator[Found]:
    """Nobody but ranks of ours may use the GPU: its memory is the node's memory."""
    if not look.request["gpus"]:
        return
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
    for row in look.run(query).splitlines():
        process, _, rest = row.partition(",")
        group = look.text(f"/proc/{process.strip()}/cgroup") or ""
        if process.strip().isdigit() and not any(container in group for container in _ours(look)):
            yield Found("gpu-other-process", f"process {process.strip()}:{rest}", {"process": process.strip()})


def _ours(look: Look) -> list[str]:
    return look.run(["docker", "ps", "--quiet", "--no-trunc", "--filter", "label=gb10-serving.stack"]).split()


def _query(look: Look, *names: str) -> list[list[str]]:
    query = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    return [[cell.strip() for cell in row.split(",")] for row in look.run(query).splitlines() if row.strip()]
