"""Streams of random numbers in another world: which of the stored ones each rank goes on with.

`stream_classes` has the rules. They are applied apart to each generator: Python's, torch's,
NumPy's, and that of the CUDA device that a rank draws from.
"""

import dataclasses
import hashlib
import random
from collections.abc import Sequence
from typing import Any

import torch

from unreft.errors import DataLoss, FailedPrecondition
from unreft.torch import listing
from unreft.torch.alike import unlike_first
from unreft.torch.mesh_place import Place
from unreft.torch.rng import packed_numpy, packed_python
from unreft.torch.stream_classes import LEFT_OUT, How, Taken, take

_PARTS = ("python", "torch", "numpy", "cuda")
_NO_PLACES = "no rank stored a place in a device mesh"


@dataclasses.dataclass
class Streams:
    """`state`: as `Rng.load_state_dict` takes it. The others name parts of it."""

    state: dict[str, Any]
    shared: list[str] = dataclasses.field(default_factory=list)  # that all ranks take as they are
    by_rank: list[str] = dataclasses.field(default_factory=list)
    by_mesh: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # by how, in words

    def add(self, part: str, stream: Any, taken: Taken) -> None:
        self.state[part] = stream
        if taken.apart:
            self.state.setdefault("apart", {})[part] = dict(taken.apart)
        if taken.how == How.BY_MESH:
            self.by_mesh.setdefault(taken.said, []).append(part)
        else:
            (self.shared if taken.how == How.SHARED else self.by_rank).append(part)


@dataclasses.dataclass(frozen=True)
class Now:
    """This rank of this world. `device`: the CUDA device that it draws from."""

    rank: int
    device: int = 0
    place: Place | None = None


def join(
    stored: Sequence[dict[str, Any] | None], now: Now, places: Sequence[Place] | str = _NO_PLACES
) -> Streams | None:
    """The streams of a rank, from those of all ranks of the world that stored them.

    `places`: of these, or why there are none. None where no rank stored any stream.
    """
    if all(state is None for state in stored):
        return None
    states = [state or {} for state in stored]
    joined = Streams({})
    for part in _PARTS:
        without = [other for other, state in enumerate(states) if part not in state]
        if len(without) == len(states):
            continue
        if without:
            raise FailedPrecondition(
                f"random state: that of '{part}' is needed of all {len(states)} ranks that stored "
                f"this version, {listing.ranks(without)} stored none. Restart with {len(states)} "
                f"ranks, or {LEFT_OUT}"
            )
        join_part = _join_devices if part == "cuda" else _join_part
        joined.add(part, *join_part(part, states, now, places))
    return joined


def _join_part(
    part: str, states: list[dict], now: Now, places: Sequence[Place] | str
) -> tuple[Any, Taken]:
    found = [state[part] for state in states]
    taken = _take(part, found, states, now, places)
    if taken.source is not None:
        return found[taken.source], taken
    return _NEW[part](_seed(part, found, taken.name), found[0]), taken


def _join_devices(
    part: str, states: list[dict], now: Now, places: Sequence[Place] | str
) -> tuple[Any, Taken]:
    """As `_join_part`, of the lists with a stream for each CUDA device of the node.

    Who shares a stream is seen only where each rank draws: ranks of one node that all began alike
    have different lists, each advanced in another place.
    """
    lists = [state[part] for state in states]
    if len(set(map(_digest, lists))) == 1:
        taken = _take(part, lists, states, now, places)
        if taken.how == How.SHARED:
            return lists[0], taken
    drawn_from = [state.get("cuda_device", 0) for state in states]
    _check_devices(lists, states, drawn_from)
    drawn = [found[at] for found, at in zip(lists, drawn_from)]
    taken = _take(part, drawn, states, now, places)
    # Of the devices that this rank does not draw from; a new one begins all anew, as a seed does.
    others = []
    if taken.source is None:
        stream = _new_cuda(_seed(part, drawn, taken.name))
    else:
        stream = drawn[taken.source]
        keeps_own = taken.how == How.SHARED and now.rank < len(lists)
        others = _idle(lists, drawn_from)[now.rank if keeps_own else taken.source]
    streams = [others[0] if others else stream] * len(lists[0])
    streams[min(now.device, len(streams) - 1)] = stream
    return streams, taken


