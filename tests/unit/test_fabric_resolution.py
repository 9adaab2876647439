"""Fabric resolution on trees made from the tables that the sources print, and on generated ones."""

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.fabric import leftovers
from runtime.fabric.addresses import InterfaceAddress, read_addresses
from runtime.fabric.request import FabricRequest, Rail
from runtime.fabric.resolving import Patience, Surroundings, engine_environment, resolve
from runtime.fabric.result import FabricError, ResolvedFabric, ResolvedRail, mtu_problems
from runtime.fabric.sysfs import read_ports
from spec import nccl
from tests.sysfs_tree import V1, V2, PortTable, Slot, Tree, pairs, write_tree

F0, F1 = "enp1s0f0np0", "enp1s0f1np1"
P2F0 = "enP2p1s0f0np0"
H0, H1, H2 = "rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0"
OURS, SECOND, OTHER = "198.51.100.1", "203.0.113.1", "192.0.2.9"
LINK_LOCAL = "fe80::4ebb:47ff:fe00:1"
UP = ("up", 9000)

# Seed 002: two nodes read on 2026-08-26. Node A's table has a hole, and the entry of its static address is 6.
NODE_A: list[Slot] = [
    (LINK_LOCAL, V1, F1),
    (LINK_LOCAL, V2, F1),
    ("169.254.7.7", V1, F1),
    None,
    ("169.254.7.7", V2, F1),
    (OURS, V1, F1),
    (OURS, V2, F1),
]
NODE_A_AFTER_REBOOT = [slot for slot in NODE_A if slot]
NODE_B = pairs(F0, LINK_LOCAL, "169.254.7.8", OURS)

# T4x, pull request 6: 3, 3, 3 and 4 on four nodes.
NODE_OF_THREE = pairs(F0, LINK_LOCAL, OURS)
NODE_OF_FOUR: list[Slot] = [*pairs(F0, LINK_LOCAL), None, *NODE_OF_THREE[3:], (OURS, V1, F0)]
NODE_OF_FOUR[3], NODE_OF_FOUR[4] = NODE_OF_FOUR[4], NODE_OF_FOUR[3]


