"""The fabric's variables of every kind, against the sources, with each difference explained."""

import ipaddress
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spec.cluster import Node, Rail
from spec.errors import Problem
from spec.fabric import Fabric, FabricKind, fabric_environment, fabric_problems, settings_problems
from spec.nccl import FABRIC_PREFIXES, LEFT_UNSET, RDMA_SETTINGS, VARIABLES, NcclSettings, environment_problems

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBTtO/TEIfpkD6n7coUxlqIUclSD0STXRBrVnHDihxwt"
KINDS: tuple[FabricKind, ...] = ("roce", "ethernet", "nvlink", "virtual")

# Seed 000, "NCCL over RoCE: the environment that works", as printed there: both rails, plane A 198.51.100.0/24.
SEED_000 = """
  -e NCCL_NET=IB -e NCCL_IB_DISABLE=0
  -e NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0
  -e NCCL_IB_GID_INDEX=3
  -e NCCL_IB_ROCE_VERSION_NUM=2 -e NCCL_IB_ADDR_FAMILY=AF_INET
  -e NCCL_IB_ADDR_RANGE=198.51.100.0/24
  -e NCCL_SOCKET_IFNAME=enp1s0f0np0 -e GLOO_SOCKET_IFNAME=enp1s0f0np0 -e TP_SOCKET_IFNAME=enp1s0f0np0
  -e NCCL_NVLS_ENABLE=0 -e NCCL_CROSS_NIC=0 -e NCCL_IB_MERGE_NICS=0 -e NCCL_CUMEM_ENABLE=0
  -e NCCL_IGNORE_CPU_AFFINITY=1
  -e NCCL_DEBUG=WARN -e TORCH_NCCL_ASYNC_ERROR_HANDLING=1
"""
# Seed 003's `docker run`, its variables for the network.
SEED_003 = "-e NCCL_SOCKET_IFNAME=enp1s0f0np0 -e NCCL_DEBUG=WARN -e GLOO_SOCKET_IFNAME=enp1s0f0np0"

# What the sources leave out and an image may have baked in (facts/peers.md section 6), wherever accelerators are.
ADDED_EVERYWHERE = {
    "VLLM_HOST_IP": "198.51.100.1",
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "UCX_NET_DEVICES": "enp1s0f0np0",
    "OMPI_MCA_btl_tcp_if_include": "enp1s0f0np0",
    "MN_IF_NAME": "enp1s0f0np0",
    "NCCL_NET_PLUGIN": "none",
}
# NCCL 2.30.7's own defaults: no source chooses them, so that none may come from an image instead.
ADDED_FOR_RDMA = {
    "NCCL_IB_TIMEOUT": "20",
    "NCCL_IB_RETRY_CNT": "7",
    "NCCL_IB_TC": "0",
    "NCCL_IB_SL": "0",
    "NCCL_IB_QPS_PER_CONNECTION": "1",
}


def variables(docker_options: str) -> dict[str, str]:
    """Returns the variables of `-e NAME=VALUE` options."""
    return dict(word.split("=", 1) for word in shlex.split(docker_options) if word != "-e")


def node(*rails: Rail) -> Node:
    return Node(management_address="192.0.2.1", host_key=HOST_KEY, switch="a", rails=rails)


FIRST = Rail(address="198.51.100.1", interface="enp1s0f0np0", hca="rocep1s0f0")
SECOND = Rail(address="198.51.100.129", interface="enP2p1s0f0np0", hca="roceP2p1s0f0")
BOTH = node(FIRST, SECOND)


def test_both_rails_of_the_first_source() -> None:
    expected = {
        **variables(SEED_000),
        # Exact names with their port: a prefix would also take another function's device.
        "NCCL_IB_HCA": "=rocep1s0f0:1,roceP2p1s0f0:1",
        # Exact name: NCCL takes a bare name for a prefix.
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        # The smallest network of this node's own two addresses, .1 and .129, is that /24.
        "NCCL_IB_ADDR_RANGE": "198.51.100.0/24",
        **ADDED_EVERYWHERE,
        **ADDED_FOR_RDMA,
    }
    # The index belongs to a node and a boot: found there at each start.
    del expected["NCCL_IB_GID_INDEX"]
    assert fabric_environment(BOTH, Fabric(kind="roce", rails=(0, 1))) == expected


