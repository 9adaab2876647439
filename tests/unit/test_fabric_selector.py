"""NCCL's grammar for choosing devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.fabric.selector import Entry, Selector, SelectorError, parse_selector


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("mlx5", Selector((Entry("mlx5"),))),
        ("=mlx5_0:1,mlx5_1:1", Selector((Entry("mlx5_0", 1), Entry("mlx5_1", 1)), exact=True)),
        ("^mlx5_3,mlx5_4", Selector((Entry("mlx5_3"), Entry("mlx5_4")), inverted=True)),
        ("^=mlx5_3:2", Selector((Entry("mlx5_3", 2),), exact=True, inverted=True)),
        ("=devA,devB", Selector((Entry("devA"), Entry("devB")), exact=True)),
        ("rocep1s0f0,roceP2p1s0f0", Selector((Entry("rocep1s0f0"), Entry("roceP2p1s0f0")))),
    ],
)
def test_selectors(text: str, selector: Selector) -> None:
    assert parse_selector(text) == selector
    assert str(selector) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names nothing"),
        ("^", "names nothing"),
        ("=", "names nothing"),
        ("a,,b", "empty entry"),
        ("a,", "empty entry"),
        (":1", "empty entry"),
        ("a, b", "white space"),
        ("a\r", "white space"),
        ("=a,=b", "stands inside the list"),
        ("=^a", "stands inside the list"),
        ("a:", "no port"),
        ("a:0", "no port"),
        ("a:255", "no port"),
        ("a:-1", "no port"),
        ("a:1-2", "no port"),
        ("a:1:2", "no port"),
        ("a:²", "no port"),
        ("x" * 64, "cuts"),
        (",".join(f"d{number}" for number in range(33)), "drops all after the 32th"),
    ],
)
def test_what_nccl_would_read_otherwise(text: str, why: str) -> None:
    with pytest.raises(SelectorError, match=why):
        parse_selector(text)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("a", {("a0", 1), ("a0", 2), ("a1", 1), ("a10", 1)}),
        ("a1", {("a1", 1), ("a10", 1)}),
        ("=a1", {("a1", 1)}),
        ("a0:2", {("a0", 2)}),
        ("a:1", {("a0", 1), ("a1", 1), ("a10", 1)}),
        ("^a0:2", {("a0", 1), ("a1", 1), ("a10", 1), ("b0", 1)}),
        ("^=a1,a10", {("a0", 1), ("a0", 2), ("b0", 1)}),
        ("=a0:1,b0", {("a0", 1), ("b0", 1)}),
        ("=nothing", set()),
    ],
)
def test_what_is_taken(text: str, taken: set[tuple[str, int]]) -> None:
    ports = [("a0", 1), ("a0", 2), ("a1", 1), ("a10", 1), ("b0", 1)]
    assert parse_selector(text).selected(ports) == taken


NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,63}", fullmatch=True)
ENTRIES = st.lists(st.builds(Entry, NAMES, st.none() | st.integers(1, 254)), min_size=1, max_size=32)
SELECTORS = st.builds(Selector, ENTRIES.map(tuple), st.booleans(), st.booleans())


@given(SELECTORS)
def test_what_is_written_is_read_again(selector: Selector) -> None:
    assert parse_selector(str(selector)) == selector


@given(SELECTORS, NAMES, st.integers(1, 254))
def test_an_inverted_list_takes_the_rest(selector: Selector, name: str, port: int) -> None:
    other = Selector(selector.entries, selector.exact, not selector.inverted)
    assert selector.selects(name, port) != other.selects(name, port)


@given(SELECTORS)
def test_a_list_takes_the_devices_that_it_names(selector: Selector) -> None:
    for entry in selector.entries:
        assert selector.selects(entry.name, entry.port) != selector.inverted
