"""PartsState: what optimizers have that step on parts of tensors in flat memory, by name.

    master/<tensor>         what is stepped on
    optim/<tensor>/<key>    its state that has a value for each element

Names and boxes are those of whole tensors, so that a rank may restore other parts than any rank has
stored. unreft.deepspeed's ZeroState and unreft.mcore's ModelState are such states.
"""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unreft.errors import FailedPrecondition
from unreft.tensor import Tensor
from unreft.torch.group_scalars import GroupScalars
from unreft.torch.parts import Stepped, WatchOfWholes, bind_part, is_elementwise
from unreft.torch.same_program import Kind, check_kinds, check_names
from unreft.torch.shards import Bound, bind, own_of, torch_dtype

NAMED_MAX = 10  # tensors that an error names

_OF_A_RANK = re.compile(r"rank\d+/")


class PartsState(abc.ABC):
    """The part of a `CapturedState` that does not depend on who has cut the tensors.

    A subclass finds what is stepped on, in `_follow`, and says what is captured beside that.
    """

    # What errors say: "its state 'exp_avg' <STATE_NEEDS_SHAPE> (8,), found (4,)", "it has state of
    # <NOT_STEPPED_ON>", and how to go on where a stored state is another program's.
    STATE_NEEDS_SHAPE: str
    NOT_STEPPED_ON: str
    SAME_PROGRAM: str
    # Ends of keys of optimizers' state that hold nothing between steps.
    SCRATCH: tuple[str, ...] = ()

    def __init__(self, owners: Sequence[Any], rank: int, world: int):
        """`owners`: each has an optimizer of torch, which is its `optimizer` now."""
        self.rank = rank
        self.world = world
        self.own = own_of(rank)
        self._owners = owners
        self._stepped: list[Stepped] = []
        self._scalars: list[GroupScalars] = []  # of each owner's optimizer

    @abc.abstractmethod
    def _follow(self) -> None:
        """Takes what the optimizers step on as it is now: sets `_stepped` and `_scalars`."""

    @abc.abstractmethod
    def _beside(self, live: bool) -> Iterable[Bound]:
        """What no optimizer steps on: all of it, where it lies now, or what this rank captures."""

    # --- what trains ---

    def steps_on(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(optimizer is owner.optimizer for owner in self._owners)

    def lacking(self, stepped: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        return []  # what steps on captured tensors is an owner's

    def steps_on_known(self) -> bool:
        return True

    def trained(self) -> list[torch.Tensor]:
        return [each.memory for each in self._stepped]

    def without_state(self) -> set[str]:
        without = [each for each in self._stepped if not each.state]
        return {f"optim/{name}" for each in without for name in each.shapes}

    # --- capture ---

    @torch.no_grad()
    def live(self) -> list[Bound]:
        return [*self._masters(True), *self._optimizer_tensors(True), *self._beside(True)]

    @torch.no_grad()
    def bind(self) -> list[Bound]:
        self._follow()
        self._check_state()
        for scalars in self._scalars:
            scalars.check_shared()
        return [*self._masters(False), *self._optimizer_tensors(False), *self._beside(False)]

    def optimizer_scalars(self, known: bool) -> list[dict[str, Any]]:
        return [scalars.values() for scalars in self._scalars]

    def _watch(
        self,
        bounds: Sequence[Bound],
        untrained: Iterable[torch.Tensor],
        *,
        sized: Iterable[dict] = (),
        containers: Iterable[dict] = (),
        slots: Iterable[tuple[dict, str]] = (),
        attributes: Iterable[tuple[Any, str]] = (),
    ) -> WatchOfWholes:
        """Of what is stepped on, and of `untrained`, it looks at the whole, not at each part.

        `sized`, `containers`, `slots` and `attributes`, as of `Watch`: what else it looks at.
        """
        states = [owner.optimizer.state for owner in self._owners]
        of_states = [each for state in states for each in (state, *state.values())]
        # Not detached: what is so does not follow where the tensor is moved.
        whole = [bind("whole", tensor, self.own) for tensor in (*self.trained(), *untrained)]
        for _, _, value in self._moments():
            # As of `TrainingState`: optimizers replace what they keep.
            whole.append(dataclasses.replace(bind("whole", value, self.own), replaceable=True))
        return WatchOfWholes(
            sized=[*of_states, *sized],
            containers=[*of_states, *containers],
            slots=slots,
            # A load from files makes other state.
            attributes=[
                *((owner, "optimizer") for owner in self._owners),
                *((owner.optimizer, "state") for owner in self._owners),
                *attributes,
            ],
            bounds=[*whole, *(bound for bound in bounds if bound.spec.range is None)],
        )

    # --- dry run ---

    @torch.no_grad()
    def live_without_optimizers(self) -> list[Bound]:
        return [*self._masters(True), *self._beside(True)]

    @torch.no_grad()
    def places_of_optimizer_state(self) -> list[Bound]:
        return [
            bind_part("optim", flat(each.memory), part, "*")
            for each in self._stepped
            for part in each.parts
        ]

    # --- restore ---

    def names(self) -> list[str]:
        return [bound.spec.name for bound in self.live()]

    def check_scalars(self, scalars: dict[str, Any]) -> None:
        stored = scalars["optimizers"]
        if len(stored) != len(self._scalars):
            raise FailedPrecondition(
                f"optimizer: {len(stored)} were stored, {len(self._scalars)} are attached"
            )
        for own, each in zip(self._scalars, stored):
            own.check_stored(each)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        for own, stored in zip(self._scalars, scalars["optimizers"]):
            own.load(stored)

    def _make_optimizer_state(self, stored: Sequence[Tensor]) -> None:
        """Gives all that is stepped on the state that is stored of it, kept where it fits.

        Of padding that was not stored it is zero, as where an optimizer begins.
        """
        kept: dict[str, dict[str, Tensor]] = {}
        for tensor in stored:
            head, _, key = tensor.name.rpartition("/")
            if head.startswith("optim/"):
                kept.setdefault(head.removeprefix("optim/"), {})[key] = tensor
        for each in self._stepped:
            live, state = each.state, {}
            for name, shape in each.shapes.items():
                for key, tensor in kept.get(name, {}).items():
                    dtype = torch_dtype(tensor.dtype)
                    value = state.get(key, live.get(key))
                    if not is_elementwise(value, each.memory) or value.dtype != dtype:
                        value = torch.zeros_like(each.memory, dtype=dtype, requires_grad=False)
                    elif shape != tensor.global_shape:
                        value.zero_()
                    state[key] = value
            # In place, so that a reference to the optimizer's own dict stays good.
            if state or each.memory in each.optimizer.state:
                each.optimizer.state[each.memory].clear()
                each.optimizer.state[each.memory].update(state)

    def _check_same(
        self, needed: Mapping[str, Kind], known: Container[str], stored: Mapping[str, Tensor]
    ) -> None:
        """Raises `FailedPrecondition`, by name, unless all of `needed` are stored, of their kinds,
        and nothing is that is neither `known` nor another rank's own."""
        missing = [name for name in needed if name not in stored]
        unknown = [name for name in stored if name not in known and not self._is_others(name)]
        check_names(missing, unknown, self.SAME_PROGRAM, NAMED_MAX)
        check_kinds(needed, stored, self.SAME_PROGRAM, NAMED_MAX)

    # --- how ---

    def _masters(self, live: bool) -> Iterator[Bound]:
        for each in self._stepped:
            for part in each.parts if live else each.captured:
                yield bind_part("master", flat(each.memory), part)

    def _optimizer_tensors(self, live: bool) -> Iterator[Bound]:
        for each, key, value in self._moments():
            for part in each.parts if live else each.captured:
                yield bind_part("optim", flat(value), part, key)

    def _moments(self) -> Iterator[tuple[Stepped, str, torch.Tensor]]:
        """The state that optimizers have of each element, by its key."""
        for each in self._stepped:
            for key, value in each.state.items():
                if is_elementwise(value, each.memory) and not key.endswith(self.SCRATCH):
                    yield each, key, value

    def _check_state(self) -> None:
        """Raises `FailedPrecondition` for state of another shape than what is stepped on, or of
        what is not."""
        for optimizer in (owner.optimizer for owner in self._owners):
            kind = type(optimizer).__name__
            stepped = {each.memory for each in self._stepped if each.optimizer is optimizer}
            for memory, state in optimizer.state.items():
                if memory not in stepped:
                    raise FailedPrecondition(f"{kind}: it has state of {self.NOT_STEPPED_ON}")
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.numel() != 1:
                        if value.shape != memory.shape:
                            raise FailedPrecondition(
                                f"{kind}: its state '{key}' {self.STATE_NEEDS_SHAPE} "
                                f"{tuple(memory.shape)}, found {tuple(value.shape)}: which "
                                "elements are whose is not known"
                            )

    def _is_others(self, name: str) -> bool:
        """Whether it is what another rank has of its own, such as extras on a device."""
        match = _OF_A_RANK.match(name)
        return match is not None and match[0] != self.own.prefix


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as bind_part takes them, of shape (elements,)."""
    return tensor.detach().view(-1)
