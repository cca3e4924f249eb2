"""What a checkpoint has beside the bytes of its tensors, as the extras of the ranks keep it.

Rank 0 has the catalogue: of each entry of the flat state dict where it stands in the nested one,
and, if its value is no tensor, which rank has the value. Each rank has the values of its own.

    magic (8 bytes)   length of the header (8 bytes, little-endian)   header (JSON)   values

Values are what the planner serialised; nothing here unpickles them.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

import unreft

MAGIC = b"UNRFTDCP"
FORMAT = 1

Path = tuple[str | int, ...]


@dataclasses.dataclass
class Entry:
    """Of the flat state dict. A tensor with elements is described by the store."""

    path: Path | None = None  # in the nested state dict, if the planner has said
    value_of: int | None = None  # the rank that has the value, which is no tensor
    empty: tuple[str, tuple[int, ...]] | None = None  # dtype and shape of a tensor of no elements


@dataclasses.dataclass
class RankExtras:
    """What one rank stores."""

    values: dict[str, bytes]
    catalogue: dict[str, Entry] | None = None  # of rank 0

    def encode(self) -> bytes:
        header: dict[str, Any] = {
            "format": FORMAT,
            "values": [[name, len(value)] for name, value in self.values.items()],
        }
        if self.catalogue is not None:
            header["catalogue"] = {
                name: {key: value for key, value in vars(entry).items() if value is not None}
                for name, entry in self.catalogue.items()
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        return b"".join([MAGIC, len(text).to_bytes(8, "little"), text, *self.values.values()])

    @classmethod
    def decode(cls, data: bytes, rank: int) -> "RankExtras":
        """`DataLoss` for what this module has not written."""
        try:
            return cls._decode(data)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise unreft.DataLoss(
                f"what rank {rank} has stored beside its tensors cannot be read: {error}"
            ) from None

    @classmethod
    def _decode(cls, data: bytes) -> "RankExtras":
        begin = len(MAGIC) + 8
        if not is_ours(data) or len(data) < begin:
            raise ValueError(f"needed '{MAGIC.decode()}' first, found {data[:8]!r}")
        end = begin + int.from_bytes(data[len(MAGIC) : begin], "little")
        header = json.loads(data[begin:end])
        if header["format"] != FORMAT:
            raise ValueError(f"needed format {FORMAT}, found {header['format']}")
        values = {}
        for name, length in header["values"]:
            values[name] = data[end : end + length]
            end += length
        if end != len(data):
            raise ValueError(f"needed {end} bytes, found {len(data)}")
        catalogue = header.get("catalogue")
        if catalogue is not None:
            catalogue = {name: _entry(fields) for name, fields in catalogue.items()}
        return cls(values, catalogue)


def _entry(fields: Mapping[str, Any]) -> Entry:
    path, empty = fields.get("path"), fields.get("empty")
    return Entry(
        path=None if path is None else tuple(path),
        value_of=fields.get("value_of"),
        empty=None if empty is None else (empty[0], tuple(empty[1])),
    )


def is_ours(extras: bytes | None) -> bool:
    """Whether this package has stored the version whose rank has these extras."""
    return extras is not None and extras.startswith(MAGIC)


def merged(of_ranks: Iterable[Mapping[str, Entry]]) -> dict[str, Entry]:
    """Of all ranks; what several say of an entry, the first says."""
    catalogue: dict[str, Entry] = {}
    for entries in of_ranks:
        for name, entry in entries.items():
            known = catalogue.setdefault(name, Entry())
            for field, value in vars(entry).items():
                if getattr(known, field) is None:
                    setattr(known, field, value)
    return catalogue
