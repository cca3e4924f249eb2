"""CapturedState: what a Checkpointer needs of the state that it restores and captures.

`unreft.torch.state.TrainingState` is that of a model and its optimizers as torch has them; others,
of optimizers that step on parts of tensors, are made of `unreft.torch.parts_state.PartsState`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from unreft.tensor import Tensor
from unreft.torch.mesh_place import Place
from unreft.torch.shards import Bound, Holders
from unreft.torch.watch import Watch


class CapturedState(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def place(self) -> Place | None: ...

    @property
    def own(self) -> Holders:
        """Of what no other rank has."""

    def steps_on(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer changes a tensor that is captured when it steps."""

    def lacking(self, stepped: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        """Those that keep state of a captured tensor, which is not captured."""

    def trained(self) -> list[torch.Tensor]:
        """What changes when an attached optimizer steps, and else does not."""

    def live(self) -> list[Bound]:
        """Everything, where it lies now."""

    def without_state(self) -> set[str]:
        """The parameters, as `optim/<parameter>`, that have no optimizer state yet."""

    # --- capture ---

    def bind(self) -> list[Bound]:
        """Everything that a snapshot captures, as it is now."""

    def watch(self, bounds: Sequence[Bound]) -> Watch:
        """Of what the last `bind` returned."""

    def remember_buffers(self) -> None:
        """Before the loop: then the first `bind` knows which buffers the forward pass replaces."""

    def steps_on_known(self) -> bool:
        """Whether the optimizers step on what they did; False when that needs another `bind`."""

    def refresh(self) -> bool:
        """To be called before each snapshot; False when it needs another `bind`."""

    def module_extras(self) -> dict[str, Any]:
        """What modules give of themselves, by name; of the modules that the last `bind` found."""

    def optimizer_scalars(self, known: bool) -> list[dict[str, Any]]:
        """Hyperparameters and plain values of the states, of each optimizer.

        `known`: the watch of the last `bind` says that nothing has changed since the last call.
        """

    # --- dry run ---

    def live_without_optimizers(self) -> list[Bound]: ...
    def places_of_optimizer_state(self) -> list[Bound]: ...

    # --- restore ---

    def names(self) -> list[str]:
        """Those of everything that lives now."""

    def bind_for_restore(self, stored: Sequence[Tensor]) -> list[Bound]:
        """The live tensors for what is stored; optimizer state that is not there yet is made.

        Fails, naming them, when a tensor lacks or differs on either side.
        """

    def check_scalars(self, scalars: dict[str, Any]) -> None:
        """Fails when what is stored of optimizers, or modules, is of others than these."""

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        """Of the optimizers and modules that `check_scalars` has compared."""
