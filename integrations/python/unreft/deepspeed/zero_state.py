"""ZeroState: what ZeRO has of a model and its optimizer on this rank, by name.

    master/<parameter>   optim/<parameter>/<key>   ranges of the parameter, as partitions have them
    model/<parameter>                              what no optimizer steps on
    rank3/buffer/<buffer>                          of rank 3 alone

The weights that the model computes with, bf16 ones, say, follow from the fp32 partitions and are
not captured. Names and boxes are those of whole parameters, so that any number of ranks may restore
what any other number has stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from deepspeed import DeepSpeedEngine, checkpointing
from torch import nn

from unreft.deepspeed import refusals
from unreft.deepspeed.group_scalars import ZeroScalars
from unreft.deepspeed.partitions import groups_of, part_of_sharded, partitions_of
from unreft.errors import FailedPrecondition
from unreft.tensor import Tensor
from unreft.torch.buffers import Buffers
from unreft.torch.module_extras import ModuleExtras
from unreft.torch.names import clean
from unreft.torch.parts import bind_part, box
from unreft.torch.parts_state import PartsState
from unreft.torch.same_program import Kind, kind_of, kind_of_stored
from unreft.torch.shards import Bound, Holders, bind, uncompiled
from unreft.torch.watch import Watch


class ZeroState(PartsState):
    """Of an engine that `refusals.check` has let pass; a `CapturedState`.

    Tied parameters are one. Those without a gradient, and others that no optimizer steps on, are on
    all ranks alike under stages 1 and 2, and cut like the others under stage 3. Buffers are each
    rank's own and volatile, as in `unreft.torch`.
    """

    STATE_NEEDS_SHAPE = "of a partition needs to be of its shape"
    NOT_STEPPED_ON = "what is no partition of ZeRO"
    SAME_PROGRAM = (
        "Attach an engine with the same model, optimizer and groups as the run that stored it, or "
        "give that state up with `unreft fresh-start`"
    )

    # What `engine.offload_states` writes into, and goes on to keep.
    SCRATCH = ("_offload_buffer",)

    place = None  # of this rank in a device mesh: ZeRO has none

    def __init__(self, engine: DeepSpeedEngine, rank: int, world: int):
        super().__init__([engine.optimizer], rank, world)
        self._zero = engine.optimizer
        self._kind = {
            "stage": int(engine.zero_optimization_stage()),
            "weights": str(engine.optimizer.dtype).removeprefix("torch."),
        }
        self._model = uncompiled(engine.module)
        self._buffers = Buffers(self._model)
        self._module_extras = ModuleExtras(self._model)
        self._follow()

    def _follow(self) -> None:
        names = _names_of(self._model)
        for parameter in itertools.chain.from_iterable(groups_of(self._zero)):
            if parameter not in names:
                name = clean(self._zero.param_names.get(parameter, "(unnamed)"))
                raise FailedPrecondition(
                    f"model: needed the parameter '{name}', which ZeRO trains, found it no more; "
                    "what stands in its place is not trained: write into the parameter itself"
                )
        self._stepped = partitions_of(self._zero, names)
        self._scalars = [ZeroScalars(self._zero.optimizer, self._stepped, self._kind)]

    def _untrained(self) -> dict[torch.Tensor, str]:
        """The parameters that no optimizer steps on: a loop may replace them at any time."""
        trained = {name for partition in self._stepped for name in partition.shapes}
        return {p: name for p, name in _names_of(self._model).items() if name not in trained}

    # --- capture ---

    def bind(self) -> list[Bound]:
        refusals.check_streams()
        self._module_extras.find()
        return super().bind()

    def watch(self, bounds: Sequence[Bound]) -> Watch:
        sharded = [p for p in self._untrained() if _is_sharded(p)]
        streams = checkpointing.get_cuda_rng_tracker()
        modules = list(self._model.modules())
        containers = [each for module in modules for each in (module._parameters, module._modules)]
        return self._watch(
            bounds,
            [parameter.ds_tensor for parameter in sharded],
            sized=[streams.states_, *(module._buffers for module in modules), *containers],
            containers=containers,
            slots=self._buffers.watched(),
            attributes=[
                (streams, "states_"),
                # A forward pass of stage 3 gives a module that is new to it another dict.
                *((module, "_parameters") for module in modules),
                *((parameter, "ds_tensor") for parameter in sharded),
            ],
        )

    def remember_buffers(self) -> None:
        self._buffers.remember()

    def refresh(self) -> bool:
        return self._buffers.refresh()

    def module_extras(self) -> dict[str, Any]:
        return self._module_extras.values()

    # --- restore ---

    @torch.no_grad()
    def bind_for_restore(self, stored: Sequence[Tensor]) -> list[Bound]:
        self._follow()
        self._make_optimizer_state(stored)
        self._buffers.make(f"{self.own.prefix}buffer/", stored)
        bounds = self.live()
        filled = {b.spec.name: kind_of_stored(b.spec) for b in bounds if b.local.numel()}
        needed = self._kinds() | filled
        known = {*needed, *(bound.spec.name for bound in bounds)}
        self._check_same(needed, known, {tensor.name: tensor for tensor in stored})
        return bounds

    def check_scalars(self, scalars: dict[str, Any]) -> None:
        super().check_scalars(scalars)
        self._module_extras.check(scalars["modules"], self.SAME_PROGRAM)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        super().load_scalars(scalars)
        self._module_extras.load(scalars["modules"])

    def _kinds(self) -> dict[str, Kind]:
        """Of all that is cut, by name: also of parameters of which this rank has no part."""
        found = {}
        for partition in self._stepped:
            for name, shape in partition.shapes.items():
                found[f"master/{name}"] = kind_of(partition.memory.dtype, shape)
        for partition, key, value in self._moments():
            for name, shape in partition.shapes.items():
                found[f"optim/{name}/{key}"] = kind_of(value.dtype, shape)
        for parameter, name in self._untrained().items():
            if _is_sharded(parameter) and parameter.ds_numel:
                found[f"model/{name}"] = kind_of(parameter.dtype, box(parameter.ds_shape))
        return found

    # --- beside what trains ---

    def _beside(self, live: bool) -> Iterator[Bound]:
        yield from self._bind_untrained()
        for name, buffer in self._buffers.live() if live else self._buffers.stable():
            yield bind(f"buffer/{clean(name)}", buffer, self.own, volatile=True)

    def _bind_untrained(self) -> Iterator[Bound]:
        everywhere = Holders("", self.rank, self.world)
        for parameter, name in self._untrained().items():
            if not _is_sharded(parameter):
                yield bind(f"model/{name}", parameter, everywhere)
                continue
            part = part_of_sharded(parameter, name)
            if part.begin < part.end:
                yield bind_part("model", parameter.ds_tensor, part)


def _names_of(model: nn.Module) -> dict[torch.Tensor, str]:
    return {parameter: clean(name) for name, parameter in model.named_parameters()}


def _is_sharded(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "ds_tensor")
