"""LogHistory: what the Trainer has logged, as every snapshot has it.

It grows for as long as training goes on, and a snapshot has all of it. So entries are encoded in
blocks, each once, and compressed: a snapshot encodes only those that no block has yet.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from unreft.errors import DataLoss
from unreft.torch import safe_pickle

_ENTRIES = 256  # of a block
_BYTES_MAX = 64 << 20  # of a block, decompressed


class LogHistory:
    """Of one `TrainerState.log_history`, to which entries are added that nobody changes later."""

    def __init__(self):
        self._blocks: list[bytes] = []
        self._last: dict[str, Any] | None = None  # the entry that was encoded last

    def record(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What a snapshot stores; raises `InvalidArgument` for what cannot be stored."""
        known = self._encoded()
        if known and (len(entries) < known or entries[known - 1] is not self._last):
            self._blocks = []  # other entries, as where a program has kept the last ones alone
        while len(entries) - self._encoded() >= _ENTRIES:
            block = list(entries[self._encoded() : self._encoded() + _ENTRIES])
            self._blocks.append(zlib.compress(safe_pickle.dumps(block), 1))
            self._last = block[-1]
        return {"blocks": list(self._blocks), "rest": list(entries[self._encoded() :])}

    def _encoded(self) -> int:
        return len(self._blocks) * _ENTRIES


def entries_of(stored: dict[str, Any]) -> list[dict[str, Any]]:
    """What `record` was given; raises `DataLoss` for what it has not made."""
    found: list[dict[str, Any]] = []
    for block in stored["blocks"]:
        found += safe_pickle.loads(_decompressed(block))
    return found + list(stored["rest"])


def _decompressed(block: bytes) -> bytes:
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(block, _BYTES_MAX)
    except zlib.error as error:
        raise DataLoss(f"extras: what the Trainer has logged: {error}") from error
    if not reader.eof:
        raise DataLoss("extras: what the Trainer has logged does not end where it is to")
    return data
