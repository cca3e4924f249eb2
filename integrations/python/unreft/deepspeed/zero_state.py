"""ZeroState: what ZeRO has of a model and its optimizer on this rank, by name.

    master/<parameter>   optim/<parameter>/<key>   ranges of the parameter, as partitions have them
    model/<parameter>                              what no optimizer steps on
    rank3/buffer/<buffer>                          of rank 3 alone

The weights that the model computes with, bf16 ones, say, follow from the fp32 partitions and are
not captured. Names and boxes are those of whole parameters, so that any number of ranks may restore
what any other number has stored.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from deepspeed import DeepSpeedEngine

from unreft.deepspeed.group_scalars import GroupScalars, is_partitioned
from unreft.deepspeed.partitions import Partition, part_of_sharded, partitions_of
from unreft.errors import FailedPrecondition
from unreft.tensor import Tensor
from unreft.torch import listing
from unreft.torch.buffers import Buffers
from unreft.torch.parts import WatchOfWholes, bind_part, box
from unreft.torch.shards import Bound, Holders, bind, own_of, torch_dtype, uncompiled
from unreft.torch.state import clean, with_extra_state
from unreft.torch.watch import Watch

_OF_A_RANK = re.compile(r"rank\d+/")
_NAMED_MAX = 10  # tensors that an error names
_SAME_PROGRAM = (
    "Attach an engine with the same model, optimizer and groups as the run that stored it, or give "
    "that state up with `unreft fresh-start`"
)


class ZeroState:
    """Of an engine that `refusals.check` has let pass; a `CapturedState`.

    Tied parameters are one. Those without a gradient, and others that no optimizer steps on, are on
    all ranks alike under stages 1 and 2, and cut like the others under stage 3. Buffers are each
    rank's own and volatile, as in `unreft.torch`.
    """

    place = None  # of this rank in a device mesh: ZeRO has none

    def __init__(self, engine: DeepSpeedEngine, rank: int, world: int):
        self.rank = rank
        self.world = world
        self.own = own_of(rank)
        self._zero = engine.optimizer
        self._model = uncompiled(engine.module)
        self._buffers = Buffers(self._model)
        self._names = {p: clean(name) for name, p in self._model.named_parameters()}
        self._with_extra_state: list[tuple[str, torch.nn.Module]] = []
        kind = {
            "stage": int(engine.zero_optimization_stage()),
            "weights": str(engine.get_data_types()[0]).removeprefix("torch."),
        }
        self._make_scalars = functools.partial(GroupScalars, zero=kind)
        self._follow()

    def _follow(self) -> None:
        """Takes the partitions as they lie now."""
        self._partitions = partitions_of(self._zero, self._names)
        self._scalars = self._make_scalars(self._optimizer, self._partitions)
        trained = {name for partition in self._partitions for name in partition.shapes}
        self._untrained = {p: name for p, name in self._names.items() if name not in trained}

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        """The one of torch that steps on the partitions."""
        return self._zero.optimizer

    # --- what trains ---

    def steps_on(self, optimizer: torch.optim.Optimizer) -> bool:
        return optimizer is self._optimizer

    def steps_on_known(self) -> bool:
        return True

    def trained(self) -> list[torch.Tensor]:
        return [partition.flat for partition in self._partitions]

    def without_state(self) -> set[str]:
        state = self._optimizer.state
        without = [of for of in self._partitions if not state.get(of.flat)]
        return {f"optim/{name}" for partition in without for name in partition.shapes}

    # --- capture ---

    @torch.no_grad()
    def live(self) -> list[Bound]:
        return self._bind(self._buffers.live())

    @torch.no_grad()
    def bind(self) -> list[Bound]:
        self._follow()
        self._check_state()
        self._scalars.check_partitions()
        self._with_extra_state = list(with_extra_state(self._model))
        return self._bind(self._buffers.stable())

    def watch(self, bounds: Sequence[Bound]) -> Watch:
        """Of partitions it looks at the whole, not at each parameter's part."""
        state = self._optimizer.state
        flats = [partition.flat for partition in self._partitions]
        flats += [value for _, _, value in self._moments()]
        sharded = [p for p in self._untrained if _is_sharded(p)]
        flats += [parameter.ds_tensor for parameter in sharded]
        # Not detached: what is so does not follow where the flat tensor is moved.
        whole = [bind("partition", flat, self.own) for flat in flats]
        return WatchOfWholes(
            sized=[state, *state.values(), *(m._buffers for m in self._model.modules())],
            containers=[state, *state.values()],
            slots=[*self._buffers.watched(), *self._untrained_slots()],
            # A load from files makes other state.
            attributes=[
                (self._zero, "optimizer"),
                (self._optimizer, "state"),
                *((parameter, "ds_tensor") for parameter in sharded),
            ],
            bounds=[*whole, *(bound for bound in bounds if bound.spec.range is None)],
        )

    def remember_buffers(self) -> None:
        self._buffers.remember()

    def refresh(self) -> bool:
        return self._buffers.refresh()

    def module_extras(self) -> dict[str, Any]:
        return {name: module.get_extra_state() for name, module in self._with_extra_state}

    def optimizer_scalars(self, known: bool) -> list[dict[str, Any]]:
        return [self._scalars.values()]

    # --- dry run ---

    @torch.no_grad()
    def live_without_optimizers(self) -> list[Bound]:
        buffers = self._bind_buffers(self._buffers.live())
        return [*self._masters(), *self._bind_untrained(), *buffers]

    @torch.no_grad()
    def places_of_optimizer_state(self) -> list[Bound]:
        return [
            bind_part("optim", partition.flat, part, "*")
            for partition in self._partitions
            for part in partition.parts
        ]

    # --- restore ---

    def names(self) -> list[str]:
        return [bound.spec.name for bound in self.live()]

    @torch.no_grad()
    def bind_for_restore(self, stored: Sequence[Tensor]) -> list[Bound]:
        self._follow()
        self._make_optimizer_state(stored)
        bounds = self.live()
        self._check_same(bounds, {tensor.name: tensor for tensor in stored})
        return bounds

    def check_scalars(self, scalars: dict[str, Any]) -> None:
        (stored,) = scalars["optimizers"]
        self._scalars.check_stored(stored)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._scalars.load(scalars["optimizers"][0])
        for name, module in with_extra_state(self._model):
            if name in scalars["modules"]:
                module.set_extra_state(scalars["modules"][name])

    # --- how ---

    def _bind(self, buffers: Iterator[tuple[str, torch.Tensor]]) -> list[Bound]:
        return [
            *self._masters(),
            *self._optimizer_tensors(),
            *self._bind_untrained(),
            *self._bind_buffers(buffers),
        ]

    def _masters(self) -> Iterator[Bound]:
        for partition in self._partitions:
            yield from (bind_part("master", partition.flat, part) for part in partition.parts)

    def _optimizer_tensors(self) -> Iterator[Bound]:
        for partition, key, value in self._moments():
            yield from (bind_part("optim", value, part, key) for part in partition.parts)

    def _moments(self) -> Iterator[tuple[Partition, str, torch.Tensor]]:
        """The state that the optimizer has of each element of a partition, by its key."""
        for partition in self._partitions:
            for key, value in self._optimizer.state.get(partition.flat, {}).items():
                if is_partitioned(value, partition.flat):
                    yield partition, key, value

    def _bind_untrained(self) -> Iterator[Bound]:
        everywhere = Holders("", self.rank, self.world)
        for parameter, name in self._untrained.items():
            if not _is_sharded(parameter):
                yield bind(f"model/{name}", parameter, everywhere)
                continue
            part = part_of_sharded(parameter, name)
            if part.begin < part.end:
                yield bind_part("model", parameter.ds_tensor, part)

    def _bind_buffers(self, buffers: Iterator[tuple[str, torch.Tensor]]) -> Iterator[Bound]:
        for name, buffer in buffers:
            yield bind(f"buffer/{clean(name)}", buffer, self.own, volatile=True)

    def _untrained_slots(self) -> list[tuple[dict, str]]:
        return [
            (module._parameters, key)
            for module in self._model.modules()
            for key, parameter in module._parameters.items()
            if parameter is not None and parameter in self._untrained
        ]

    def _check_state(self) -> None:
        """Raises `FailedPrecondition` for state of another shape than a partition's, or of what is
        none."""
        kind = type(self._optimizer).__name__
        flats = {partition.flat for partition in self._partitions}
        for flat, state in self._optimizer.state.items():
            if flat not in flats:
                raise FailedPrecondition(f"{kind}: it has state of what is no partition of ZeRO")
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.numel() != 1:
                    if value.shape != flat.shape:
                        raise FailedPrecondition(
                            f"{kind}: its state '{key}' of a partition needs to be of its shape "
                            f"{tuple(flat.shape)}, found {tuple(value.shape)}: which elements are "
                            "whose is not known"
                        )

    def _make_optimizer_state(self, stored: Sequence[Tensor]) -> None:
        """Gives every partition the state that is stored of its parameters, kept where it fits."""
        kept: dict[str, dict[str, torch.dtype]] = {}
        for tensor in stored:
            head, _, key = tensor.name.rpartition("/")
            if head.startswith("optim/"):
                kept.setdefault(head.removeprefix("optim/"), {})[key] = torch_dtype(tensor.dtype)
        for partition in self._partitions:
            flat = partition.flat
            wanted = {k: t for name in partition.shapes for k, t in kept.get(name, {}).items()}
            live = self._optimizer.state.get(flat, {})
            state = {
                key: live[key]
                if is_partitioned(live.get(key), flat) and live[key].dtype == dtype
                else torch.zeros_like(flat, dtype=dtype, requires_grad=False)
                for key, dtype in wanted.items()
            }
            if state or flat in self._optimizer.state:
                self._optimizer.state[flat].clear()
                self._optimizer.state[flat].update(state)

    def _check_same(self, bounds: Sequence[Bound], stored: dict[str, Tensor]) -> None:
        live = {bound.spec.name: _kind(bound.spec) for bound in bounds if bound.local.numel()}
        needed = self._kinds() | live
        if missing := [name for name in needed if name not in stored]:
            raise FailedPrecondition(
                f"of the tensors, the stored state lacks {len(missing)} of this program: "
                f"{listing.names(missing, _NAMED_MAX)}. {_SAME_PROGRAM}"
            )
        known = {*needed, *(bound.spec.name for bound in bounds)}
        unknown = [name for name in stored if name not in known and not self._is_others(name)]
        if unknown:
            raise FailedPrecondition(
                f"of the stored tensors, {len(unknown)} are none that this program attaches: "
                f"{listing.names(unknown, _NAMED_MAX)}. {_SAME_PROGRAM}"
            )
        if different := [name for name, kind in needed.items() if _kind(stored[name]) != kind]:
            first = different[0]
            raise FailedPrecondition(
                f"of the tensors, {len(different)} were stored with another shape or type: "
                f"{listing.names(different, _NAMED_MAX)}; '{first}' is {_kind(stored[first])} "
                f"there, found {needed[first]}. {_SAME_PROGRAM}"
            )

    def _kinds(self) -> dict[str, str]:
        """Of all that is cut, by name: also of parameters of which this rank has no part."""
        found = {}
        for partition in self._partitions:
            for name, shape in partition.shapes.items():
                found[f"master/{name}"] = _kind_of(partition.flat, shape)
        for partition, key, value in self._moments():
            for name, shape in partition.shapes.items():
                found[f"optim/{name}/{key}"] = _kind_of(value, shape)
        for parameter, name in self._untrained.items():
            if _is_sharded(parameter) and parameter.ds_numel:
                found[f"model/{name}"] = _kind_of(parameter, box(parameter.ds_shape))
        return found

    def _is_others(self, name: str) -> bool:
        match = _OF_A_RANK.match(name)
        return match is not None and match[0] != self.own.prefix


def _is_sharded(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "ds_tensor")


def _kind(spec: Tensor) -> str:
    return f"{spec.dtype.name.lower()}{list(spec.global_shape)}"


def _kind_of(tensor: torch.Tensor, shape: tuple[int, ...]) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(shape)}"