def test_one_rail_names_one_device_and_one_address() -> None:
    """GLM at TP4: all-reduce waits for latency, so one device is kept (seed 000)."""
    both = fabric_environment(BOTH, Fabric(kind="roce", rails=(0, 1)))
    one = fabric_environment(BOTH, Fabric(kind="roce"))
    assert {name: value for name, value in one.items() if both[name] != value} == {
        "NCCL_IB_HCA": "=rocep1s0f0:1",
        "NCCL_IB_ADDR_RANGE": "198.51.100.1/32",
    }
    assert one.keys() == both.keys()


def test_a_node_whose_second_port_carries_the_fabric_has_its_own_names() -> None:
    """Cross-wired pairs: head on f1, worker on f0 (facts/seed-repos.md section 6, 13)."""
    crossed = node(FIRST, Rail(address="198.51.100.2", interface="enp1s0f1np1", hca="rocep1s0f1"))
    environment = fabric_environment(crossed, Fabric(kind="roce", rails=(1,)))
    assert environment["NCCL_IB_HCA"] == "=rocep1s0f1:1"
    assert environment["VLLM_HOST_IP"] == "198.51.100.2"
    interfaces = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "MN_IF_NAME")
    assert {environment[name] for name in interfaces} == {"enp1s0f1np1"}


def test_plain_ethernet_of_the_third_source() -> None:
    expected = {
        **variables(SEED_003),
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        # The source says nothing of the transport and gets sockets for want of a device in the container; here they are
        # asked for: with NCCL_IB_DISABLE alone NCCL still probes verbs (seed 000).
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        # GB10, as in seed 000.
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_CROSS_NIC": "0",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **ADDED_EVERYWHERE,
    }
    assert fabric_environment(node(FIRST.model_copy(update={"hca": None})), Fabric(kind="ethernet")) == expected