@dataclass
class Node:
    """A pretended node: its tree, its addresses, the files that NCCL reads, and a clock that sleeping moves."""

    root: Path
    tree: Tree
    addresses: list[tuple[str, str]]
    files: dict[str, str] = field(default_factory=dict)
    changes: dict[float, Callable[["Node"], None]] = field(default_factory=dict)
    seconds: float = 0.0
    told: list[str] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.seconds += seconds
        for moment in [moment for moment in self.changes if moment <= self.seconds]:
            self.changes.pop(moment)(self)

    def resolve(
        self, request: FabricRequest, image: Mapping[str, str] | None = None, wait_seconds: float = 0
    ) -> ResolvedFabric:
        return resolve(
            request,
            {**(image or {}), **request.environment},
            Surroundings(
                write_tree(self.root, self.tree),
                lambda: tuple(InterfaceAddress(name, address, 24) for name, address in self.addresses),
                lambda: self.files,
            ),
            Patience(wait_seconds, lambda: self.seconds, self.sleep, self.told.append),
        )

    def error(self, request: FabricRequest, *codes: str, image: Mapping[str, str] | None = None) -> str:
        with pytest.raises(FabricError) as caught:
            self.resolve(request, image)
        assert [problem.code for problem in caught.value.problems] == list(codes)
        text = str(caught.value)
        assert text.count("Way out: ") == len(codes)
        assert text.endswith(caught.value.table)
        return text


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Both functions cabled to the fabric at one index, and the other port of the first card to another cluster."""
    tree = Tree(
        {F0: UP, F1: UP, P2F0: UP, "wlP9s9": ("up", 1500)},
        {
            f"{H0}:1": PortTable(pairs(F0, LINK_LOCAL, OURS)),
            f"{H1}:1": PortTable(pairs(F1, LINK_LOCAL, OTHER)),
            f"{H2}:1": PortTable(pairs(P2F0, LINK_LOCAL, SECOND)),
        },
    )
    return Node(tmp_path, tree, [(F0, OURS), (F1, OTHER), (P2F0, SECOND), ("wlP9s9", "10.0.0.7")])


def roce(*rails: Rail, **environment: str) -> FabricRequest:
    return FabricRequest("roce", rails or (Rail(OURS, F0, H0),), environment)


def with_port(tree: Tree, port: str, table: PortTable) -> Tree:
    return replace(tree, ports={**tree.ports, port: table})


def with_interface(tree: Tree, name: str, state: str, mtu: int) -> Tree:
    return replace(tree, interfaces={**tree.interfaces, name: (state, mtu)})


BOTH = (Rail(OURS, F0, H0), Rail(SECOND, P2F0, H2))


@pytest.mark.parametrize(
    ("interface", "hca", "table", "index"),
    [
        (F1, H1, NODE_A, 6),
        (F1, H1, NODE_A_AFTER_REBOOT, 5),
        (F0, H0, NODE_B, 5),
        (F0, H0, NODE_OF_THREE, 3),
        (F0, H0, NODE_OF_FOUR, 4),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_the_sources_tables(
    tmp_path: Path, interface: str, hca: str, table: list[Slot], index: int, named: bool
) -> None:
    found = Node(tmp_path, Tree({interface: UP}, {f"{hca}:1": PortTable(table)}), [(interface, OURS)]).resolve(
        roce(Rail(OURS, interface, hca if named else None))
    )
    assert found.rails == (ResolvedRail(OURS, interface, 9000, hca, 1, index),)
    assert found.environment == {
        "VLLM_HOST_IP": OURS,
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "NCCL_IB_HCA": f"={hca}:1",
        "NCCL_IB_GID_INDEX": str(index),
        "B12X_ROCE_GID_INDEX": str(index),
    }


def test_an_index_that_moves_between_two_starts_is_found_again(tmp_path: Path) -> None:
    moving = Node(tmp_path, Tree({F1: UP}, {f"{H1}:1": PortTable(NODE_A)}), [(F1, OURS)])
    request = roce(Rail(OURS, F1, H1))
    assert moving.resolve(request).gid_index == 6
    moving.tree = Tree({F1: UP}, {f"{H1}:1": PortTable(NODE_A_AFTER_REBOOT)})
    assert moving.resolve(request).gid_index == 5


def test_both_rails_agree(node: Node) -> None:
    found = node.resolve(roce(*BOTH))
    assert [(rail.hca, rail.gid_index) for rail in found.rails] == [(H0, 3), (H2, 3)]
    assert found.environment["NCCL_IB_HCA"] == f"={H0}:1,{H2}:1"
    assert found.environment["NCCL_SOCKET_IFNAME"] == f"={F0}"


def test_rails_at_different_indexes_fail_with_the_table(node: Node) -> None:
    """MDS pull request 95: 5 on one device and 6 on the other."""
    node.tree = with_port(node.tree, f"{H2}:1", PortTable([*pairs(P2F0, LINK_LOCAL), None, *pairs(P2F0, SECOND)]))
    text = node.error(roce(*BOTH), "gid-indexes-differ")
    assert f"{H0}:1 at 3; {H2}:1 at 4" in text
    rows = [row.split() for row in text.splitlines()]
    assert [f"{H2}:1", "ACTIVE", "2", "-", "(empty)", "-"] in rows
    assert [f"{H2}:1", "ACTIVE", "4", "RoCE", "v2", SECOND, P2F0, "<-", "rail", "1"] in rows


def test_rails_with_one_index_in_common_take_it(node: Node) -> None:
    """An address can have two RoCE v2 entries for a while: only one that all rails have is of use."""
    node.tree = with_port(node.tree, f"{H2}:1", PortTable([(SECOND, V2, P2F0), None, None, (SECOND, V2, P2F0)]))
    assert node.resolve(roce(*BOTH)).gid_index == 3


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED"])
def test_a_port_that_is_down(node: Node, state: str) -> None:
    node.tree = with_port(node.tree, f"{H0}:1", PortTable(pairs(F0, OURS), state=state))
    assert f"{H0}:1 is {state[3:]}" in node.error(roce(), "port-down")
    node.tree = with_port(node.tree, f"{H0}:1", PortTable([], state=state))
    assert f"{H0}:1 is {state[3:]}" in node.error(roce(), "port-down")


def test_an_interface_that_is_down_or_gone(node: Node) -> None:
    node.tree = with_interface(node.tree, F0, "down", 9000)
    assert f"{F0} is down" in node.error(roce(), "interface-down")
    absent = Rail("203.0.113.77", "enp1s0f9np9", H0)
    assert "no interface enp1s0f9np9" in node.error(roce(absent), "interface-absent")


def test_an_address_that_is_nowhere_or_elsewhere(node: Node) -> None:
    node.addresses = [(F1, OURS), (F0, "198.51.100.99")]
    text = node.error(roce(), "address-on-another-interface")
    assert f"{OURS} is on {F1}" in text
    assert f"`interface: {F1}`" in text
    node.addresses = [(F0, "198.51.100.99")]
    assert f"{F0} has 198.51.100.99" in node.error(roce(), "address-absent")


def test_the_twin_port_of_another_cluster(node: Node) -> None:
    """MiaAI Qwen README: the HCA names a port that is cabled to something else, and the start hangs."""
    text = node.error(roce(Rail(OURS, F0, H1)), "twin-port")
    assert f"leads to another network with {OTHER}" in text
    assert f"`hca: {H0}`" in text
    listed = roce(NCCL_IB_HCA=f"={H0}:1,{H1}:1")
    assert f"also takes {H1}:1" in node.error(listed, "twin-port")


def test_a_prefix_that_matches_two(node: Node) -> None:
    """MM entrypoint: `enp1s0f` takes both links."""
    text = node.error(roce(NCCL_IB_HCA="rocep1s0f"), "prefix-matches-two")
    assert f"also takes {H1}:1" in text
    assert f"NCCL_IB_HCA=={H0}:1" in text
    assert f"NCCL_SOCKET_IFNAME=={F0}" in node.error(roce(NCCL_SOCKET_IFNAME="enp1s0f"), "prefix-matches-two")
    assert node.resolve(roce(NCCL_IB_HCA=f"{H0}", NCCL_SOCKET_IFNAME=F0)).gid_index == 3


def test_a_port_that_is_down_is_not_taken_by_a_prefix(node: Node) -> None:
    node.tree = with_port(node.tree, f"{H1}:1", PortTable([], state="1: DOWN"))
    assert node.resolve(roce(NCCL_IB_HCA="rocep1s0f")).gid_index == 3


def test_selectors_that_are_wrong_otherwise(node: Node) -> None:
    node.error(roce(NCCL_IB_HCA="^mlx5_0"), "selector-takes-another-port", "selector-takes-another-port")
    assert node.resolve(roce(NCCL_IB_HCA=f"^={H1},{H2}")).gid_index == 3
    node.error(roce(NCCL_IB_HCA="=mlx5_0"), "selector-misses-a-rail")
    node.error(roce(*BOTH, NCCL_IB_HCA=f"={H0}:1"), "selector-misses-a-rail")
    node.error(roce(NCCL_IB_HCA=f"={H0}:2"), "selector-misses-a-rail")
    node.error(roce(NCCL_IB_HCA=f"={H0}:one"), "selector-unreadable")


def test_a_release_that_pins_an_index(node: Node) -> None:
    """Seed 002: 6 was pinned, the table became dense, and 6 names an empty slot."""
    assert f"slot 6 of {H0}:1 is empty, all zeros" in node.error(roce(NCCL_IB_GID_INDEX="6"), "gid-index-pinned")


def test_a_table_without_the_address(node: Node) -> None:
    node.tree = with_port(node.tree, f"{H0}:1", PortTable([]))
    assert "is all zeros" in node.error(roce(), "empty-gid-table")
    node.tree = with_port(node.tree, f"{H0}:1", PortTable(pairs(F0, LINK_LOCAL)))
    assert f"{H0}:1 has no GID for {OURS}" in node.error(roce(), "no-gid-entry")
    node.tree = with_port(node.tree, f"{H0}:1", PortTable([(OURS, V1, F0)]))
    assert "RoCE v1 only" in node.error(roce(), "no-roce-v2")


def test_an_address_on_a_vlan_is_not_the_interfaces_own(node: Node) -> None:
    node.tree = with_port(node.tree, f"{H0}:1", PortTable([(OURS, V2, f"{F0}.100"), None, (OURS, V2, F0)]))
    assert node.resolve(roce()).gid_index == 2


def test_devices_that_are_absent_or_of_another_kind(node: Node) -> None:
    text = node.error(roce(Rail(OURS, F0, "mlx5_0")), "hca-absent")
    assert f"it has {H2}, {H0}, {H1}, and {OURS} is on {H0}" in text
    node.tree = with_port(node.tree, f"{H0}:1", PortTable(pairs(F0, OURS), link_layer="InfiniBand"))
    node.error(roce(), "not-ethernet")


def test_a_node_without_any_rdma_device(tmp_path: Path) -> None:
    plain = Node(tmp_path, Tree({F0: ("up", 1500)}), [(F0, OURS)])
    text = plain.error(roce(), "no-rdma-device")
    assert "the fabric kind ethernet" in text
    assert text.endswith("no RDMA device")


def test_one_address_on_two_devices_needs_a_name(node: Node) -> None:
    node.tree = with_port(node.tree, f"{H1}:1", PortTable(pairs(F0, OURS)))
    node.error(roce(Rail(OURS, F0)), "address-on-two-ports")
    assert node.resolve(roce()).rails[0].hca == H0


def test_two_rails_on_one_port(node: Node) -> None:
    node.tree = with_port(node.tree, f"{H0}:1", PortTable(pairs(F0, OURS, SECOND)))
    node.addresses = [(F0, OURS), (F0, SECOND)]
    text = node.error(roce(Rail(OURS, F0, H0), Rail(SECOND, F0, H0)), "rails-share-a-port")
    assert f"2 rails lie on the RDMA ports {H0}:1, {H0}:1" in text
    assert "Way out: give each rail a port of its own" in text


def test_an_mtu_that_differs(node: Node) -> None:
    node.tree = with_interface(node.tree, P2F0, "up", 1500)
    text = node.error(roce(*BOTH), "mtu-differs")
    assert f"{F0} 9000, {P2F0} 1500" in text
    assert "mtu 9000" in text


def test_an_mtu_that_differs_between_nodes() -> None:
    """facts/peers.md 3.1, 32: one end at 1500 after a firmware reboot, IBV_WC_RETRY_EXC_ERR."""
    at_9000, at_1500 = ResolvedRail(OURS, F0, 9000), ResolvedRail(SECOND, F0, 1500)
    assert mtu_problems({"gb10-1": [at_9000], "gb10-2": [at_9000]}) == []
    assert mtu_problems({}) == []
    (text,) = mtu_problems({"gb10-1": [at_1500, at_9000], "gb10-2": [at_1500, at_1500]})
    assert "rail 1" in text
    assert f"gb10-2 {F0} 1500" in text
    assert "Way out: `ip link set dev INTERFACE mtu 9000`" in text


def test_a_leftover_nccl_conf(node: Node) -> None:
    """luxingcom #1: a file of an earlier installation, on one node only."""
    node.files = {
        "/etc/nccl.conf": "# from the playbook\n\nNCCL_IB_GID_INDEX=3\nNCCL_SOCKET_IFNAME=enP7s7\n",
        "/root/.nccl.conf": "NCCL_ALGO=Tree\nNCCL_DEBUG=WARN\n",
    }
    text = node.error(roce(NCCL_DEBUG="WARN"), "leftover-nccl-conf", "leftover-nccl-conf")
    assert f"/etc/nccl.conf, line 4: NCCL_SOCKET_IFNAME=enP7s7, and the Release says ={F0}" in text
    assert "/root/.nccl.conf, line 1: NCCL_ALGO=Tree, which the Release leaves to NCCL" in text
    assert "remove /etc/nccl.conf" in text


