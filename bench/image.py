"""What moves after a one-step change, and what `docker save | ssh docker load` moves for the same change.

`python -m bench.image [--receivers 3] [--json]`: builds the lab's chain on one virtual node, brings it to the others,
changes one step and brings the new image both ways, in one run. Bytes are those that the receivers' interfaces counted.
"""

import argparse
import json
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
_STORAGE = "/var/lib/gb10-serving"
_EXPECTED = Expected(entrypoint=("python3",), capability=None)


@dataclass(frozen=True)
class Result:
    """What one change cost.

    Attributes:
        receivers: how many nodes got the new image.
        image_bytes: of all layers, uncompressed.
        new_layer_bytes: of the layers that the change made anew, uncompressed.
        ours_bytes, whole_bytes: what arrived at one receiver by missing layers, and by the whole image.
        ours_seconds, whole_seconds: for all receivers.
    """

    receivers: int
    image_bytes: int
    new_layer_bytes: int
    ours_bytes: int
    ours_seconds: float
    whole_bytes: int
    whole_seconds: float


def measure(receivers: int) -> Result:
    """Makes nodes, measures and removes them."""
    with (
        virtual_nodes(_FABRIC, _MANAGEMENT, _RAIL, receivers + 1, with_tools=False) as nodes,
        tempfile.TemporaryDirectory() as folder,
    ):
        source, others = nodes[0], nodes[1:]
        patches = Path(shutil.copytree(PROJECT / "patches", Path(folder) / "patches"))
        make_parts(read_chain(patches / "lab").description, "lab", CATALOG.model("lab"), print)
        _bring(_build(source, patches), source, others)
        _change(patches)
        image = _build(source, patches)
        ours_bytes, ours_seconds = _measured(others[0], lambda: _bring(image, source, others))
        for node in others:
            node.run(f"docker rmi {image.reference}")
        whole_bytes, whole_seconds = _measured(others[0], lambda: _bring_whole(image, source, others))
        sizes = _layer_bytes(image, source)
        before = len(image.layers) - _changed_layers(patches)
        return Result(receivers, sum(sizes), sum(sizes[before:]), ours_bytes, ours_seconds, whole_bytes, whole_seconds)


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


def _change(patches: Path) -> None:
    """Changes the comment that one step writes: two lines of one file."""
    path = patches / "steps" / _STEP / "step.yaml"
    described = yaml.safe_load(path.read_text())
    edit = described["edits"][0]
    for key in ("replacement", "marker"):
        edit[key] = edit[key].replace("gb10-serving", "gb10-serving, changed")
    path.write_text(yaml.safe_dump(described))


def _changed_layers(patches: Path) -> int:
    """Returns how many layers follow from the changed step: its own, those of later steps, and the verification's."""
    chain = read_chain(patches / "lab")
    return len(chain.steps) - next(step.position for step in chain.steps if step.name == _STEP) + 2


def _bring(image: SharedImage, source: BenchNode, others: Sequence[BenchNode]) -> None:
    share_image(image, source.party, [node.party for node in others])


def _bring_whole(image: SharedImage, source: BenchNode, others: Sequence[BenchNode]) -> None:
    for node in others:
        source.run(f"docker save {image.reference} | ssh {node.address} docker load --quiet")


def _measured(node: BenchNode, work: Callable[[], None]) -> tuple[int, float]:
    """Returns what a node received while something was done, and how long it took."""
    before, started = _received_bytes(node), time.monotonic()
    work()
    return _received_bytes(node) - before, time.monotonic() - started


def _received_bytes(node: BenchNode) -> int:
    """Returns what all interfaces of a node but its loopback received since it started."""
    return sum(
        map(int, node.run("cat $(ls -d /sys/class/net/* | grep -v /lo$ | sed s,$,/statistics/rx_bytes,)").split())
    )


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
    result = measure(arguments.receivers)
    if arguments.json:
        print(json.dumps(asdict(result), indent=2))
        return
    print(
        f"image {result.image_bytes:,} bytes, new layers {result.new_layer_bytes:,} bytes, {result.receivers} receivers"
    )
    print(f"missing layers only:        {result.ours_bytes:>13,} bytes to each, {result.ours_seconds:6.1f} s for all")
    print(f"docker save | docker load:  {result.whole_bytes:>13,} bytes to each, {result.whole_seconds:6.1f} s for all")
    print(
        f"moved / new layers {result.ours_bytes / result.new_layer_bytes:.2f}, "
        f"whole / ours {result.whole_bytes / result.ours_bytes:.0f} x in bytes, "
        f"{result.whole_seconds / result.ours_seconds:.1f} x in time"
    )


if __name__ == "__main__":
    main()
