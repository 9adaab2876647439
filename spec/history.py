"""The Releases of a stack that were ready: newest first, bounded, packed to fit into the stack's state."""

import base64
import json
import lzma

from spec.base import Strict, canonical_json

MOST_PACKED_BYTES = 120_000
"""The command that writes the history gets the one before in its environment, where Linux takes 128 KiB a variable."""


class HistoryError(ValueError):
    """Raised when what was asked for is not in the history, or when the history cannot be read."""


class ReadyRelease(Strict):
    """One Release that was ready.

    Attributes:
        hash: of the Release, as its stack showed it.
        ready_at: when all of its groups had answered right, UTC, `2026-11-30T16:50:00Z`.
        release: canonical JSON, kept as it was written: it is read again only when it is deployed or compared.
    """

    hash: str
    ready_at: str
    release: str


History = tuple[ReadyRelease, ...]
"""Newest first; no Release is in it twice."""


def with_ready(history: History, ready: ReadyRelease, kept: int) -> History:
    """Returns the history once another Release was ready, or one of it once more; the oldest fall out."""
    found = (ready, *(one for one in history if one.hash != ready.hash))[:kept]
    while len(found) > 1 and len(pack(found)) > MOST_PACKED_BYTES:
        found = found[:-1]
    return found


def pack(history: History) -> str:
    """Writes a history as text; Releases differ little, so compressed together each costs a few hundred bytes."""
    entries = [one.model_dump(mode="json") for one in history]
    return base64.b64encode(lzma.compress(canonical_json(entries).encode())).decode()


def unpack(text: str) -> History:
    """Reads what `pack` wrote.

    Raises:
        HistoryError: it is something else.
    """
    try:
        entries = json.loads(lzma.decompress(base64.b64decode(text, validate=True)))
        return tuple(ReadyRelease.model_validate(entry) for entry in entries)
    except (ValueError, TypeError, lzma.LZMAError) as error:
        raise HistoryError(f"what the state holds as the history of Releases cannot be read: {error}") from None


def named(history: History, beginning: str) -> ReadyRelease:
    """Returns the Release whose hash begins so.

    Raises:
        HistoryError: none does, or several do.
    """
    found = [one for one in history if one.hash.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    kept = ", ".join(one.hash[:16] for one in history) or "none"
    what = "several Releases begin" if found else "no Release that was ready begins"
    raise HistoryError(f"{what} with {beginning!r}; kept are {kept}")


def way_back(history: History, begun: str | None) -> ReadyRelease:
    """Returns the Release that takes the last `up` back.

    Args:
        history: of the stack.
        begun: hash of the Release that the last `up` began to deploy. If it became ready, the one before it is the way
            back; if it did not, the last one that was ready is.

    Raises:
        HistoryError: there is none.
    """
    for one in history:
        if one.hash != begun:
            return one
    raise HistoryError(
        "the only Release that was ever ready is the one that runs: there is nothing to go back to"
        if history
        else "no Release of this stack was ever ready: there is nothing to go back to"
    )