def test_variables_that_an_image_bakes_in_do_not_reach_the_engine(node: Node) -> None:
    """TV pull request 13: an image that sets the interface of its author's machine."""
    image = {
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "TP_SOCKET_IFNAME": F1,
        "NCCL_IB_GID_INDEX": "6",
        "NCCL_ALGO": "Tree",
        "UCX_TLS": "",
        "PATH": "/usr/bin",
    }
    request = roce(NCCL_DEBUG="WARN")
    found = node.resolve(request, image)
    notices = "\n".join(found.notices)
    assert "the image sets GLOO_SOCKET_IFNAME=enP7s7: this node has no interface enP7s7" in notices
    assert f"the image sets TP_SOCKET_IFNAME={F1}: {F1} is no rail of this deployment" in notices
    assert f"the image sets NCCL_IB_GID_INDEX=6: slot 6 of {H0}:1 is empty, all zeros" in notices
    assert "the image sets NCCL_ALGO=Tree: the Release does not ask for it" in notices
    assert "an empty value hides what is found" in notices
    assert all("`fabric/nccl` in the stack file" in notice for notice in found.notices)
    engine = engine_environment({**image, **request.environment}, found)
    assert engine == {"PATH": "/usr/bin", "NCCL_DEBUG": "WARN", **found.environment}


