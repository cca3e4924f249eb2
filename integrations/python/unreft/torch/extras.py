"""Extras: the part of a rank's state that is not tensors of the model or the optimizer.

One record per snapshot, a few KB. It is made and read by the training process alone (record.py): to
the daemon it is opaque bytes.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unreft.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from unreft.torch import listing, plain, reshard, safe_pickle
from unreft.torch import record as record_bytes
from unreft.torch.device_extras import DeviceExtras, is_on_device

_log = logging.getLogger("unreft")

# What other nodes keep of a node is sent in one message, with room for twice the extras.
_BYTES_MAX_OF_A_NODE = 24 << 20
# Types of values that cannot change: a loop rebinds its own name, and Unreft would not see it.
_CONSTANT = (bool, int, float, complex, str, bytes, range, type(None))


class Extras:
    """The user's `extras`, by name: each an object with `state_dict` and `load_state_dict`, or with
    `get_state` and `set_state` (a torch.Generator), or a callable that returns a value, or a
    container that the loop changes, a dict, say.

    What a callable or a container was is in `restored` after a restore, by name. A `Reshard` of one
    of these says what becomes of it in another world.
    """

    def __init__(self, extras: Mapping[str, Any], classes: Iterable[type] = ()):
        """`classes`: what values may be made of, beside what `safe_pickle` stores anyway.

        Raises `InvalidArgument` for a constant.
        """
        self._given = dict(extras)
        self._extras = {
            name: extra.extra if isinstance(extra, reshard.Reshard) else extra
            for name, extra in extras.items()
        }
        for name, extra in self._extras.items():
            if _is_constant(extra):
                raise InvalidArgument(
                    f"extras: '{name}' is the {type(extra).__name__} {listing.short(extra)}: it "
                    "would be stored, and restored, as it is now for ever. Pass a callable that "
                    f"returns the value of the moment, such as {{'{name}': lambda: {name}}}"
                )
        self._classes = safe_pickle.Classes(classes)
        self.restored: dict[str, Any] = {}

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those whose state is among the extras."""
        return [e for e in self._extras.values() if isinstance(e, torch.optim.Optimizer)]

    def state(self) -> dict[str, Any]:
        return {name: _state_of(extra) for name, extra in self._extras.items()}

    def dumps(self, record: Mapping[str, Any], aside: DeviceExtras | None = None) -> bytes:
        """Of a snapshot's whole record, the user's part of which is its `extras`.

        Raises `InvalidArgument`, naming the part, for what cannot be stored.
        """
        try:
            return record_bytes.dumps(record, aside, self._classes)
        except InvalidArgument as error:
            raise self._named(record, error) from None

    def loads(self, data: bytes, staged: torch.Tensor | None = None) -> Any:
        return record_bytes.loads(data, staged, self._classes)

    def check_size(self, data: bytes, state: Mapping[str, Any]) -> None:
        """Raises `ResourceExhausted` if a snapshot's record is too large; `state` is the user's
        part of it."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        limit = _BYTES_MAX_OF_A_NODE // max(1, ranks)
        if len(data) <= limit:
            return
        sizes = {name: len(self._dumps(value)) for name, value in state.items()}
        largest = max(sizes, key=sizes.get, default=None)
        named = f"; the largest is '{largest}' with {sizes[largest]}" if sizes else ""
        raise ResourceExhausted(
            f"extras: {len(data)} bytes are too many, {limit} fit (of {_BYTES_MAX_OF_A_NODE} for "
            f"the {ranks} ranks of a node){named}. Pass a position or a seed rather than the data"
        )

    def _named(self, record: Mapping[str, Any], error: InvalidArgument) -> InvalidArgument:
        parts = [(f"'{name}'", value) for name, value in record["extras"].items()]
        modules = record["scalars"]["modules"].items()
        parts += [(f"the extra state of module '{name}'", value) for name, value in modules]
        for name, value in parts:
            try:
                self._dumps(value)
            except InvalidArgument as found:
                return InvalidArgument(f"extras: {name}: {found.message.removeprefix('extras: ')}")
        for name, value in _of_optimizers(record["scalars"]["optimizers"]):
            try:
                plain.dumps(value)
            except InvalidArgument as found:
                return InvalidArgument(f"{name}: {found.message.removeprefix('extras: ')}")
        return error

    def _dumps(self, part: Any) -> bytes:
        return safe_pickle.dumps(part, None, self._classes)

    def join(
        self, stored: Sequence[Mapping[str, Any]], rank: int, world: int
    ) -> tuple[dict[str, Any], list[str]]:
        """What `load` takes on this rank of another world, from the states of all ranks that
        stored theirs, and the names that a `Reshard` made."""
        return reshard.join(stored, self._given, rank, world)

    def load(self, state: Mapping[str, Any]) -> None:
        if missing := sorted(self._extras.keys() - state.keys()):
            raise FailedPrecondition(
                f"extras: {', '.join(missing)} not in what was stored, which has: "
                f"{', '.join(sorted(state)) or 'none'}"
            )
        if unused := sorted(state.keys() - self._extras.keys()):
            _log.warning("extras: stored but not attached, so not restored: %s", ", ".join(unused))
        for name, extra in self._extras.items():
            if hasattr(extra, "load_state_dict"):
                stored = state[name]
                if isinstance(extra, torch.amp.GradScaler):
                    stored = {k: _number(value) for k, value in stored.items()}
                extra.load_state_dict(stored)
            elif hasattr(extra, "set_state"):
                extra.set_state(state[name])
            else:
                self.restored[name] = state[name]


def _of_optimizers(stored: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """What each of the plain values of optimizers is, and the value."""
    for index, optimizer in enumerate(stored):
        for number, group in enumerate(optimizer["groups"]):
            for key, value in group.items():
                yield f"optimizer {index}: '{key}' of its group {number}", value
        for name, state in optimizer["states"].items():
            for key, value in state.items():
                yield f"optimizer {index}: its state '{key}' of '{name}'", value


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    numpy = sys.modules.get("numpy")
    return isinstance(value, _CONSTANT) or numpy is not None and isinstance(value, numpy.generic)


def _state_of(extra: Any) -> Any:
    is_known = getattr(type(extra), "state_dict", None) is torch.amp.GradScaler.state_dict
    if is_known and _is_scaling_on_device(extra):
        # Its own state_dict asks the device for the two numbers, and waits.
        return {
            "scale": extra._scale,
            "growth_factor": extra._growth_factor,
            "backoff_factor": extra._backoff_factor,
            "growth_interval": extra._growth_interval,
            "_growth_tracker": extra._growth_tracker,
        }
    if hasattr(extra, "state_dict"):
        return extra.state_dict()
    if hasattr(extra, "get_state"):
        return extra.get_state()
    return extra() if callable(extra) else extra


def _is_scaling_on_device(scaler: torch.amp.GradScaler) -> bool:
    parts = (getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None))
    return scaler.is_enabled() and all(
        isinstance(part, torch.Tensor) and is_on_device(part) for part in parts
    )


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value
