"""Images between real Docker engines: 20.10, 26.1 with the classic store, 26.1 with the containerd store."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from lab import fabric
from lab.docker_engine import docker_architecture
from lab.images import NodeSystem
from lab.keys import host_key, public_line
from ops.image_building import Builder, build_verified, ensure_base
from ops.remote import NodeError, install_runtime, run_on_node, ssh_command
from runtime.common.image_identity import image_identity
from spec.chain_files import read_chain
from spec.cluster import Cluster
from spec.connection import connection_to
from spec.dockerfile import VERIFY_LABEL, Expected, finished_reference
from spec.image_plan import base_plan
from tests.image_archives import HandMade, digest, random_layer, tar_of

_PROJECT = Path(__file__).parents[2]
_FABRIC = "layers"
_OLD, _NEW, _CONTAINERD = "layers-old", "layers-new", "layers-containerd"
_SYSTEMS = {_OLD: NodeSystem(), _NEW: NodeSystem("trixie"), _CONTAINERD: NodeSystem("trixie", "containerd")}
_STORAGE = "/var/lib/gb10-serving"
_CHAIN = "gb10-serving/chain"
_MIB = 1 << 20

_BASE = HandMade(f"{_CHAIN}:base", (random_layer("low", 8 * _MIB), random_layer("middle", 4 * _MIB)))
_STEP = replace(_BASE, reference=f"{_CHAIN}:step", layers=(*_BASE.layers, random_layer("patch", _MIB)))


def _described(image: HandMade) -> HandMade:
    return replace(image, architecture=docker_architecture())


def _silent(text: str) -> None:
    del text


def _node(number: int, name: str) -> dict[str, object]:
    return {
        "management_address": f"198.51.100.{242 + number}",
        "host_key": public_line(host_key(name)),
        "switch": "virtual",
        "rails": [{"address": f"198.51.100.{250 + number}", "interface": "rail0"}],
    }


@dataclass(frozen=True)
class Node:
    """A virtual node and what is done on it."""

    cluster: Cluster
    name: str

    def verb(self, verb: str, **request: Any) -> Any:
        connection = connection_to(self.cluster, self.name)
        return run_on_node(connection, _STORAGE, verb, {"storage_folder": _STORAGE, **request})

    def shell(self, text: str, given: bytes = b"") -> bytes:
        command = ssh_command(connection_to(self.cluster, self.name), text)
        done = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def put(self, image: HandMade, archive: bytes | None = None) -> None:
        """Gives the node an image as if it had been built or pulled there."""
        whole = image.layout() if self.name == _CONTAINERD else image.old_archive()
        self.shell("docker load --quiet", archive or whole)
        assert self.verb("image-identity", reference=image.reference)["layers"] == image.diff_ids

    def names(self) -> set[str]:
        """Returns the names of all images."""
        return set(self.shell("docker image ls --all --format '{{.Repository}}:{{.Tag}}'").decode().split())

    def content(self, reference: str, file: str) -> bytes:
        """Returns a file of an image, as a container of it sees it."""
        self.shell(f"docker create --name look --network none --entrypoint /x {reference}")
        try:
            return self.shell(f"docker cp look:/{file} - | tar -xO")
        finally:
            self.shell("docker rm look")

    def clean(self) -> None:
        self.shell(
            "docker rm --force $(docker ps --all --quiet) 2>/dev/null; "
            "docker rmi --force $(docker image ls --all --quiet) 2>/dev/null; "
            f"docker image prune --force >/dev/null; rm -rf {_STORAGE}/images"
        )


Nodes = dict[str, Node]


@pytest.fixture(scope="module")
def fabric_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    cluster = Cluster.model_validate(
        {
            "hardware": "virtual",
            "ssh": {"identity_file": str(tmp_path_factory.mktemp("keys") / "id_ed25519"), "connect_timeout_seconds": 5},
            "virtual_fabric": {"management_subnet": "198.51.100.240/29", "rail_subnets": ["198.51.100.248/29"]},
            "nodes": {name: _node(number, name) for number, name in enumerate(_SYSTEMS)},
        }
    )
    fabric.down(_FABRIC, report=_silent)
    fabric.up(_FABRIC, cluster, systems=_SYSTEMS, report=print)
    for name in _SYSTEMS:
        install_runtime(connection_to(cluster, name), _STORAGE)
    yield {name: Node(cluster, name) for name in _SYSTEMS}
    fabric.down(_FABRIC, report=_silent)


@pytest.fixture
def nodes(fabric_nodes: Nodes) -> Nodes:
    """All nodes, without images."""
    for node in fabric_nodes.values():
        node.clean()
    return fabric_nodes


def _identity(image: HandMade) -> str:
    config = json.loads(image.config)
    return image_identity(image.diff_ids, config["config"], image.architecture)


def _arriving(image: HandMade) -> str:
    return f"{_STORAGE}/images/incoming/{_identity(image)[7:]}"


def _held(target: Node, image: HandMade) -> int:
    return target.verb("image-missing", layers=image.diff_ids, architecture=image.architecture)["held"]


def _copy(source: Node, target: Node, image: HandMade, held: int) -> int:
    """Exports and copies, as the controller does; returns the bytes that were moved."""
    exported = source.verb("image-export", reference=image.reference, layers=image.diff_ids, held=held)
    folder, moved = _arriving(image), 0
    target.shell(f"mkdir -p {folder}")
    for file in exported["files"]:
        content = source.shell(f"cat {exported['folder']}/{file['path']}")
        assert (len(content), digest(content)) == (file["size_bytes"], f"sha256:{file['sha256']}")
        target.shell(f"cat > {folder}/{file['path']}", content)
        moved += len(content)
    return moved


def _load(target: Node, image: HandMade, held: int) -> dict[str, Any]:
    return target.verb(
        "image-load",
        reference=image.reference,
        folder=_arriving(image),
        layers=image.diff_ids,
        held=held,
        identity=_identity(image),
    )


def _send(source: Node, target: Node, image: HandMade) -> int:
    held = _held(target, image)
    moved = _copy(source, target, image, held)
    assert _load(target, image, held) == {"loaded": True, "needs_all": False, "why": None}
    found = target.verb("image-identity", reference=image.reference)
    assert (found["identity"], found["layers"]) == (_identity(image), image.diff_ids)
    assert target.shell(f"ls {_STORAGE}/images/incoming") == b""
    assert not any("loading" in name for name in target.names())
    assert target.shell("docker ps --all --quiet") == b""
    return moved


def _random(name: str, size_bytes: int) -> bytes:
    """Returns the file of `random_layer`."""
    return random_layer(name, size_bytes)[512 : 512 + size_bytes]


@pytest.mark.parametrize(("source", "target"), list(permutations(_SYSTEMS, 2)))
def test_a_step_moves_its_own_layer_alone(nodes: Nodes, source: str, target: str) -> None:
    step, base = _described(_STEP), _described(_BASE)
    nodes[source].put(step)
    nodes[target].put(base)
    moved = _send(nodes[source], nodes[target], step)
    print(f"{source} to {target}: {moved} bytes for a layer of {len(step.layers[-1])}")
    assert len(step.layers[-1]) <= moved <= 1.1 * len(step.layers[-1])
    assert nodes[target].content(step.reference, "low") == _random("low", 8 * _MIB)
    assert nodes[target].content(step.reference, "patch") == _random("patch", _MIB)
    assert _held(nodes[target], step) == 3


@pytest.mark.parametrize("target", _SYSTEMS)
def test_an_image_stays_whole_when_the_one_it_was_built_on_goes(nodes: Nodes, target: str) -> None:
    """And it can be given on: a node that received layers is a source for the next."""
    step, base = _described(_STEP), _described(_BASE)
    source, third = (node for name, node in nodes.items() if name != target)
    source.put(step)
    nodes[target].put(base)
    _send(source, nodes[target], step)
    nodes[target].shell(f"docker rmi {base.reference} && docker image prune --force")
    assert nodes[target].content(step.reference, "middle") == _random("middle", 4 * _MIB)
    assert _send(nodes[target], third, step) > sum(len(layer) for layer in step.layers)
    assert third.content(step.reference, "low") == _random("low", 8 * _MIB)


@pytest.mark.parametrize(("compression", "nested"), [("gzip", True), ("zstd", False)])
def test_compressed_blobs_are_given_plain_and_are_named_when_held(nodes: Nodes, compression: str, nested: bool) -> None:
    """A base that was pulled: its blobs are compressed, and they stay so under the new image."""
    step, base = _described(_STEP), _described(_BASE)
    nodes[_CONTAINERD].put(step, step.layout(compression, nested))
    nodes[_NEW].put(base)
    assert _send(nodes[_CONTAINERD], nodes[_NEW], step) <= 1.1 * len(step.layers[-1])
    nodes[_CONTAINERD].clean()
    nodes[_CONTAINERD].put(base, base.layout(compression, nested))
    assert _send(nodes[_NEW], nodes[_CONTAINERD], step) <= 1.1 * len(step.layers[-1])
    assert nodes[_CONTAINERD].content(step.reference, "low") == _random("low", 8 * _MIB)


@pytest.mark.parametrize("target", _SYSTEMS)
def test_another_setting_moves_no_layer(nodes: Nodes, target: str) -> None:
    base = _described(_BASE)
    other = replace(base, reference=f"{_CHAIN}:other", settings={"Env": ["B=2"]})
    source = nodes[_NEW if target == _OLD else _OLD]
    source.put(other)
    nodes[target].put(base)
    assert _send(source, nodes[target], other) == len(other.config)
    nodes[target].shell(f"docker rmi {base.reference}")
    assert nodes[target].content(other.reference, "middle") == _random("middle", 4 * _MIB)


@pytest.mark.parametrize("target", _SYSTEMS)
def test_a_layer_that_comes_twice_is_moved_once(nodes: Nodes, target: str) -> None:
    low, patch = random_layer("low", 4 * _MIB), random_layer("patch", _MIB)
    doubled = _described(HandMade(f"{_CHAIN}:doubled", (low, patch, low, patch)))
    source = nodes[_NEW if target == _OLD else _OLD]
    source.put(doubled)
    moved = _send(source, nodes[target], doubled)
    assert moved == len(low) + len(patch) + len(doubled.config)
    assert nodes[target].content(doubled.reference, "low") == _random("low", 4 * _MIB)


@pytest.mark.parametrize("target", _SYSTEMS)
def test_a_node_that_lost_the_base_asks_for_all_layers(nodes: Nodes, target: str) -> None:
    step = _described(_STEP)
    source = nodes[_NEW if target == _OLD else _OLD]
    source.put(step)
    _copy(source, nodes[target], step, 2)
    answer = _load(nodes[target], step, 2)
    assert (answer["loaded"], answer["needs_all"]) == (False, True)
    assert "holds 0 of the lowest layers and 2 were expected" in answer["why"]
    assert nodes[target].names() == set()
    assert _held(nodes[target], step) == 0
    _send(source, nodes[target], step)


@pytest.mark.parametrize("target", _SYSTEMS)
def test_a_damaged_layer_leaves_the_old_image_under_its_name(nodes: Nodes, target: str) -> None:
    step, base = _described(_STEP), _described(_BASE)
    earlier = replace(base, reference=step.reference)
    source = nodes[_NEW if target == _OLD else _OLD]
    source.put(step)
    nodes[target].put(earlier)
    _copy(source, nodes[target], step, 2)
    file = f"{_arriving(step)}/{step.diff_ids[-1][7:]}.tar"
    nodes[target].shell(f"printf x | dd of={file} bs=1 seek=5000 conv=notrunc status=none")
    answer = _load(nodes[target], step, 2)
    assert answer["needs_all"], answer
    print(answer["why"])
    assert nodes[target].verb("image-identity", reference=step.reference)["layers"] == base.diff_ids
    assert nodes[target].names() == {step.reference}
    assert nodes[target].shell("docker ps --all --quiet") == b""


def test_exports_at_once_and_after_a_kill(nodes: Nodes) -> None:
    step = _described(_STEP)
    source = nodes[_OLD]
    source.put(step)
    folder = f"{_STORAGE}/images/outgoing/{_identity(step)[7:]}"
    half = f"{folder}/.{step.diff_ids[0][7:]}.tar.unfinished"
    source.shell(f"mkdir -p {folder} && echo half > {half}")
    with ThreadPoolExecutor(4) as pool:
        held = [0, 2, 0, 2]
        ask = {"reference": step.reference, "layers": step.diff_ids}
        answers = list(pool.map(lambda count: source.verb("image-export", held=count, **ask), held))
    assert [len(answer["files"]) for answer in answers] == [4, 2, 4, 2]
    assert set(source.shell(f"ls -A {folder}").decode().split()) == {
        "config.json",
        *(f"{diff_id[7:]}.tar" for diff_id in step.diff_ids),
    }
    assert source.verb("image-discard-export", identity=_identity(step)) == {"removed": True}
    assert source.shell(f"ls {_STORAGE}/images/outgoing") == b""


@pytest.mark.parametrize("name", _SYSTEMS)
def test_what_cannot_work_is_refused_before_anything_moves(nodes: Nodes, name: str) -> None:
    step, node = _described(_STEP), nodes[name]
    other = {"amd64": "arm64", "arm64": "amd64"}[step.architecture]
    with pytest.raises(NodeError, match=f"the image is for {other} and this node is {step.architecture}"):
        node.verb("image-missing", layers=step.diff_ids, architecture=other)
    ask = {"layers": step.diff_ids, "architecture": step.architecture, "folder": _arriving(step)}
    free = node.verb("image-missing", **ask)["docker_free_bytes"]
    too_much = {step.diff_ids[0]: int(0.75 * free)}
    with pytest.raises(NodeError, match=r"/var/lib/docker has \d+ bytes free and \d+ are needed to load the layers"):
        node.verb("image-missing", missing_sizes=too_much, **ask)
    node.put(replace(_described(_BASE), reference=step.reference))
    with pytest.raises(NodeError, match="it is another image under the same name"):
        node.verb("image-export", reference=step.reference, layers=step.diff_ids, held=0)


@pytest.mark.parametrize("name", _SYSTEMS)
def test_loading_takes_as_much_room_as_is_asked_for(nodes: Nodes, name: str) -> None:
    """The room that is asked for covers what Docker takes meanwhile, as far as it can be seen, and what it keeps."""
    big = _described(HandMade(f"{_CHAIN}:big", (random_layer("big", 64 * _MIB),)))
    source = nodes[_NEW if name == _OLD else _OLD]
    source.put(big)
    _copy(source, nodes[name], big, 0)
    # While containerd unpacks, its folder tmpmounts shows the snapshot's files a second time.
    used = "du -s --exclude=tmpmounts --block-size=1 /var/lib/docker 2>/dev/null | cut -f1"
    watch = f"while [ ! -e /tmp/enough ]; do {used} >> /tmp/used; sleep 0.02; done; rm /tmp/enough"
    before = int(nodes[name].shell(f"rm -f /tmp/used; {used}"))
    nodes[name].shell(f"( {watch} ) > /dev/null 2>&1 &")
    _load(nodes[name], big, 0)
    nodes[name].shell("touch /tmp/enough; while [ -e /tmp/enough ]; do sleep 0.1; done")
    after, peak = int(nodes[name].shell(used)), int(nodes[name].shell("sort -n /tmp/used | tail -1"))
    size = len(big.layers[0])
    print(f"{name}: for a layer of {size} bytes Docker takes {peak - before}, and keeps {after - before}")
    assert size <= after - before <= 2.05 * size
    assert peak - before <= 2.05 * size


def test_a_base_whose_blob_is_gone_is_not_counted_on(nodes: Nodes) -> None:
    """The containerd store runs such an image from its snapshots, but no new image can be made of it."""
    step, base = _described(_STEP), _described(_BASE)
    nodes[_OLD].put(step)
    nodes[_CONTAINERD].put(base)
    socket = "$(find /run /var/run/ -name containerd.sock | head -1)"
    nodes[_CONTAINERD].shell(f"ctr --address {socket} --namespace moby content rm {base.diff_ids[1]}")
    print(_held(nodes[_CONTAINERD], step))
    assert _send(nodes[_OLD], nodes[_CONTAINERD], step) > len(base.layers[1])
    assert nodes[_CONTAINERD].content(step.reference, "middle") == _random("middle", 4 * _MIB)
    nodes[_NEW].clean()
    _send(nodes[_CONTAINERD], nodes[_NEW], step)


@pytest.mark.parametrize("name", _SYSTEMS)
def test_old_images_of_the_chain_go_and_nothing_else(nodes: Nodes, name: str) -> None:
    node = nodes[name]

    def image(reference: str, chain: str, *parts: str) -> None:
        layers = tuple(tar_of({part: part.encode()}) for part in ("base", *parts))
        labels = {"Labels": {"gb10-serving.chain.name": chain}}
        node.put(_described(HandMade(reference, layers, labels)))
        node.shell(f"sleep 0.02; docker tag {reference} again:now && docker tag {reference} {reference}")
        node.shell("docker rmi again:now")

    for number in range(5):
        image(f"{_CHAIN}:{number}", "one", f"{number}")
    image(f"{_CHAIN}:current-step", "one", "current")
    image(f"{_CHAIN}:current", "one", "current", "more")
    image("gb10-serving/other:1", "two", "two")
    image("somebody/elses:1", "one", "else")
    node.shell(f"docker create --name uses --network none --entrypoint /x {_CHAIN}:1")
    answer = node.verb("image-prune", chain="one", keep=2, reference=f"{_CHAIN}:current")
    assert answer == {"removed": [f"{_CHAIN}:0", f"{_CHAIN}:2"], "used": [f"{_CHAIN}:1"]}
    kept = {f"{_CHAIN}:{name}" for name in ("1", "3", "4", "current-step", "current")}
    assert node.names() == kept | {"gb10-serving/other:1", "somebody/elses:1"}
    with pytest.raises(NodeError, match="absent is not on this node"):
        node.verb("image-prune", chain="one", keep=0, reference=f"{_CHAIN}:absent")


def test_this_file_is_about_both_stores(nodes: Nodes) -> None:
    asked = {"layers": [], "architecture": docker_architecture()}
    kinds = {name: node.verb("image-missing", **asked)["image_store"] for name, node in nodes.items()}
    assert kinds == {_OLD: "classic", _NEW: "classic", _CONTAINERD: "containerd"}
    assert Path("/var/lib/docker") == Path(nodes[_OLD].verb("image-missing", **asked)["docker_folder"])


@pytest.mark.usefixtures("vllm_tree")
def test_buildkit_and_the_classic_builder_make_the_same_files(nodes: Nodes) -> None:
    """Docker 20.10 has BuildKit built in; Debian's 26.1 comes without the plugin and has the classic builder alone."""
    chain, expected = read_chain(_PROJECT / "patches" / "lab"), Expected(entrypoint=("python3",), capability=None)
    base, reference = base_plan(chain.description.origin), finished_reference(chain, expected)
    edited = {edit.file for step in chain.steps for edit in step.description.edits}
    files: dict[str, dict[str, bytes]] = {}
    for name, builder in ((_OLD, "BuildKit"), (_NEW, "the classic builder")):
        node = nodes[name]
        ensure_base(_builder(node), base)
        built = build_verified(_builder(node), chain, base, expected)
        assert len(built["layers"]) > len(chain.steps) + 1
        logs = node.shell(f"cat {_STORAGE}/logs/images/*.log").decode()
        assert ("Successfully built" in logs) == (builder == "the classic builder")
        label = f"docker image inspect --format '{{{{index .Config.Labels \"{VERIFY_LABEL}\"}}}}' {reference}"
        assert json.loads(node.shell(label))["ok"] is True
        files[name] = {
            file: node.content(reference, f"{chain.description.packages_folder}/{file}") for file in sorted(edited)
        }
    assert files[_OLD] == files[_NEW]
    assert b"# gb10-serving: sleep early" in b"".join(files[_NEW].values())


def _builder(node: Node) -> Builder:
    return Builder(connection_to(node.cluster, node.name), _STORAGE, 300)
