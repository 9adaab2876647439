"""Arithmetic as messages show it."""

from collections.abc import Iterable


def division(size: int, divisor: int) -> str:
    """Writes a division with its remainder: `16 = 2 x 6 + 4`."""
    quotient, rest = divmod(size, divisor)
    return f"{size:,} = {quotient:,} x {divisor:,}" + (f" + {rest:,}" if rest else "")


def mib(size_bytes: int) -> str:
    """Writes bytes in whole MiB, or as they are where they are less than one."""
    if abs(size_bytes) < 1 << 20:
        return f"{size_bytes:,} B"
    return f"{round(size_bytes / (1 << 20)):,} MiB"


def subtraction(start_bytes: int, parts: Iterable[tuple[str, int]], left_bytes: int) -> str:
    """Writes what is left of a size: `100 MiB - 30 MiB (weights) = 70 MiB`."""
    taken = "".join(f" - {mib(size)} ({name})" for name, size in parts if size)
    return f"{mib(start_bytes)}{taken} = {mib(left_bytes)}"


def listed(items: Iterable[object]) -> str:
    """Writes a list for people."""
    return ", ".join(map(str, items))
