"""The history of Releases: bounded, newest first, small, and the same Release when it is read again."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.release_history import KEPT, history_in, keep_release, read_release
from ops.stacks import planned, stacks
from spec.base import canonical_json
from spec.errors import SpecificationError
from spec.history import (
    MOST_PACKED_BYTES,
    History,
    HistoryError,
    ReadyRelease,
    named,
    pack,
    unpack,
    way_back,
    with_ready,
)


def entry(name: str, text: str = "{}") -> ReadyRelease:
    return ReadyRelease(hash=name, ready_at="2026-11-30T17:00:00Z", release=text)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=1), st.integers(1, 5))
def test_the_history_is_bounded_newest_first_and_holds_each_release_once(deployed: list[str], kept: int) -> None:
    history: History = ()
    for name in deployed:
        history = with_ready(history, entry(name), kept)
    distinct = list(dict.fromkeys(reversed(deployed)))
    assert [one.hash for one in history] == distinct[:kept]


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), unique=True))
def test_packing_loses_nothing(texts: list[str]) -> None:
    history = tuple(entry(str(number), text) for number, text in enumerate(texts))
    assert unpack(pack(history)) == history


def test_a_history_that_is_too_large_for_a_variable_loses_its_oldest() -> None:
    source = random.Random(1)
    history: History = ()
    for number in range(6):
        history = with_ready(history, entry(str(number), source.randbytes(20_000).hex()), 10)
    assert len(pack(history)) <= MOST_PACKED_BYTES
    assert 1 < len(history) < 6
    assert next(iter(history)).hash == "5"


@pytest.mark.parametrize("text", ["", "no base64!", "aGVsbG8="])
def test_something_else_than_a_history_is_an_error(text: str) -> None:
    with pytest.raises(HistoryError, match="cannot be read"):
        unpack(text)


def test_the_way_back_from_a_failed_up_is_the_last_that_was_ready() -> None:
    history = (entry("b"), entry("a"))
    assert way_back(history, "c").hash == "b"


def test_the_way_back_from_a_ready_one_is_the_one_before() -> None:
    history = (entry("b"), entry("a"))
    assert way_back(history, "b").hash == "a"


@pytest.mark.parametrize(("history", "words"), [((), "was ever ready"), ((entry("a"),), "is the one that runs")])
def test_no_way_back_says_why(history: History, words: str) -> None:
    with pytest.raises(HistoryError, match=words):
        way_back(history, "a")


def test_a_release_is_named_by_the_beginning_of_its_hash() -> None:
    history = (entry("abc1"), entry("abd2"))
    assert named(history, "abd").hash == "abd2"
    with pytest.raises(HistoryError, match="several"):
        named(history, "ab")
    with pytest.raises(HistoryError, match="kept are abc1, abd2"):
        named(history, "x")


@pytest.mark.parametrize("stack", stacks())
def test_a_kept_release_is_the_same_when_it_is_read_again(stack: str) -> None:
    release = planned(stack)
    text = canonical_json(release.model_dump(mode="json"))
    again = read_release(entry(release.hash, text), stack)
    assert again == release
    assert again.hash == release.hash


def test_a_release_of_another_program_is_refused_by_its_keys() -> None:
    data = {**planned("lab").model_dump(mode="json"), "colour": "red"}
    with pytest.raises(SpecificationError, match="Release abc of stack lab, ready at 2026-11-30T17:00:00Z: colour"):
        read_release(entry("abc", json.dumps(data)), "lab")


def test_the_command_puts_a_release_before_what_it_answered_last(monkeypatch: pytest.MonkeyPatch) -> None:
    first = keep_release({"hash": "a", "release": "{}", "kept": 2})
    monkeypatch.setenv("PULUMI_COMMAND_STDOUT", json.dumps(first))
    second = keep_release({"hash": "b", "release": "{}", "kept": 2})
    state = [
        {"urn": f"urn:pulumi:x::y::z::{KEPT}", "outputs": {"stdout": {"plaintext": json.dumps(json.dumps(second))}}},
        {"urn": "urn:pulumi:x::y::z::release-begun", "outputs": {"stdout": "c"}},
        {"urn": "urn:pulumi:x::y::Provider::default"},
    ]
    found = history_in("x", state)
    assert [one.hash for one in found.ready] == ["b", "a"]
    assert found.begun == "c"
    assert not found.ended_ready


def test_a_parked_release_is_begun_and_never_one_to_go_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULUMI_COMMAND_STDOUT", raising=False)
    assert unpack(keep_release({"hash": "p", "release": None, "kept": 2})["history"]) == ()
    ready = keep_release({"hash": "a", "release": "{}", "kept": 2})
    monkeypatch.setenv("PULUMI_COMMAND_STDOUT", json.dumps(ready))
    parked = keep_release({"hash": "p", "release": None, "kept": 2})

    def state(begun: str) -> list[dict[str, object]]:
        return [
            {"urn": f"urn:pulumi:x::y::z::{KEPT}", "outputs": {"stdout": json.dumps(parked)}},
            {"urn": "urn:pulumi:x::y::z::release-begun", "outputs": {"stdout": begun}},
        ]

    found = history_in("x", state("p"))
    assert [one.hash for one in found.ready] == ["a"]
    assert found.parked
    assert found.ended_ready
    assert way_back(found.ready, found.begun).hash == "a"
    later = history_in("x", state("b"))
    assert (later.parked, later.ended_ready) == (False, False)
