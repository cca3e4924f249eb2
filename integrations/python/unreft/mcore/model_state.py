"""ModelState: what Megatron-Core has of a model and its optimizer on this rank, by name.

    master/<tensor>   optim/<tensor>/<key>   what the optimizer steps on, fp32, and its state
    model/<tensor>                           a parameter that no optimizer steps on

Names and boxes are those of the model's `sharded_state_dict`: of whole tensors, all layers stacked,
so that any sizes of parallelism may restore what any others have stored. The weights that the model
computes with, bf16 ones, say, follow from the fp32 ones and are not captured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from unreft.errors import FailedPrecondition
from unreft.mcore.group_scalars import GroupScalars
from unreft.mcore.main_parameters import Main, mains_of, optimizers_of
from unreft.mcore.pieces import Piece, pieces_of
from unreft.tensor import Tensor
from unreft.torch import listing
from unreft.torch.mesh_place import Place
from unreft.torch.parts import Part, WatchOfWholes, bind_part, is_elementwise
from unreft.torch.shards import Bound, bind, own_of, torch_dtype
from unreft.torch.watch import Watch

_OF_A_RANK = re.compile(r"rank\d+/")
_NAMED_MAX = 10  # tensors that an error names
_SAME_PROGRAM = (
    "Attach the same model and optimizer as the run that stored it, or give that state up with "
    "`unreft fresh-start`"
)


class ModelState:
    """Of chunks and an optimizer that `refusals.check` has let pass; a `CapturedState`.

    Of a box that several ranks hold, as tensor-parallel ones do of a layer norm and the last
    pipeline stage of a tied embedding, the first captures it, and all restore it. A rank of the
    last stage knows other tensors than one of the first: what all of them know, `learn_names` asks.
    """

    def __init__(
        self, chunks: Sequence[Any], optimizer: Any, rank: int, world: int, place: Place
    ):
        self.rank = rank
        self.world = world
        self.place = place
        self.own = own_of(rank)
        self._optimizers = optimizers_of(optimizer)
        self._pieces = pieces_of(chunks)
        self._weights = str(chunks[0].config.params_dtype).removeprefix("torch.")
        self._untrained = [p for p in self._pieces if not p.requires_grad]
        self._follow()
        self._check_trained()
        self._kinds = self._own_kinds()
        self._known = dict(self._kinds)  # of all pipeline stages, after `learn_names`

    def learn_names(self) -> None:
        """All ranks call it together, once."""
        group = parallel_state.get_pipeline_model_parallel_group()
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, self._kinds, group)
        self._known = {name: kind for kinds in found for name, kind in kinds.items()}

    def _follow(self) -> None:
        """Takes what the optimizers step on as it is now."""
        self._mains = [mains_of(each) for each in self._optimizers]
        self._scalars = [
            GroupScalars(each.optimizer, mains, self._weights)
            for each, mains in zip(self._optimizers, self._mains)
        ]

    # --- what trains ---

    def steps_on(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(optimizer is each.optimizer for each in self._optimizers)

    def steps_on_known(self) -> bool:
        return True

    def trained(self) -> list[torch.Tensor]:
        return [each.main for mains in self._mains for each in mains]

    def without_state(self) -> set[str]:
        return {
            f"optim/{piece.name}"
            for inner, each in self._stepped()
            if not inner.state.get(each.main)
            for piece in self._pieces[each.parameter]
        }

    # --- capture ---

    @torch.no_grad()
    def live(self) -> list[Bound]:
        return self._bind(replicas=True)

    @torch.no_grad()
    def bind(self) -> list[Bound]:
        self._follow()
        self._check_state()
        for scalars in self._scalars:
            scalars.check_one()
        return self._bind(replicas=False)

    def watch(self, bounds: Sequence[Bound]) -> Watch:
        """Of what optimizers step on it looks at the whole, not at each part."""
        states = [each.optimizer.state for each in self._optimizers]
        wholes = [*self.trained(), *(value for _, _, value in self._elementwise())]
        wholes += self._untrained
        # Not detached: what is so does not follow where the tensor is moved.
        whole = [bind("main", tensor, self.own) for tensor in wholes]
        containers = [each for state in states for each in (state, *state.values())]
        return WatchOfWholes(
            sized=containers,
            containers=containers,
            slots=[],
            # A load from files makes other state.
            attributes=[
                *((each, "optimizer") for each in self._optimizers),
                *((each.optimizer, "state") for each in self._optimizers),
            ],
            bounds=[*whole, *(bound for bound in bounds if bound.spec.range is None)],
        )

    def remember_buffers(self) -> None:
        """There are none."""

    def refresh(self) -> bool:
        return True

    def module_extras(self) -> dict[str, Any]:
        return {}

    def optimizer_scalars(self, known: bool) -> list[dict[str, Any]]:
        return [scalars.values() for scalars in self._scalars]

    # --- dry run ---

    @torch.no_grad()
    def live_without_optimizers(self) -> list[Bound]:
        return [*self._masters(True), *self._bind_untrained(True)]

    @torch.no_grad()
    def places_of_optimizer_state(self) -> list[Bound]:
        return [
            bind_part("optim", _flat(each.main), part, "*")
            for _, each in self._stepped()
            for part in self._parts(each, True)
        ]

    # --- restore ---

    def names(self) -> list[str]:
        return [bound.spec.name for bound in self.live()]

    @torch.no_grad()
    def bind_for_restore(self, stored: Sequence[Tensor]) -> list[Bound]:
        self._follow()
        by_name = {tensor.name: tensor for tensor in stored}
        self._check_same(by_name)
        self._make_optimizer_state(by_name)
        return self.live()

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

    # --- how ---

    def _stepped(self) -> Iterator[tuple[torch.optim.Optimizer, Main]]:
        for optimizer, mains in zip(self._optimizers, self._mains):
            for each in mains:
                yield optimizer.optimizer, each

    def _elementwise(self) -> Iterator[tuple[Main, str, torch.Tensor]]:
        """The state that optimizers have of each element, by its key."""
        for inner, each in self._stepped():
            for key, value in inner.state.get(each.main, {}).items():
                if is_elementwise(value, each.main):
                    yield each, key, value

    def _parts(self, main: Main, replicas: bool) -> Iterator[Part]:
        """With `replicas` also those that other ranks capture."""
        for piece in self._pieces[main.parameter]:
            part = piece.part(main.begin, main.end)
            # Data-parallel ranks have other elements each, or all have the same.
            alike = piece.replica if main.on_all_data_parallel else piece.replica[:-1]
            if part is not None and (replicas or not any(alike)):
                yield part

    def _bind(self, replicas: bool) -> list[Bound]:
        return [
            *self._masters(replicas),
            *self._optimizer_tensors(replicas),
            *self._bind_untrained(replicas),
        ]

    def _masters(self, replicas: bool) -> Iterator[Bound]:
        for _, each in self._stepped():
            for part in self._parts(each, replicas):
                yield bind_part("master", _flat(each.main), part)

    def _optimizer_tensors(self, replicas: bool) -> Iterator[Bound]:
        for each, key, value in self._elementwise():
            for part in self._parts(each, replicas):
                yield bind_part("optim", _flat(value), part, key)

    def _bind_untrained(self, replicas: bool) -> Iterator[Bound]:
        for parameter in self._untrained:
            for piece in self._pieces[parameter]:
                part = piece.part(0, parameter.numel())
                if part is not None and (replicas or not any(piece.replica)):
                    yield bind_part("model", _flat(parameter), part)

    def _check_trained(self) -> None:
        """Raises `FailedPrecondition` for parameters that would be trained, and that no optimizer
        steps on. A DistributedOptimizer itself takes no other than all."""
        mains = [each for mains in self._mains for each in mains]
        if any(not each.on_all_data_parallel for each in mains):
            return
        stepped = {each.parameter for each in mains}
        trained = [p for p in self._pieces if p.requires_grad]
        names = [self._pieces[p][0].name for p in trained if p not in stepped]
        if names and mains:
            raise FailedPrecondition(
                f"optimizer: it does not step on {len(names)} parameters that require a gradient: "
                f"{listing.names(names, _NAMED_MAX)}. Have them require none, or give them to it"
            )

    def _own_kinds(self) -> dict[str, str]:
        """Of all tensors that are cut, by name, with those of which this rank has no part."""
        found = {}
        for parameter, pieces in self._pieces.items():
            trained = parameter.requires_grad
            for piece in pieces:
                name = f"{'master' if trained else 'model'}/{piece.name}"
                found[name] = _kind(torch.float32 if trained else parameter.dtype, piece)
        return found

    def _check_state(self) -> None:
        """Raises `FailedPrecondition` for state of another shape than what is stepped on, or of
        what is not."""
        for each in self._optimizers:
            kind, inner = type(each.optimizer).__name__, each.optimizer
            stepped = {p for group in inner.param_groups for p in group["params"]}
            for main, state in inner.state.items():
                if main not in stepped:
                    raise FailedPrecondition(f"{kind}: it has state of what it does not step on")
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.numel() != 1:
                        if not is_elementwise(value, main):
                            raise FailedPrecondition(
                                f"{kind}: its state '{key}' needs to be of the shape of what it "
                                f"steps on, {tuple(main.shape)}, found {tuple(value.shape)}: which "
                                "elements are whose is not known"
                            )

    def _make_optimizer_state(self, stored: dict[str, Tensor]) -> None:
        """Gives all that is stepped on the state that is stored of it, kept where it fits.

        Of padding that was not stored it is zero, as where an optimizer begins.
        """
        kept: dict[str, dict[str, Tensor]] = {}
        for name, tensor in stored.items():
            head, _, key = name.rpartition("/")
            if head.startswith("optim/"):
                kept.setdefault(head.removeprefix("optim/"), {})[key] = tensor
        for inner, each in self._stepped():
            pieces, live = self._pieces[each.parameter], inner.state.get(each.main, {})
            wanted = {k: t for piece in pieces for k, t in kept.get(piece.name, {}).items()}
            state = {}
            for key, tensor in wanted.items():
                dtype, value = torch_dtype(tensor.dtype), live.get(key)
                if not is_elementwise(value, each.main) or value.dtype != dtype:
                    value = torch.zeros_like(each.main, dtype=dtype, requires_grad=False)
                elif any(piece.shape != tensor.global_shape for piece in pieces):
                    value.zero_()
                state[key] = value
            if state or each.main in inner.state:
                inner.state[each.main].clear()
                inner.state[each.main].update(state)

    def _check_same(self, stored: dict[str, Tensor]) -> None:
        if missing := [name for name in self._kinds if name not in stored]:
            raise FailedPrecondition(
                f"of the tensors, the stored state lacks {len(missing)} of this program: "
                f"{listing.names(missing, _NAMED_MAX)}. {_SAME_PROGRAM}"
            )
        others = [name for name in stored if self._parameter_of(name) not in self._known]
        if unknown := [name for name in others if not self._is_others(name)]:
            raise FailedPrecondition(
                f"of the stored tensors, {len(unknown)} are none that this program attaches: "
                f"{listing.names(unknown, _NAMED_MAX)}. {_SAME_PROGRAM}"
            )
        different = []
        for parameter, pieces in self._pieces.items():
            head = "master" if parameter.requires_grad else "model"
            for piece in pieces:
                name = f"{head}/{piece.name}"
                if not _fits(stored[name], self._kinds[name], piece) and name not in different:
                    different.append(name)
        if different:
            first = different[0]
            raise FailedPrecondition(
                f"of the tensors, {len(different)} were stored with another shape or type: "
                f"{listing.names(different, _NAMED_MAX)}; '{first}' is {_kind_of(stored[first])} "
                f"there, found {self._kinds[first]}. {_SAME_PROGRAM}"
            )

    def _is_others(self, name: str) -> bool:
        """Whether it is what another rank has of its own, such as extras on a device."""
        match = _OF_A_RANK.match(name)
        return match is not None and match[0] != self.own.prefix

    @staticmethod
    def _parameter_of(name: str) -> str:
        """The name of what the optimizer steps on, for that of its state."""
        if not name.startswith("optim/"):
            return name
        return f"master/{name.removeprefix('optim/').rpartition('/')[0]}"


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1)


def _fits(stored: Tensor, kind: str, piece: Piece) -> bool:
    """A padded tensor may be padded otherwise."""
    if _kind_of(stored) == kind:
        return True
    return (
        piece.allow_shape_mismatch
        and len(stored.global_shape) == len(piece.shape)
        and stored.dtype.name.lower() == kind.partition("[")[0]
    )


def _kind_of(spec: Tensor) -> str:
    return f"{spec.dtype.name.lower()}{list(spec.global_shape)}"


def _kind(dtype: torch.dtype, piece: Piece) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(piece.shape)}"