def test_names_of_the_fabric_are_those_of_spec() -> None:
    """Nodes do not have spec/, so runtime/ says it again."""
    assert leftovers.FABRIC_PREFIXES == nccl.FABRIC_PREFIXES
    unnamed = {name for name in nccl.VARIABLES if not name.startswith((*nccl.FABRIC_PREFIXES, "TORCH_"))}
    unfound = {name for name in nccl.LEFT_UNSET if not name.startswith(nccl.FABRIC_PREFIXES)}
    assert set(leftovers.FABRIC_NAMES) == unnamed | unfound


def test_every_found_variable_is_one_that_spec_knows(node: Node) -> None:
    assert set(node.resolve(roce()).environment) <= set(nccl.VARIABLES) | set(nccl.LEFT_UNSET)


@pytest.mark.parametrize("kind", ["ethernet", "virtual", "nvlink"])
def test_fabrics_without_rdma_devices(tmp_path: Path, kind: str) -> None:
    tree = Tree({F0: ("up", 1500), "eth1": ("unknown", 9000)})
    plain = Node(tmp_path, tree, [(F0, OURS), ("eth1", SECOND)])
    found = plain.resolve(FabricRequest(kind, (Rail(OURS, F0), Rail(SECOND, "eth1"))))
    assert found.gid_index is None
    assert found.environment == {
        "VLLM_HOST_IP": OURS,
        "GLOO_SOCKET_IFNAME": F0,
        "TP_SOCKET_IFNAME": F0,
        "NCCL_SOCKET_IFNAME": f"={F0},eth1" if kind == "ethernet" else f"={F0}",
    }
    plain.error(FabricRequest(kind, (Rail(OURS, "eth1"),)), "address-on-another-interface")


