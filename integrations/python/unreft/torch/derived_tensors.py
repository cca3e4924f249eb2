"""DerivedTensors: the derived tensors of a rank while it trains; the digests that are captured."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from unreft.errors import FailedPrecondition, InvalidArgument
from unreft.torch import digest, safe_pickle
from unreft.torch.captured_state import CapturedState
from unreft.torch.derived import Derived, Item, find, listed, short
from unreft.torch.shards import Bound, bind

_log = logging.getLogger("unreft")

_NAMED_MAX = 5  # tensors that one warning names


class DerivedTensors:
    """What is captured of the tensors that `rules` declare: digests, computed at each snapshot.

    A tensor that is not what its function makes of its sources is captured like any other, and
    said to be: when it is registered, or from the snapshot on at which that is seen. It is then
    this rank's own in the store, since the other replicas may go on without its bytes.
    """

    def __init__(self, rules: Sequence[Derived], state: CapturedState):
        """Raises `InvalidArgument` for a declaration that cannot be meant of that state."""
        self.rules = list(rules)
        self._own = state.own
        self._digester = digest.Digester()
        self._tables: list[_Table] = []
        self._broken: dict[str, str] = {}  # for good: tensor to why it is captured
        self._missing: dict[str, str] = {}  # likewise, as long as its sources are not there
        self._warned: set[str] = set()
        self._told = 0  # how many are derived
        self.record = b""  # of the extras: what is stored how, see `derived_restore.py`
        if self.rules:
            self._check(state.live(), state.without_state())

    def plan(self, bounds: Sequence[Bound]) -> list[Bound]:
        """What to capture, with the tables of digests; compares every derived tensor, and waits."""
        items, self._missing, _ = find(self.rules, bounds)
        for item in items:
            if item.name not in self._broken and (reason := _mismatch(item)):
                self._broken[item.name] = reason
        derived = [item for item in items if item.name not in self._broken]
        own = {i.name: self._bind_own(i) for i in items if i.name in self._broken}
        self._tables = list(self._make_tables(derived))
        self.record = safe_pickle.dumps(self._record(items, own)) if items else b""
        self._say()
        names = {item.name for item in derived}
        captured = [own.get(b.spec.name, b) for b in bounds if b.spec.name not in names]
        return captured + self.tables()

    def tables(self) -> list[Bound]:
        return [table.bound for table in self._tables]

    def compute(self) -> bool:
        """To be called before each snapshot: enqueues the digests; False when `plan` has to.

        On the CPU a tensor that is not as declared is known at once, on a device later: what has
        been captured meanwhile of such a tensor is refused at a restore.
        """
        for table in self._tables:
            table.compute(self._digester, self._broken)
        return self.holds()

    def holds(self) -> bool:
        """Whether all that is derived has been, as far as is known; waits for nothing."""
        for table in self._tables:
            table.look(self._broken)
        return not any(item.name in self._broken for t in self._tables for item, _ in t.items)

    def count(self) -> int:
        return sum(len(table.items) for table in self._tables)

    def captured(self) -> dict[str, str]:
        """Tensors that are captured although they are declared, and why."""
        return {**self._missing, **self._broken}

    # --- how ---

    @torch.no_grad()
    def _check(self, bounds: Sequence[Bound], coming: set[str]) -> None:
        known = {short(bound) for bound in bounds}
        for rule in self.rules:
            _check_names(rule, known, coming)
        items, _, ring = find(self.rules, bounds)
        if ring:
            raise InvalidArgument(f"derived tensors are each other's sources: {listed(ring)}")
        for item in items:
            try:
                item.pieces(guarded=True)
            except Exception as error:
                raise InvalidArgument(f"{item.rule}: tensor '{item.name}': {error}") from error

    def _bind_own(self, item: Item) -> Bound:
        volatile = item.target.spec.volatile
        return bind(f"derived/{item.name}", item.target.local, self._own, volatile)

    def _make_tables(self, items: list[Item]) -> Iterator["_Table"]:
        devices = dict.fromkeys(item.target.local.device for item in items)
        for device in devices:
            placed, count = [], 0
            for item in items:
                if item.target.local.device == device:
                    placed.append((item, count))
                    count += digest.piece_count(item.target.local)
            digests = torch.zeros(count, dtype=torch.int64, device=device)
            yield _Table(
                bind(f"derived/digests/{device.type}", digests, self._own, volatile=True), placed
            )

    def _record(self, items: list[Item], own: dict[str, Bound]) -> dict[str, Any]:
        record = {item.name: _kind_of(item.target) for item in items}
        for name, bound in own.items():
            record[name]["stored_as"] = bound.spec.name
        for table in self._tables:
            for item, first in table.items:
                record[item.name] |= {
                    "table": table.bound.spec.name,
                    "first": first,
                    "function": item.rule.function,
                    "of": [short(source) for source in item.sources],
                }
        return record

    def _say(self) -> None:
        if self.count() != self._told:
            self._told = self.count()
            _log.info("%d tensors are derived: digests of them are captured", self._told)
        new = [(name, why) for name, why in self.captured().items() if name not in self._warned]
        if not new:
            return
        self._warned.update(name for name, _ in new)
        named = "; ".join(f"'{name}': {why}" for name, why in new[:_NAMED_MAX])
        more = f"; and {len(new) - _NAMED_MAX} more" if len(new) > _NAMED_MAX else ""
        _log.warning("declared derived, but captured: %s%s", named, more)


class _Table:
    """Digests of what is derived on one device, and whether that was so at all snapshots."""

    def __init__(self, bound: Bound, items: list[tuple[Item, int]]):
        self.bound = bound
        self.items = items  # and the place of each one's first digest
        self._differs = torch.zeros_like(bound.local, dtype=torch.bool)
        self._answer: Callable[[], torch.Tensor | None] | None = None

    @torch.no_grad()
    def compute(self, digester: digest.Digester, broken: dict[str, str]) -> None:
        if capturing(self.bound.local.device):
            raise FailedPrecondition("no snapshot of derived tensors while a graph is captured")
        made, present = [], []
        for item, _ in self.items:
            try:
                for ours, theirs in item.pieces():
                    made.append(digester.of(ours))
                    present.append(digester.of(theirs))
            except Exception as error:
                broken[item.name] = f"its function failed at a snapshot: {error}"
                return
        torch.stack(present, out=self.bound.local)
        self._differs |= torch.stack(made) != self.bound.local
        if self._answer is None:
            self._answer = later(self._differs)

    def look(self, broken: dict[str, str]) -> None:
        if self._answer is None or capturing(self.bound.local.device):
            return
        differs = self._answer()
        if differs is None:
            return
        self._answer = None
        if differs.any():
            ends = [first for _, first in self.items[1:]] + [len(differs)]
            for (item, first), end in zip(self.items, ends, strict=True):
                if differs[first:end].any():
                    broken[item.name] = f"at a snapshot it was no longer {_made(item)}"


def capturing(device: torch.device) -> bool:
    """Whether the current stream is captured to a graph: then a device must not be asked."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def later(tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    """Answers with the value that the tensor has now in its stream, once that is in host memory."""
    if tensor.device.type != "cuda":
        value = tensor.clone()
        return lambda: value
    value = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    value.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(tensor.device))
    return lambda: value if done.query() else None


@torch.no_grad()
def _mismatch(item: Item) -> str:
    """Why the tensor has to be captured; empty if it is what its function makes."""
    try:
        begin = 0
        for made, present in item.pieces(guarded=True):
            a, b = digest.words_of(made), digest.words_of(present)
            if not torch.equal(a, b):
                # Bytes, not values: a NaN is equal to itself.
                place = int((a != b).nonzero()[0]) * a.itemsize // present.dtype.itemsize
                return (
                    f"it is not {_made(item)}: element {begin + place} is "
                    f"{present[place].item()}, the function makes {made[place].item()}"
                )
            begin += len(present)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _made(item: Item) -> str:
    return f"what {item.rule.function} makes of {item.source_names}"


def _kind_of(bound: Bound) -> dict[str, Any]:
    spec = bound.spec
    return {
        "dtype": int(spec.dtype),
        "global_shape": spec.global_shape,
        "offset": spec.offset,
        "extent": spec.extent,
    }


def _check_names(rule: Derived, known: set[str], coming: set[str]) -> None:
    """`coming`: parameters, as `optim/<parameter>`, whose optimizer state is not there yet."""

    def may_be(name: str) -> bool:
        return name in known or name.rpartition("/")[0] in coming

    about = [(name, sources) for name in sorted(known) if (sources := rule.sources_of(name))]
    if not about:
        head = rule.target.partition("{}")[0]
        if any(f"{own}/".startswith(head) or head.startswith(f"{own}/") for own in coming):
            return
        raise InvalidArgument(
            f"{rule}: no captured tensor has that name (of tied ones the first name counts)"
        )
    if not any(all(map(may_be, sources)) for _, sources in about):
        name, sources = about[0]
        missing = next(source for source in sources if not may_be(source))
        raise InvalidArgument(f"{rule}: its source '{missing}' is not captured state")
