"""ModelCheckpointer: a Checkpointer of a rank that has a place in Megatron-Core's parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import unreft
from unreft.mcore.main_parameters import renew_weights
from unreft.torch.checkpointer import Checkpointer
from unreft.torch.mesh_place import read_place
from unreft.torch.own_tensors import EQUAL
from unreft.torch.reshape import Reshaped
from unreft.torch.stored_state import StoredState


class ModelCheckpointer(Checkpointer):
    """Made by `unreft.mcore.attach`. The loop calls `snapshot` after the optimizer's step and the
    scheduler's; the fence before a step of the optimizer is set by itself."""

    def __init__(self, chunks: Sequence[Any], optimizer: Any, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._chunks = chunks
        self._optimizer = optimizer

    def restore(self, *, at_or_before: int | None = None) -> int | None:
        """As of `unreft.torch.Checkpointer`. `status.reshaped_from` is the number of ranks that
        stored it also where as many restore it under other sizes of parallelism."""
        step = super().restore(at_or_before=at_or_before)
        if step is not None:
            # Here all ranks have read theirs: they tell each other the weights.
            with torch.no_grad():
                renew_weights(self._chunks, self._optimizer)
        return step

    def _stored(self, decision: unreft.Decision) -> StoredState | Reshaped:
        """A rank takes what one stored at its place, or else what is made of all ranks'."""
        if decision.source_world == self._state.world:
            stored = StoredState(self._client, decision, self._state, self._aside, self._extras)
            mesh = stored.record.get("mesh")
            if mesh is None or read_place(mesh) == self._state.place:
                return stored
        return Reshaped(
            self._client, decision, self._state, self._extras, with_rng=False, buffers=EQUAL
        )