def test_plain_ethernet_may_use_both_rails_for_data_and_meets_on_the_first() -> None:
    environment = fabric_environment(BOTH, Fabric(kind="ethernet", rails=(0, 1)))
    assert environment["NCCL_SOCKET_IFNAME"] == "=enp1s0f0np0,enP2p1s0f0np0"
    assert environment["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"


def test_nvlink_on_one_host_undoes_what_gb10_images_bake_in() -> None:
    """Seed 000 prints no environment for its H200 host: NCCL's own defaults, written out."""
    environment = fabric_environment(node(FIRST), Fabric(kind="nvlink"))
    assert {name: value for name, value in environment.items() if name.startswith("NCCL_")} == {
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "NCCL_NET": "Socket",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "0",
        "NCCL_P2P_LEVEL": "NVL",
        "NCCL_SHM_DISABLE": "0",
        "NCCL_NVLS_ENABLE": "2",
        "NCCL_CUMEM_ENABLE": "1",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_DEBUG": "WARN",
    }


def test_the_virtual_fabric_is_the_default_without_an_rdma_device() -> None:
    rail = Rail(address="198.51.100.75", interface="rail0")
    assert fabric_environment(node(rail)) == {
        "VLLM_HOST_IP": "198.51.100.75",
        "GLOO_SOCKET_IFNAME": "rail0",
        "TP_SOCKET_IFNAME": "rail0",
        "NCCL_SOCKET_IFNAME": "=rail0",
        "NCCL_SOCKET_FAMILY": "AF_INET",
    }


def test_roce_on_rail_0_is_the_default_with_an_rdma_device() -> None:
    assert fabric_environment(BOTH) == fabric_environment(BOTH, Fabric(kind="roce"))


def test_what_seed_002_chooses() -> None:
    chosen = NcclSettings(max_channels=8, debug_level="INFO")
    plain = fabric_environment(BOTH, Fabric(kind="roce", rails=(0, 1)))
    environment = fabric_environment(BOTH, Fabric(kind="roce", rails=(0, 1), nccl=chosen))
    assert environment == {**plain, "NCCL_MAX_NCHANNELS": "8", "NCCL_DEBUG": "INFO"}


def test_every_choice_is_rendered() -> None:
    chosen = NcclSettings(
        algorithm="Ring",
        protocol="Simple",
        min_channels=4,
        max_channels=8,
        debug_level="INFO",
        debug_subsystems=("INIT", "NET"),
        cross_nic=1,
        merge_nics=True,
        ib_timeout=22,
        ib_retry_count=6,
        ib_traffic_class=106,
        ib_service_level=3,
        ib_queue_pairs=4,
    )
    plain = fabric_environment(BOTH, Fabric(kind="roce"))
    environment = fabric_environment(BOTH, Fabric(kind="roce", nccl=chosen))
    assert {name: value for name, value in environment.items() if plain.get(name) != value} == {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_NCHANNELS": "4",
        "NCCL_MAX_NCHANNELS": "8",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_CROSS_NIC": "1",
        "NCCL_IB_MERGE_NICS": "1",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IB_RETRY_CNT": "6",
        "NCCL_IB_TC": "106",
        "NCCL_IB_SL": "3",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
    }


@pytest.mark.parametrize(
    ("rails", "fabric", "expected"),
    [
        (
            (FIRST,),
            Fabric(kind="roce", rails=(0, 1)),
            Problem(
                "catalog/clusters/six.yaml",
                "nodes/spark-1/rails/1",
                None,
                "the deployment uses rail 1, and the node has 1",
                "add the rail to the node, or use fewer rails",
            ),
        ),
        (
            (FIRST, SECOND.model_copy(update={"hca": None})),
            Fabric(kind="roce", rails=(0, 1)),
            Problem(
                "catalog/clusters/six.yaml",
                "nodes/spark-1/rails/1",
                "enP2p1s0f0np0",
                "RoCE needs the RDMA device of every rail that it uses",
                "add `hca` to the rail (`rdma link` shows it), or choose the fabric kind ethernet",
            ),
        ),
        (
            (Rail(address="2001:db8::1", interface="enp1s0f0np0"),),
            Fabric(kind="ethernet"),
            Problem(
                "catalog/clusters/six.yaml",
                "nodes/spark-1/rails/0",
                "2001:db8::1",
                "sockets and GIDs of the fabric are IPv4 (NCCL_SOCKET_FAMILY and NCCL_IB_ADDR_FAMILY are AF_INET)",
                "give the rail's IPv4 address",
            ),
        ),
    ],
)
def test_a_node_that_lacks_what_the_fabric_needs(rails: tuple[Rail, ...], fabric: Fabric, expected: Problem) -> None:
    lacking = node(*rails)
    assert fabric_problems(lacking, fabric, "catalog/clusters/six.yaml", "nodes/spark-1") == [expected]
    with pytest.raises(ValueError, match=expected.rule.split(" (")[0]):
        fabric_environment(lacking, fabric)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        (
            "NCCL_IB_GID_INDEX",
            "3",
            "NCCL_IB_GID_INDEX belongs to a node and a boot, and is found on the node each time a rank starts: "
            "a pinned index names an empty slot after the next boot",
        ),
        (
            "B12X_ROCE_GID_INDEX",
            "3",
            "B12X_ROCE_GID_INDEX must follow NCCL_IB_GID_INDEX, which is found on the node each time a rank starts: "
            "a pinned index names an empty slot after the next boot",
        ),
        ("NCCL_IB_HCA", "rocep1s0f0", "NCCL_IB_HCA belongs to the fabric"),
        ("NCCL_TOPO_FILE", "/topo.xml", "NCCL_TOPO_FILE belongs to the fabric"),
        ("VLLM_HOST_IP", "127.0.0.1", "VLLM_HOST_IP belongs to the fabric"),
        ("HF_TOKEN", "", "HF_TOKEN is empty, which is not the same as unset"),
    ],
)
def test_variables_that_nobody_may_write(name: str, value: str, rule: str) -> None:
    found = environment_problems({name: value, "OMP_NUM_THREADS": "1"}, "catalog/images/glm.yaml", "environment")
    assert [(problem.key, problem.value, problem.rule) for problem in found] == [(f"environment/{name}", value, rule)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_that_nothing_reads_is_a_problem(kind: FabricKind) -> None:
    fabric = Fabric(kind=kind, nccl=NcclSettings(ib_timeout=20, cross_nic=1, max_channels=8))
    found = [problem.key for problem in settings_problems(fabric, "Pulumi.x.yaml", "config/fabric")]
    unread = {
        "roce": [],
        "ethernet": ["ib_timeout"],
        "nvlink": ["cross_nic", "ib_timeout"],
        "virtual": ["max_channels", "cross_nic", "ib_timeout"],
    }
    assert found == [f"config/fabric/nccl/{name}" for name in unread[kind]]


def test_which_settings_only_rdma_reads() -> None:
    assert sorted(RDMA_SETTINGS) == [
        "ib_queue_pairs",
        "ib_retry_count",
        "ib_service_level",
        "ib_timeout",
        "ib_traffic_class",
        "merge_nics",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_channels": 8, "max_channels": 4}, "min_channels 8 is more than max_channels 4"),
        ({"ib_timeout": 23}, "less than or equal to 22"),
        ({"algorithm": "ring"}, "'Ring', 'Tree' or 'NVLS'"),
        ({"gid_index": 3}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NcclSettings.model_validate(settings)


@pytest.mark.parametrize("rails", [(), (0, 0), (-1,)])
def test_rails_are_places_each_once(rails: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        Fabric(kind="roce", rails=rails)


addresses = st.ip_addresses(v=4, network="10.0.0.0/8").map(str)
settings = st.builds(
    NcclSettings,
    algorithm=st.sampled_from([None, "Ring", "Tree"]),
    protocol=st.sampled_from([None, "LL", "LL128", "Simple"]),
    max_channels=st.none() | st.integers(1, 64),
    ib_traffic_class=st.integers(0, 255),
)
fabrics = st.builds(
    Fabric, kind=st.sampled_from(KINDS), rails=st.sampled_from([(0,), (1,), (0, 1), (1, 0)]), nccl=settings
)


@given(addresses, addresses, fabrics)
def test_every_environment_is_pure_explained_and_without_a_gid(first: str, second: str, fabric: Fabric) -> None:
    rails = (FIRST.model_copy(update={"address": first}), SECOND.model_copy(update={"address": second}))
    environment = fabric_environment(node(*rails), fabric)
    assert environment == fabric_environment(node(*rails), fabric.model_copy())
    assert environment.keys() <= VARIABLES.keys()
    assert not environment.keys() & LEFT_UNSET.keys()
    assert all(environment.values())
    if fabric.kind == "roce":
        network = ipaddress.ip_network(environment["NCCL_IB_ADDR_RANGE"])
        assert all(ipaddress.ip_address(rails[place].address) in network for place in fabric.rails)


def test_every_variable_is_rendered_somewhere_and_belongs_to_the_fabric() -> None:
    every = NcclSettings(algorithm="Ring", protocol="LL", min_channels=1, max_channels=2, debug_subsystems=("ALL",))
    rendered = {name for kind in KINDS for name in fabric_environment(BOTH, Fabric(kind=kind, nccl=every))}
    assert rendered == set(VARIABLES)
    outside = {"VLLM_HOST_IP", "MN_IF_NAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    assert {name for name in VARIABLES if not name.startswith(FABRIC_PREFIXES)} == outside