def _idle(lists: list[list], drawn_from: list[int]) -> list[list]:
    """By rank, the streams of the devices that it does not draw from."""
    return [[*found[:at], *found[at + 1 :]] for found, at in zip(lists, drawn_from)]


def _check_devices(lists: list[list], states: list[dict], drawn_from: list[int]) -> None:
    restart = f"Restart with {len(lists)} ranks, or {LEFT_OUT}"
    if len(set(map(len, lists))) != 1:
        raise FailedPrecondition(
            f"random state: needed as many CUDA devices on all ranks, found {list(map(len, lists))}"
            f" by rank. {restart}"
        )
    for other, idle in enumerate(_idle(lists, drawn_from)):
        if len(lists[0]) > 1 and "cuda_device" not in states[other]:
            raise FailedPrecondition(
                f"random state: rank {other} stored that of {len(lists[0])} CUDA devices, and not "
                f"which it draws from. {restart}"
            )
        if len(set(map(_digest, idle))) > 1:
            raise FailedPrecondition(
                f"random state: needed one CUDA device that each rank draws from, found that rank "
                f"{other} has drawn from another than its device {drawn_from[other]}. {restart}"
            )


def _take(
    part: str, found: list[Any], states: list[dict], now: Now, places: Sequence[Place] | str
) -> Taken:
    noted = [_noted(part, state) for state in states]
    if unlike := unlike_first(noted):
        raise FailedPrecondition(
            f"random state: what is known of who shares the streams of '{part}' needs to be alike "
            f"on all {len(states)} ranks that stored them: on {listing.ranks(unlike)} it is not "
            f"what it is on rank 0. Restart with {len(states)} ranks, or {LEFT_OUT}"
        )
    return take(part, list(map(_digest, found)), places, noted[0], now.rank, now.place)


def _noted(part: str, state: dict) -> dict[str, bool]:
    noted = state.get("apart", {})
    found = noted.get(part, {}) if type(noted) is dict else None
    if type(found) is not dict or any(
        type(name) is not str or type(is_apart) is not bool for name, is_apart in found.items()
    ):
        raise DataLoss(f"extras: what is stored of who shares the streams of '{part}' says nothing")
    return found


def _seed(part: str, found: list[Any], name: str) -> int:
    """Of a new stream: of 64 bits, the same whenever it is begun from the same streams."""
    hashed = hashlib.blake2b(f"{part} of {name}".encode(), digest_size=8)
    for stream in found:
        hashed.update(_digest(stream))
    return int.from_bytes(hashed.digest(), "little")


def _new_python(seed: int, _: Any) -> Any:
    return packed_python(random.Random(seed).getstate())


def _new_torch(seed: int, _: Any) -> Any:
    return torch.Generator(device="cpu").manual_seed(seed).get_state()


def _new_numpy(seed: int, like: dict[str, Any]) -> Any:
    import numpy

    generator = getattr(numpy.random, like["bit_generator"])(seed)
    return packed_numpy(numpy.random.RandomState(generator).get_state(legacy=False))


def _new_cuda(seed: int) -> Any:
    return torch.Generator(device="cuda").manual_seed(seed).get_state()


_NEW = {"python": _new_python, "torch": _new_torch, "numpy": _new_numpy}


def _digest(stream: Any) -> bytes:
    hashed = hashlib.blake2b(digest_size=32)
    _feed(hashed, stream)
    return hashed.digest()


def _feed(hashed: Any, value: Any) -> None:
    """Each part with its type and length, so that different values feed different bytes."""
    if isinstance(value, dict):
        value = [item for key in sorted(value) for item in (key, value[key])]
    if isinstance(value, (list, tuple)):
        hashed.update(f"{len(value)} parts;".encode())
        for part in value:
            _feed(hashed, part)
        return
    if isinstance(value, torch.Tensor):
        data = bytes(value.to(torch.uint8).tolist())
    elif hasattr(value, "tobytes"):  # NumPy's
        data = value.tobytes()
    else:
        data = value if isinstance(value, bytes) else repr(value).encode()
    hashed.update(f"{type(value).__name__} of {len(data)};".encode() + data)
