"""StoredDerived: what a stored version has of derived tensors, and how they come back.

The extras have a record of each tensor that was declared derived, by its name in the store:

    dtype, global_shape, offset, extent   of this rank's part
    table, first                          its digests: in the tensor `table`, from `first` on
    function, of                          what it was made by and of; short names
    stored_as                             instead of these four: its bytes are there, by that name
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from unreft.errors import FailedPrecondition
from unreft.tensor import Dtype, Tensor
from unreft.torch import digest, safe_pickle
from unreft.torch.derived import CAST, Derived, Item, find, listed, short_name
from unreft.torch.shards import Bound, Holders, bind

_log = logging.getLogger("unreft")


class StoredDerived:
    """Of the version that is restored. Every digest is compared before its bytes are written."""

    def __init__(self, record: bytes, step: int, own: Holders):
        self._records: dict[str, dict[str, Any]] = safe_pickle.loads(record) if record else {}
        self._step = step
        self._own = own
        self._tables: dict[str, torch.Tensor] = {}
        self._digester = digest.Digester()

    def logical(self, stored: Sequence[Tensor]) -> list[Tensor]:
        """What is stored as the model and the optimizers know it, what is derived among it."""
        hidden = f"{self._own.prefix}derived/"
        tensors = {t.name: t for t in stored if not t.name.startswith(hidden)}
        for name, record in self._records.items():
            box = {key: record[key] for key in ("global_shape", "offset", "extent")}
            tensors[name] = Tensor(name, Dtype(record["dtype"]), **box)
        counts = {t.name: t.global_shape for t in stored if t.name.startswith(hidden)}
        for name in {record["table"] for record in self._records.values() if "table" in record}:
            self._tables[name] = torch.empty(counts[name], dtype=torch.int64, device="cpu")
        return list(tensors.values())

    def to_read(self, bounds: Sequence[Bound]) -> list[Bound]:
        """What is to be read, for the live tensors that `logical` was bound to."""
        reads = []
        for bound in bounds:
            record = self._records.get(bound.spec.name)
            if record is None:
                reads.append(bound)
                continue
            self._check_box(bound, record)
            if "stored_as" in record:
                reads.append(self._bind_own(record["stored_as"], bound.local))
        return reads + [self._bind_own(name, table) for name, table in self._tables.items()]

    @torch.no_grad()
    def derive(self, bounds: Sequence[Bound], rules: Sequence[Derived]) -> None:
        """Makes what is derived, after everything else was read and before generators are set."""
        names = {name for name, record in self._records.items() if "table" in record}
        if not names:
            return
        # What was a cast can be made without being told so again.
        casts = [
            Derived(short_name(name), of=self._records[name]["of"])
            for name in sorted(names)
            if self._records[name]["function"] == CAST
        ]
        items, _, _ = find([*rules, *casts], bounds, names.__contains__)
        for name in sorted(names - {item.name for item in items}):
            record = self._records[name]
            raise FailedPrecondition(
                f"step {self._step}: tensor '{name}' was not captured, since it was declared "
                f"derived from {listed(record['of'])} by {record['function']}: needed the same "
                f"declaration, found none that is about it and has its sources"
            )
        tables = {name: table.tolist() for name, table in self._tables.items()}
        for item in items:
            record = self._records[item.name]
            count = digest.piece_count(item.target.local)
            self._make(item, tables[record["table"]][record["first"] :][:count])

    def _make(self, item: Item, expected: list[int]) -> None:
        subject = f"step {self._step}: tensor '{item.name}', made by {item.rule.function} of "
        subject += f"{item.source_names}"
        try:
            pieces = item.pieces(guarded=True)
        except Exception as error:
            raise FailedPrecondition(f"{subject}: {error}") from error
        begin = 0
        for number, (made, live) in zip(expected, pieces):
            found = self._digester.of(made).item()
            if found != number:
                what = (
                    f"{subject}: elements {begin} to {begin + len(live) - 1} have digest "
                    f"{_hex(found)}, needed {_hex(number)}, that of the tensor when it was captured"
                )
                if not item.rule.accept_mismatch:
                    raise FailedPrecondition(
                        f"{what}. Its bytes were not captured: restore with the function that it "
                        f"had then, or declare accept_mismatch=True to go on with these"
                    )
                _log.warning("%s; accepted, as declared", what)
            live.copy_(made)
            begin += len(live)

    def _check_box(self, bound: Bound, record: dict[str, Any]) -> None:
        needed, found = (record["offset"], record["extent"]), (bound.spec.offset, bound.spec.extent)
        if needed != found:
            raise FailedPrecondition(
                f"step {self._step}: tensor '{bound.spec.name}' is known of offset {needed[0]}, "
                f"extent {needed[1]}, found {found[0]}, {found[1]}"
            )

    def _bind_own(self, name: str, local: torch.Tensor) -> Bound:
        return bind(name.removeprefix(self._own.prefix), local, self._own)


def _hex(digest_: int) -> str:
    return f"{digest_ & ((1 << 64) - 1):016x}"
