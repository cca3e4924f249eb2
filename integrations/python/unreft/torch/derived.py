"""Derived: what the user declares to follow from captured state, and which live tensors that is."""

import dataclasses
import graphlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from unreft.errors import InvalidArgument
from unreft.torch import digest
from unreft.torch.shards import Bound

_OF_A_SET = re.compile(r"(rank|group)\d+/")
_PLACE = "{}"
CAST = "cast"


@dataclasses.dataclass(frozen=True)
class Derived:
    """Tensors that are a function of captured ones: a snapshot has their digest, not their bytes.

        Derived("model/{}", of="master/{}")                # the cast to the target's type
        Derived("model/scale", of=["model/weight", "buffer/range"], fn=scale_of)

    Names are those of the store, such as `model/layer.weight` or `optim/layer.weight/exp_avg`,
    without a leading `rankN/` or `groupN/`. `{}` stands for the same text in the target and in its
    sources: the declaration is about every target whose sources are all there. Of several that
    are about a tensor the first holds.

    `fn` is given this rank's part of each source and returns this rank's part of the target, with
    its shape, type and device. It depends on nothing else, changes nothing, draws no random
    numbers and does not communicate. It runs at every snapshot and at a restore. Without it the
    target is its one source, cast to the target's type, and no memory is needed for a whole one.

    `accept_mismatch`: a restore takes, with a warning, what `fn` returns although it is not what
    was there: for a function or a device that has changed since, knowingly.
    """

    target: str
    of: str | Sequence[str]
    fn: Callable[..., torch.Tensor] | None = None
    accept_mismatch: bool = False

    def __post_init__(self):
        sources = (self.of,) if isinstance(self.of, str) else tuple(self.of)
        object.__setattr__(self, "of", sources)
        if not sources or (self.fn is None and len(sources) != 1):
            raise InvalidArgument(
                f"{self}: needs {'one source, or a function' if sources else 'a source'}, found "
                f"{len(sources)} sources"
            )
        for name in (self.target, *sources):
            if not isinstance(name, str) or name.count(_PLACE) > 1:
                raise InvalidArgument(
                    f"{self}: needs names with one {_PLACE} at most, found {name!r}"
                )
        if _PLACE not in self.target and any(_PLACE in name for name in sources):
            raise InvalidArgument(f"{self}: {_PLACE} is in a source and not in the target")
        if self.target in sources:
            raise InvalidArgument(f"{self}: it is its own source")

    def __str__(self) -> str:
        return f"derived '{self.target}'"

    @property
    def function(self) -> str:
        """Its name, for people."""
        if self.fn is None:
            return CAST
        name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
        return f"{getattr(self.fn, '__module__', '?')}.{name}"

    def sources_of(self, name: str) -> list[str] | None:
        """The names of the sources, if this is about the tensor of that name."""
        head, place, tail = self.target.partition(_PLACE)
        if not place:
            return list(self.of) if name == self.target else None
        if not (name.startswith(head) and name.endswith(tail)):
            return None
        text = name[len(head) : len(name) - len(tail)]
        return [source.replace(_PLACE, text) for source in self.of] if text else None


def short_name(name: str) -> str:
    """The name that declarations know it by."""
    return _OF_A_SET.sub("", name, count=1)


def short(bound: Bound) -> str:
    return short_name(bound.spec.name)