@pytest.mark.parametrize("kind", ["roce", "ethernet", "virtual", "nvlink"])
def test_what_is_found_agrees_with_what_spec_renders(node: Node, kind: str) -> None:
    """On a node as the cluster file describes it, the Release's variables and the found ones are the same."""
    rails = tuple(nccl.Rail(address=rail.address, interface=rail.interface, hca=rail.hca) for rail in BOTH)
    render = {
        "roce": lambda: nccl.roce_variables(rails, nccl.NcclSettings()),
        "ethernet": lambda: nccl.ethernet_variables(rails, nccl.NcclSettings()),
        "nvlink": lambda: nccl.nvlink_variables(rails, nccl.NcclSettings()),
        "virtual": lambda: nccl.common_variables(rails),
    }[kind]
    rendered = render()
    found = node.resolve(FabricRequest(kind, BOTH, rendered))
    assert {name: value for name, value in found.environment.items() if name in rendered} == {
        name: value for name, value in rendered.items() if name in found.environment
    }
    assert set(found.environment) - set(rendered) <= set(nccl.LEFT_UNSET)


def test_a_link_that_comes_up_late_is_waited_for(node: Node) -> None:
    ready = node.tree
    node.tree = with_interface(with_port(node.tree, f"{H0}:1", PortTable([], state="1: DOWN")), F0, "down", 9000)
    address = node.addresses.pop(0)

    def link_up(late: Node) -> None:
        late.tree = with_port(ready, f"{H0}:1", PortTable([]))
        write_tree(late.root, late.tree)

    def address_set(late: Node) -> None:
        late.addresses.append(address)

    def gid_there(late: Node) -> None:
        write_tree(late.root, ready)

    node.changes = {7.0: link_up, 20.0: address_set, 31.0: gid_there}
    assert node.resolve(roce(), wait_seconds=60).gid_index == 3
    assert 31 <= node.seconds < 33
    told = "\n".join(node.told)
    assert f"waiting up to 60 s more for the fabric: rail 0: {F0} is down" in told
    assert f"no interface has {OURS}" in told
    assert "is all zeros" in told


def test_the_wait_is_bounded(node: Node) -> None:
    node.tree = with_interface(node.tree, F0, "down", 9000)
    with pytest.raises(FabricError, match="interface-down"):
        node.resolve(roce(), wait_seconds=60)
    assert node.seconds == 60


def test_what_cannot_pass_is_not_waited_for(node: Node) -> None:
    node.tree = with_interface(node.tree, P2F0, "down", 9000)
    with pytest.raises(FabricError, match=r"twin-port[\s\S]*interface-down"):
        node.resolve(roce(Rail(OURS, F0, H1), BOTH[1]), wait_seconds=60)
    assert node.seconds == 0


