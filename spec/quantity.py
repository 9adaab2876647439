"""Quantities as people write them: bytes with their unit."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _bytes_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|TiB)", value)
    if found is None:
        raise ValueError("write a whole number of bytes, or a number with KiB, MiB, GiB or TiB (powers of 1024)")
    size = float(found[1]) * _UNITS[found[2]]
    if size != int(size):
        raise ValueError(f"{value} is {size} bytes, which is not a whole number: write the bytes themselves")
    return int(size)


Bytes = Annotated[int, BeforeValidator(_bytes_of), Field(gt=0)]
"""A size in bytes; a text such as `16 GiB` is understood."""