@dataclasses.dataclass(frozen=True)
class Item:
    """A live tensor that follows from other live tensors."""

    rule: Derived
    target: Bound
    sources: tuple[Bound, ...]

    @property
    def name(self) -> str:
        return self.target.spec.name

    @property
    def source_names(self) -> str:
        return listed(source.spec.name for source in self.sources)

    def pieces(self, *, guarded: bool = False) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Of what follows from the sources, and of the target's memory: flat, piece by piece.

        `guarded`: the function gets copies of the sources, and is refused if it changes them or
        the state of a random generator. Raises `InvalidArgument` if what it returns does not fit.
        """
        own = self.target.local.detach()
        length = digest.piece_elements(own.dtype)
        if self.rule.fn is None:
            if guarded:
                self._check_cast()
            pieces = self.sources[0].local.detach().view(-1).split(length)
            made = (piece.to(own.dtype) for piece in pieces)
        else:
            value = self._guarded() if guarded else self.rule.fn(*self._parts())
            self._check_kind(value)
            made = iter(value.detach().contiguous().view(-1).split(length))
        return zip(made, own.view(-1).split(length))

    def _check_cast(self) -> None:
        # Shards alike, not only alike in size: else they are of different elements.
        source, target = self.sources[0].spec, self.target.spec
        if (source.global_shape, source.offset, source.extent) != (
            target.global_shape,
            target.offset,
            target.extent,
        ):
            raise InvalidArgument(
                f"'{source.name}' has offset {source.offset}, extent {source.extent} of "
                f"{source.global_shape}, needed {target.offset}, {target.extent} of "
                f"{target.global_shape}"
            )
        places = [self.sources[0].local.device, self.target.local.device]
        if places[0] != places[1]:
            raise InvalidArgument(f"'{source.name}' is on {places[0]}, needed {places[1]}")

    def _parts(self) -> list[torch.Tensor]:
        return [source.local.detach() for source in self.sources]

    def _guarded(self) -> torch.Tensor:
        copies = [part.clone() for part in self._parts()]
        device = self.target.local.device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            before = _generators(devices)
            value = self.rule.fn(*copies)
            drew = not all(map(torch.equal, before, _generators(devices)))
        if drew:
            raise InvalidArgument("its function draws random numbers")
        # Writing in place is what this counts.
        if changed := [s.spec.name for s, copy in zip(self.sources, copies) if copy._version]:
            raise InvalidArgument(f"its function writes to its source '{changed[0]}'")
        return value

    def _check_kind(self, value: torch.Tensor) -> None:
        own = self.target.local
        if not isinstance(value, torch.Tensor):
            raise InvalidArgument(f"its function returns a {type(value).__name__}, not a tensor")
        if (value.shape, value.dtype, value.device) != (own.shape, own.dtype, own.device):
            raise InvalidArgument(f"its function returns {_kind(value)}, needed {_kind(own)}")


def find(
    rules: Sequence[Derived], bounds: Iterable[Bound], wanted: Callable[[str], bool] | None = None
) -> tuple[list[Item], dict[str, str], list[str]]:
    """The tensors that declarations are about, sources before what is derived of them.

    Also those that are not derived although declared, with the reason, and of these a ring of
    tensors that would be their own source. `wanted`: whether a tensor of that name is of interest.
    """
    known = {short(bound): bound for bound in bounds if math.prod(bound.spec.extent)}
    items: dict[str, Item] = {}
    reasons: dict[str, str] = {}
    for name, bound in known.items():
        if wanted is not None and not wanted(bound.spec.name):
            continue
        for rule in rules:
            sources = rule.sources_of(name)
            if sources is None:
                continue
            missing = [source for source in sources if source not in known]
            if not missing:
                items[name] = Item(rule, bound, tuple(known[source] for source in sources))
                reasons.pop(bound.spec.name, None)
                break
            # A pattern need not fit all: those of the state that have no master copy, say.
            if _PLACE not in rule.target:
                reasons[bound.spec.name] = f"its source '{missing[0]}' is not captured state"
    ring: list[str] = []
    while True:
        graph = {
            name: [source for source in map(short, item.sources) if source in items]
            for name, item in items.items()
        }
        try:
            ordered = [items[name] for name in graphlib.TopologicalSorter(graph).static_order()]
            return ordered, reasons, ring
        except graphlib.CycleError as error:
            ring = error.args[1]
            for name in ring[1:]:
                reasons[items.pop(name).name] = f"it is its own source, by way of {listed(ring)}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _generators(devices: Sequence[torch.device]) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _kind(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)} on {tensor.device}"