def test_a_result_survives_the_way_to_a_peer(node: Node) -> None:
    found = node.resolve(roce(*BOTH), {"NCCL_ALGO": "Tree"})
    assert ResolvedFabric.from_plain(json.loads(json.dumps(found.to_plain()))) == found


def test_requests_from_plain_data() -> None:
    data = {"kind": "roce", "rails": [{"address": OURS, "interface": F0, "hca": None}], "environment": {"A": "b"}}
    assert FabricRequest.from_plain(data) == FabricRequest("roce", (Rail(OURS, F0),), {"A": "b"})
    with pytest.raises(ValueError, match="'rocky'; there are: roce, ethernet"):
        FabricRequest.from_plain({**data, "kind": "rocky"})
    with pytest.raises(ValueError, match="one rail at least"):
        FabricRequest.from_plain({**data, "rails": []})


def test_this_machine_has_the_loopback_address() -> None:
    assert InterfaceAddress("lo", "127.0.0.1", 8) in read_addresses()
    assert {entry.interface for entry in read_addresses()} <= {name for _, name in socket.if_nameindex()}


def test_this_machines_loopback_resolves() -> None:
    """The real reader and the real tree: nothing is injected but the absence of files in the user's home."""
    found = resolve(FabricRequest("virtual", (Rail("127.0.0.1", "lo"),)), {}, Surroundings(configuration_files=dict))
    assert found.rails[0].mtu_bytes > 1000


def test_configuration_files_are_read_where_nccl_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_home", lambda: str(tmp_path))
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    assert leftovers.read_configuration_files()[f"{tmp_path}/.nccl.conf"] == "NCCL_DEBUG=INFO\n"


# Generated tables.

ADDRESSES = st.sampled_from([OURS, OTHER, LINK_LOCAL, "169.254.3.3", "2001:db8::7"])
SLOTS = st.none() | st.tuples(ADDRESSES, st.sampled_from([V1, V2]), st.sampled_from([F0, f"{F0}.7"]))
TABLES = st.lists(SLOTS, max_size=12)


def usable(table: list[Slot], address: str, interface: str) -> list[int]:
    """Says it in another way than the resolver does: the slots' own tuples, without parsing."""
    return [index for index, slot in enumerate(table) if slot == (address, V2, interface)]


@given(table=TABLES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_any_table_gives_the_first_usable_entry_or_an_error(tmp_path: Path, table: list[Slot]) -> None:
    generated = Node(tmp_path, Tree({F0: UP}, {f"{H0}:1": PortTable(table, size=12)}), [(F0, OURS)])
    expected = usable(table, OURS, F0)
    if expected:
        assert generated.resolve(roce()).gid_index == expected[0]
    else:
        with pytest.raises(FabricError) as caught:
            generated.resolve(roce())
        assert caught.value.problems[0].code in {"no-gid-entry", "empty-gid-table", "no-roce-v2"}


@given(table=TABLES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_reading_a_table_gives_back_what_is_in_it(tmp_path: Path, table: list[Slot]) -> None:
    write_tree(tmp_path, Tree({}, {f"{H0}:1": PortTable(table, size=12)}))
    (port,) = read_ports(tmp_path)
    assert port.slots == 12
    assert {entry.index: (entry.address, entry.type, entry.interface) for entry in port.entries} == {
        index: slot for index, slot in enumerate(table) if slot
    }


@given(first=TABLES, second=TABLES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_two_rails_get_an_index_only_where_both_have_it(tmp_path: Path, first: list[Slot], second: list[Slot]) -> None:
    moved: list[Slot] = [
        slot and (SECOND if slot[0] == OURS else slot[0], slot[1], P2F0 if slot[2] == F0 else slot[2])
        for slot in second
    ]
    tree = Tree({F0: UP, P2F0: UP}, {f"{H0}:1": PortTable(first, size=12), f"{H2}:1": PortTable(moved, size=12)})
    generated = Node(tmp_path, tree, [(F0, OURS), (P2F0, SECOND)])
    common = sorted(set(usable(first, OURS, F0)) & set(usable(moved, SECOND, P2F0)))
    if common:
        assert {rail.gid_index for rail in generated.resolve(roce(*BOTH)).rails} == {common[0]}
    else:
        with pytest.raises(FabricError, match="Way out"):
            generated.resolve(roce(*BOTH))
