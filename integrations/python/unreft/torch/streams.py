"""Streams of random numbers in another world: which of the stored ones each rank goes on with.

Ranks that drew alike go on drawing alike: a stream that all shared is taken by all. Where every
rank had a stream of its own, a rank takes the one of its number, and ranks that are new begin new
ones. Streams that only some ranks shared are refused: what these have in common, such as the
tensor that they are parts of, is not known here, and by rank number they would be torn apart.

This is decided apart for each generator: Python's, torch's, NumPy's, and that of the CUDA device
that a rank draws from.
"""

import dataclasses
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from unreft.errors import FailedPrecondition
from unreft.torch import listing
from unreft.torch.rng import packed_numpy, packed_python

_PARTS = ("python", "torch", "numpy", "cuda")
_LEFT_OUT = "pass attach(rng=False) and seed the generators after restore()"


@dataclasses.dataclass
class Streams:
    """`state`: as `Rng.load_state_dict` takes it. The others name parts of it."""

    state: dict[str, Any]
    shared: list[str] = dataclasses.field(default_factory=list)  # that all ranks take as they are
    by_rank: list[str] = dataclasses.field(default_factory=list)


def join(stored: Sequence[dict[str, Any] | None], rank: int, device: int = 0) -> Streams | None:
    """The streams of `rank`, from those of all ranks of the world that stored them.

    `device`: the CUDA device that this rank draws from. None where no rank stored any.
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
                f"ranks, or {_LEFT_OUT}"
            )
        join_part = _join_devices if part == "cuda" else _join_part
        joined.state[part], shared = join_part(part, states, rank, device)
        (joined.shared if shared else joined.by_rank).append(part)
    return joined


def _join_part(part: str, states: list[dict], rank: int, device: int) -> tuple[Any, bool]:
    """The stream, and whether all ranks share it."""
    found = [state[part] for state in states]
    shared = _are_shared(part, found)
    return _taken(part, found, rank, shared, lambda seed: _NEW[part](seed, found[0])), shared


def _join_devices(part: str, states: list[dict], rank: int, device: int) -> tuple[Any, bool]:
    """As `_join_part`, of the lists with a stream for each CUDA device of the node.

    Who shares a stream is seen only where each rank draws: ranks of one node that all began alike
    have different lists, each advanced in another place.
    """
    lists = [state[part] for state in states]
    if len(set(map(_digest, lists))) == 1:
        return lists[0], True
    if len(set(map(len, lists))) != 1:
        raise FailedPrecondition(
            f"random state: needed as many CUDA devices on all ranks, found {list(map(len, lists))}"
            f" by rank. Restart with {len(lists)} ranks, or {_LEFT_OUT}"
        )
    places = [state.get("cuda_device", 0) for state in states]
    idle = [[*found[:at], *found[at + 1 :]] for found, at in zip(lists, places)]
    for other, state in enumerate(states):
        if len(lists[0]) > 1 and "cuda_device" not in state:
            raise FailedPrecondition(
                f"random state: rank {other} stored that of {len(lists[0])} CUDA devices, and not "
                f"which it draws from. Restart with {len(lists)} ranks, or {_LEFT_OUT}"
            )
        if len(set(map(_digest, idle[other]))) > 1:
            raise FailedPrecondition(
                f"random state: needed one CUDA device that each rank draws from, found that rank "
                f"{other} has drawn from another than its device {places[other]}. Restart with "
                f"{len(lists)} ranks, or {_LEFT_OUT}"
            )
    drawn = [found[at] for found, at in zip(lists, places)]
    shared = _are_shared(part, drawn)
    stream = _taken(part, drawn, rank, shared, _new_cuda)
    # Of the devices that this rank does not draw from; a new one begins all anew, as a seed does.
    others = idle[rank] if rank < len(lists) else idle[0] if shared else []
    streams = [others[0] if others else stream] * len(lists[0])
    streams[min(device, len(streams) - 1)] = stream
    return streams, shared


def _are_shared(part: str, found: list[Any]) -> bool:
    digests = list(map(_digest, found))
    different = len(set(digests))
    if different == 1:
        return True
    if different == len(found):
        return False
    twin = next(digest for digest in digests if digests.count(digest) > 1)
    twins = [rank for rank, digest in enumerate(digests) if digest == twin]
    raise FailedPrecondition(
        f"random state: the streams of '{part}' are alike on {listing.ranks(twins)}, but not on "
        f"all {len(found)} ranks that stored this version: by rank number streams would be split "
        "that ranks share, as tensor-parallel peers do. Restart with "
        f"{len(found)} ranks, or {_LEFT_OUT}"
    )


def _taken(
    part: str, found: list[Any], rank: int, shared: bool, new: Callable[[int], Any]
) -> Any:
    if shared:
        return found[0]
    return found[rank] if rank < len(found) else new(_seed(part, found, rank))


def _seed(part: str, found: list[Any], rank: int) -> int:
    """Of a new stream: of 64 bits, the same whenever it is begun from the same streams."""
    hashed = hashlib.blake2b(f"{part} of rank {rank}".encode(), digest_size=8)
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
