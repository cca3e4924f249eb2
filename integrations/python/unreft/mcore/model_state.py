"""ModelState: what Megatron-Core has of a model and its optimizer on this rank, by name.

    master/<tensor>   optim/<tensor>/<key>   what the optimizer steps on, fp32, and its state
    model/<tensor>                           a parameter that no optimizer steps on

Names and boxes are those of the model's `sharded_state_dict`: of whole tensors, all layers stacked,
so that any sizes of parallelism may restore what any others have stored. The weights that the model
computes with, bf16 ones, say, follow from the fp32 ones and are not captured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from unreft.errors import FailedPrecondition
from unreft.mcore.group_scalars import scalars_of
from unreft.mcore.main_parameters import Main, mains_of, optimizers_of
from unreft.mcore.pieces import Piece, pieces_of
from unreft.tensor import Tensor
from unreft.torch import listing
from unreft.torch.mesh_place import Place
from unreft.torch.parts import Part, Stepped, bind_part
from unreft.torch.parts_state import NAMED_MAX, PartsState, flat
from unreft.torch.same_program import Kind, kind_of
from unreft.torch.shards import Bound
from unreft.torch.watch import Watch


class ModelState(PartsState):
    """Of chunks and an optimizer that `refusals.check` has let pass; a `CapturedState`.

    Of a box that several ranks hold, as tensor-parallel ones do of a layer norm and the last
    pipeline stage of a tied embedding, the first captures it, and all restore it. A rank of the
    last stage knows other tensors than one of the first: what all of them know, `learn_names` asks.
    """

    STATE_NEEDS_SHAPE = "needs to be of the shape of what it steps on,"
    NOT_STEPPED_ON = "what it does not step on"
    SAME_PROGRAM = (
        "Attach the same model and optimizer as the run that stored it, or give that state up with "
        "`unreft fresh-start`"
    )

    def __init__(
        self, chunks: Sequence[Any], optimizer: Any, rank: int, world: int, place: Place
    ):
        super().__init__(optimizers_of(optimizer), rank, world)
        self.place = place
        self._pieces = pieces_of(chunks)
        self._weights = type_of_weights(self._pieces, chunks[0].config.params_dtype)
        self._untrained = [p for p in self._pieces if not p.requires_grad]
        self._follow()
        self._check_trained()
        self._kinds = self._own_kinds()
        self._known = set(self._kinds)  # of all pipeline stages, after `learn_names`

    def learn_names(self) -> None:
        """All ranks call it together, once."""
        group = parallel_state.get_pipeline_model_parallel_group()
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, list(self._kinds), group)
        self._known = {name for names in found for name in names}

    def _follow(self) -> None:
        self._mains: list[Main] = []
        self._stepped, self._scalars = [], []
        for owner in self._owners:
            mains = mains_of(owner)
            stepped = self._stepped_by(owner.optimizer, mains)
            self._mains += mains
            self._stepped += stepped
            self._scalars.append(scalars_of(owner.optimizer, stepped, self._weights))

    # --- capture ---

    def watch(self, bounds: Sequence[Bound]) -> Watch:
        return self._watch(bounds, self._untrained)

    def remember_buffers(self) -> None:
        """There are none."""

    def refresh(self) -> bool:
        return True

    def module_extras(self) -> dict[str, Any]:
        return {}

    # --- restore ---

    @torch.no_grad()
    def bind_for_restore(self, stored: Sequence[Tensor]) -> list[Bound]:
        self._follow()
        known = {tensor.name for tensor in stored if _of_what(tensor.name) in self._known}
        self._check_same(self._kinds, known, {tensor.name: tensor for tensor in stored})
        self._make_optimizer_state(stored)
        return self.live()

    def _own_kinds(self) -> dict[str, Kind]:
        """Of all tensors that are cut, by name, with those of which this rank has no part."""
        found = {}
        for parameter, pieces in self._pieces.items():
            trained = parameter.requires_grad
            head, dtype = ("master", torch.float32) if trained else ("model", parameter.dtype)
            for piece in pieces:
                kind = kind_of(dtype, piece.shape, piece.allow_shape_mismatch)
                found[f"{head}/{piece.name}"] = kind
        return found

    # --- which parts of tensors parameters are ---

    def _stepped_by(
        self, optimizer: torch.optim.Optimizer, mains: Sequence[Main]
    ) -> list[Stepped]:
        groups = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        found = []
        for each in mains:
            pieces = self._pieces[each.parameter]
            # Data-parallel ranks have other elements each, or all have the same.
            last = None if each.on_all_data_parallel else -1
            first = [piece for piece in pieces if not any(piece.replica[:last])]
            found.append(
                Stepped(
                    optimizer,
                    groups[each.main],
                    each.main,
                    {piece.name: piece.shape for piece in pieces},
                    _parts(pieces, each.begin, each.end),
                    _parts(first, each.begin, each.end),
                )
            )
        return found

    def _beside(self, live: bool) -> Iterator[Bound]:
        for parameter in self._untrained:
            pieces = self._pieces[parameter]
            held = pieces if live else [piece for piece in pieces if not any(piece.replica)]
            for part in _parts(held, 0, parameter.numel()):
                yield bind_part("model", flat(parameter), part)

    def _check_trained(self) -> None:
        """Raises `FailedPrecondition` for parameters that no optimizer steps on although they
        require a gradient, or the other way round: by that a restore goes, and nothing else says
        what is trained. A DistributedOptimizer itself takes all that require one when it is made.
        """
        frozen = [each.parameter for each in self._mains if not each.parameter.requires_grad]
        self._refuse("steps", frozen, "no", "Freeze them before the optimizer is made")
        if all(each.on_all_data_parallel for each in self._mains):
            stepped = {each.parameter for each in self._mains}
            trained = [p for p in self._pieces if p.requires_grad and p not in stepped]
            self._refuse("does not step", trained, "a", "Give them to it, or freeze them")

    def _refuse(
        self, steps: str, parameters: Sequence[torch.Tensor], a: str, what_to_do: str
    ) -> None:
        names = [self._pieces[parameter][0].name for parameter in parameters]
        if names and self._mains:
            raise FailedPrecondition(
                f"optimizer: it {steps} on {len(names)} parameters that require {a} gradient: "
                f"{listing.names(names, NAMED_MAX)}. {what_to_do}"
            )


def type_of_weights(parameters: Collection[torch.Tensor], configured: torch.dtype) -> str:
    """Of those that are trained, where some are: the type that the model computes with, which is
    another than the configured one where Float16Module has cast them."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    dtypes = [parameter.dtype for parameter in trained or parameters] or [configured]
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize)
    return str(narrowest).removeprefix("torch.")


def _parts(pieces: Sequence[Piece], begin: int, end: int) -> list[Part]:
    """What is of these in a parameter's elements [begin, end)."""
    found = (piece.part(begin, end) for piece in pieces)
    return [part for part in found if part is not None]


def _of_what(name: str) -> str:
    """The name of what the optimizer steps on, for that of its state."""
    if not name.startswith("optim/"):
        return name
    return f"master/{name.removeprefix('optim/').rpartition('/')[0]}"
