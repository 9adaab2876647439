"""What all specification models share: strictness, canonical JSON and the one hash."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen model that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def canonical_json(value: Any) -> str:
    """Writes plain data as the one JSON text that is hashed and kept.

    Keys are sorted, there is no white space, text stays UTF-8 and NaN is refused, so the same data gives the same
    bytes on any machine.

    Raises:
        ValueError: a number is not finite.
        TypeError: the data is not plain JSON data.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(value: Any) -> str:
    """Returns the SHA-256 of plain data in canonical form, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
