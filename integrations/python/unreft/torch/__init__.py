"""Unreft for PyTorch: three lines in a training loop.

    ck = unreft.torch.attach(model, optimizer, extras={"scheduler": scheduler})
    step = ck.restore() or 0
    while step < last:
        ...
        with ck.fence():
            optimizer.step()
        step += 1
        ck.snapshot(step)

The model's parameters and buffers, the optimizer's state, the global random generators and `extras`
are captured and restored in place.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "unreft.torch needs PyTorch, which this Python does not have: pip install 'unreft[torch]', "
        "or torch as your machine has it; unreft.Client needs no framework"
    ) from error
import torch.distributed as dist
from torch import nn

import unreft
from unreft.torch import ranks
from unreft.torch.checkpointer import Checkpointer, CheckpointerStatus
from unreft.torch.derived import Derived
from unreft.torch.derived_tensors import DerivedTensors
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState

__all__ = ["Checkpointer", "CheckpointerStatus", "Derived", "attach"]


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    *,
    extras: Mapping[str, Any] | None = None,
    masters: Mapping[str, torch.Tensor] | None = None,
    derived: Derived | Sequence[Derived] = (),
    replicas: str = "auto",
    rng: bool = True,
    required: bool = True,
    **options: Any,
) -> Checkpointer:
    """Connects this rank to the node's daemon.

    Args:
      model: as it is trained, with its wrapper: DistributedDataParallel says which ranks hold the
        same parameters, so that each captures only its part of them.
      optimizer: one or several. All of their parameters are the model's, or `masters`.
      extras: other state by name. An object with `state_dict` and `load_state_dict` (a scheduler, a
        sampler) or with `get_state` and `set_state` (a torch.Generator) is restored in place; of a
        value, or of a callable that returns one, `Checkpointer.extras` has the stored value. Small
        things: they are pickled at every snapshot.
      masters: tensors that an optimizer steps on in place of parameters of the model, by the names
        of these: fp32 copies of bf16 weights. They are captured as `master/<parameter>`.
      derived: what follows from other state, such as bf16 weights from their fp32 master copies,
        and is made anew at a restore instead of captured; docs/derived_state.md.
      replicas: "auto", or "none": each rank's parameters are its own, also under DDP.
      rng: whether the global random generators of Python, NumPy and torch are part of the state.
      required: False: without a daemon, one warning, and training runs unprotected.
      options: of `unreft.Client`: socket, job, rank, world, attempt, timeouts and
        device_checksum.

    With several of torchrun's agents all ranks attach together: they agree on the attempt's number.

    Raises `unreft.Unavailable` when no daemon answers, `unreft.InvalidArgument` for a tensor that
    cannot be captured, or be derived as declared, by name.
    """
    rank, world = _rank_and_world(options.get("rank"), options.get("world"))
    attempt = options.get("attempt")
    if attempt is None:
        attempt = ranks.common_attempt()
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    rules = [derived] if isinstance(derived, Derived) else list(derived)
    replica_sets = Replicas(model, rank, world, replicas)
    state = TrainingState(model, optimizers, replica_sets, masters or {})
    tensors = DerivedTensors(rules, state)
    try:
        client = unreft.Client(**{**options, "rank": rank, "world": world, "attempt": attempt})
    except unreft.Unavailable as error:
        if required:
            raise
        logging.getLogger("unreft").warning("training runs unprotected: %s", error)
        client = None
    return Checkpointer(client, state, Extras(extras or {}), rng, tensors)


def _rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """As given, or of the default process group, or of the launcher's environment."""
    if ranks.connected():
        found = dist.get_rank(), dist.get_world_size()
    else:
        found = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    return found[0] if rank is None else rank, found[1] if world is None else world
