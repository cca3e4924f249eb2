"""How messages name many: the first few, and how many more there are."""

from collections.abc import Sequence

NAMES_MAX = 5
_RANKS_MAX = 8


def names(found: Sequence[str], most: int = NAMES_MAX) -> str:
    return ", ".join(f"'{name}'" for name in found[:most]) + _more(len(found) - most)


def ranks(found: Sequence[int]) -> str:
    listed = ", ".join(map(str, found[:_RANKS_MAX]))
    return f"rank {listed}{_more(len(found) - _RANKS_MAX)}"


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
