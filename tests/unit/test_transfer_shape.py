"""Who sends to whom: properties that hold for any number of receivers and any topology."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spec import transfer_shape as shape

SWITCHES = st.lists(st.sampled_from("abc"), min_size=1, max_size=16).map(
    lambda names: {f"node-{number}": name for number, name in enumerate(names)}
)


@given(SWITCHES, st.sampled_from("abcd"))
def test_a_chain_crosses_switches_as_seldom_as_possible(switches: dict[str, str], source: str) -> None:
    order = shape.ordered(source, switches)
    assert sorted(order) == sorted(switches)
    path = [source, *(switches[node] for node in order)]
    crossings = sum(one != other for one, other in pairwise(path))
    assert crossings == len({source, *switches.values()}) - 1


@given(SWITCHES, st.integers(1, 20))
def test_every_receiver_gets_its_bytes_from_the_source_in_the_end(switches: dict[str, str], degree: int) -> None:
    order = list(switches)
    parents = shape.parents(order, degree)
    assert list(parents) == order
    senders = [*parents.values()]
    assert all(senders.count(node) <= degree for node in {None, *order})
    for node, parent in parents.items():
        assert parent is None or order.index(parent) < order.index(node)


def test_known_shapes() -> None:
    assert shape.parents("abc", 1) == {"a": None, "b": "a", "c": "b"}
    assert shape.parents("abc", 3) == {"a": None, "b": None, "c": None}
    assert shape.parents("abcdef", 2) == {"a": None, "b": None, "c": "a", "d": "a", "e": "b", "f": "b"}
    assert [shape.degrees_to_measure(count) for count in (1, 2, 3, 7)] == [[1], [2, 1], [3, 1], [7, 1, 2]]


def test_the_measured_rate_decides_and_a_shallow_tree_wins_a_draw() -> None:
    assert shape.best_degree({3: 42e6, 1: 118e6}) == 1
    assert shape.best_degree({3: 1000e6, 1: 600e6}) == 3
    assert shape.best_degree({7: 400e6, 1: 500e6, 2: 490e6}) == 2


@given(st.lists(st.integers(1, 128), min_size=1, max_size=8), st.integers(1, 1000))
def test_streams_are_bounded_by_cores_and_files(cores: list[int], files: int) -> None:
    assert 1 <= shape.streams(cores, files) <= min(shape.MOST_STREAMS, min(cores), files)
