"""What moves after a one-step change, and what `docker save | ssh docker load` moves for the same change.

`python -m bench.image [--receivers 3] [--json]`: builds the lab's chain on one virtual node, brings it to the others,
changes one step, twice, and brings each new image both ways, in one run. Bytes are those that the receivers' interfaces
counted.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from bench.nodes import BenchNode, virtual_nodes
from lab.parts import make_parts
from ops.image_building import Builder, build_step, build_verified, ensure_base
from ops.image_sharing import SharedImage, share_image
from ops.places import PROJECT
from ops.remote import run_on_node
from ops.stacks import CATALOG
from spec.chain_files import read_chain
from spec.connection import connection_to
from spec.dockerfile import Expected, finished_reference
from spec.image_plan import base_plan

_FABRIC, _MANAGEMENT, _RAIL = "benchimage", "198.51.100.192/28", "198.51.100.208/28"
_STEP = "pdl-gate"
_ADDED_BYTES = 64 << 20
_STORAGE = "/var/lib/gb10-serving"
_EXPECTED = Expected(entrypoint=("python3",), capability=None)


@dataclass(frozen=True)
class Result:
    """What one change cost.

    Attributes:
        change: what was changed in one step.
        receivers: how many nodes got the new image.
        image_bytes: of all layers, uncompressed.
        new_layer_bytes: of the layers that the change made anew, uncompressed.
        ours_bytes, whole_bytes: what arrived at one receiver's rail by missing layers, and by the whole image.
        ours_control_bytes: what arrived at its management address meanwhile: ssh, requests, answers.
        ours_seconds, whole_seconds: for all receivers.
    """

    change: str
    receivers: int
    image_bytes: int
    new_layer_bytes: int
    ours_bytes: int
    ours_control_bytes: int
    ours_seconds: float
    whole_bytes: int
    whole_seconds: float


def measure(receivers: int) -> list[Result]:
    """Makes nodes, measures and removes them."""
    with (
        virtual_nodes(_FABRIC, _MANAGEMENT, _RAIL, receivers + 1, with_tools=False) as nodes,
        tempfile.TemporaryDirectory() as folder,
    ):
        patches = Path(shutil.copytree(PROJECT / "patches", Path(folder) / "patches"))
        make_parts(read_chain(patches / "lab").description, "lab", CATALOG.model("lab"), print)
        _bring(_build(nodes[0], patches), nodes[0], nodes[1:])
        return [_measure_change(change, nodes[0], nodes[1:], patches) for change in _CHANGES]


def _measure_change(change: str, source: BenchNode, others: Sequence[BenchNode], patches: Path) -> Result:
    _CHANGES[change](patches / "steps" / _STEP)
    image = _build(source, patches)
    ours, ours_seconds = _measured(others[0], lambda: _bring(image, source, others))
    for node in others:
        node.run(f"docker rmi {image.reference}")
    whole, whole_seconds = _measured(others[0], lambda: _bring_whole(image, source, others))
    sizes = _layer_bytes(image, source)
    return Result(
        change=change,
        receivers=len(others),
        image_bytes=sum(sizes),
        new_layer_bytes=sum(sizes[len(sizes) - _changed_layers(patches) :]),
        ours_bytes=ours["rail0"],
        ours_control_bytes=sum(ours.values()) - ours["rail0"],
        ours_seconds=ours_seconds,
        whole_bytes=whole["rail0"],
        whole_seconds=whole_seconds,
    )


def _change_an_edit(step: Path) -> None:
    """Has the step write another comment."""
    described = yaml.safe_load((step / "step.yaml").read_text())
    edit = described["edits"][0]
    for key in ("replacement", "marker"):
        edit[key] = edit[key].replace("gb10-serving", "gb10-serving, changed")
    (step / "step.yaml").write_text(yaml.safe_dump(described))


def _add_a_file(step: Path) -> None:
    """Has the step place a file that does not compress."""
    (step / "added.bin").write_bytes(os.urandom(_ADDED_BYTES))
    described = yaml.safe_load((step / "step.yaml").read_text())
    described["files"] = [{"source": "added.bin", "target": "/opt/added.bin"}]
    (step / "step.yaml").write_text(yaml.safe_dump(described))


_CHANGES: dict[str, Callable[[Path], None]] = {
    "one comment": _change_an_edit,
    f"a file of {_ADDED_BYTES >> 20} MiB": _add_a_file,
}


def _build(node: BenchNode, patches: Path) -> SharedImage:
    builder = Builder(connection_to(node.cluster, node.name), _STORAGE, 600)
    chain = read_chain(patches / "lab")
    base = base_plan(chain.description.origin)
    ensure_base(builder, base)
    for step in chain.steps:
        build_step(builder, chain, base, step)
    content = build_verified(builder, chain, base, _EXPECTED)
    reference = finished_reference(chain, _EXPECTED)
    return SharedImage(reference, content["identity"], tuple(content["layers"]), content["architecture"])


def _changed_layers(patches: Path) -> int:
    """Returns how many layers follow from the changed step: its own, those of later steps, and the verification's."""
    chain = read_chain(patches / "lab")
    return len(chain.steps) - next(step.position for step in chain.steps if step.name == _STEP) + 2


def _bring(image: SharedImage, source: BenchNode, others: Sequence[BenchNode]) -> None:
    share_image(image, source.party, [node.party for node in others])


def _bring_whole(image: SharedImage, source: BenchNode, others: Sequence[BenchNode]) -> None:
    for node in others:
        source.run(f"docker save {image.reference} | ssh {node.address} docker load --quiet")


def _measured(node: BenchNode, work: Callable[[], None]) -> tuple[dict[str, int], float]:
    """Returns what a node received on each interface while something was done, and how long it took."""
    before, started = _received_bytes(node), time.monotonic()
    work()
    seconds = time.monotonic() - started
    return {name: count - before[name] for name, count in _received_bytes(node).items()}, seconds


def _received_bytes(node: BenchNode) -> dict[str, int]:
    """Returns what each interface of a node but its loopback received since it started."""
    lines = node.run("cd /sys/class/net && grep -H . */statistics/rx_bytes").splitlines()
    counts = {line.partition("/")[0]: int(line.rpartition(":")[2]) for line in lines}
    return {name: count for name, count in counts.items() if name != "lo"}


def _layer_bytes(image: SharedImage, source: BenchNode) -> list[int]:
    """Returns the size of each layer, uncompressed, lowest first."""
    asked = {"reference": image.reference, "layers": image.layers, "held": 0, "storage_folder": _STORAGE}
    party = source.party
    assert party.connection is not None
    exported = run_on_node(party.connection, _STORAGE, "image-export", asked)
    sizes = {f"sha256:{file['sha256']}": file["size_bytes"] for file in exported["files"]}
    return [sizes[layer] for layer in image.layers]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.image", description=__doc__)
    parser.add_argument("--receivers", type=int, default=3, choices=range(1, 8))
    parser.add_argument("--json", action="store_true", help="write JSON for programs")
    arguments = parser.parse_args()
    results = measure(arguments.receivers)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    for result in results:
        _show(result)


def _show(result: Result) -> None:
    print(f"\n{result.change} changed in one step, {result.receivers} receivers:")
    print(f"  image {result.image_bytes:,} bytes, new layers {result.new_layer_bytes:,} bytes")
    print(
        f"  missing layers only:    {result.ours_bytes:>13,} bytes on each rail, {result.ours_seconds:5.1f} s for all"
    )
    print(f"    (and {result.ours_control_bytes:,} bytes of ssh to each management address)")
    print(
        f"  save | ssh docker load: {result.whole_bytes:>13,} bytes on each rail, {result.whole_seconds:5.1f} s for all"
    )
    print(f"  moved / new layers: {result.ours_bytes / result.new_layer_bytes:.3f}")
    print(f"  whole image / moved: {result.whole_bytes / result.ours_bytes:.1f} x in bytes")
    print(f"  whole image / moved: {result.whole_seconds / result.ours_seconds:.1f} x in time")


if __name__ == "__main__":
    main()
