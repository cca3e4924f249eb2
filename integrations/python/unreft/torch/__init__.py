"""Unreft for PyTorch: three lines in a training loop.

    ck = unreft.torch.attach(model, optimizer, extras={"scheduler": scheduler})
    step = ck.restore() or 0
    while step < last:
        ...forward, backward, optimizer.step()...
        step += 1
        ck.snapshot(step)

The model's parameters and buffers, the optimizer's state, the global random generators and `extras`
are captured and restored in place.
"""

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
from torch import nn

from unreft.torch import attaching, attempt, ranks, refusals
from unreft.torch.checkpointer import Checkpointer, CheckpointerStatus
from unreft.torch.derived import Derived
from unreft.torch.derived_tensors import DerivedTensors
from unreft.torch.extras import Extras
from unreft.torch.own_tensors import EQUAL, check_mode
from unreft.torch.reshard import Reshard
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState

__all__ = ["Checkpointer", "CheckpointerStatus", "Derived", "Reshard", "attach", "peek"]


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    *,
    extras: Mapping[str, Any] | None = None,
    extras_classes: Sequence[type] = (),
    masters: Mapping[str, torch.Tensor] | None = None,
    derived: Derived | Sequence[Derived] = (),
    volatile: str | Sequence[str] = (),
    replicas: str = "auto",
    buffers: str = EQUAL,
    mesh: Any = None,
    rng: bool = True,
    required: bool = True,
    unprotected_after: float | None = None,
    **options: Any,
) -> Checkpointer:
    """Connects this rank to the node's daemon.

    Args:
      model: as it is trained, with its wrapper: DistributedDataParallel says which ranks hold the
        same parameters, so that each captures only its part of them.
      optimizer: one or several. All of their parameters are the model's, or `masters`.
      extras: other state by name. An object with `state_dict` and `load_state_dict` (a scheduler, a
        sampler) or with `get_state` and `set_state` (a torch.Generator) is restored in place; of a
        callable that returns a value, or of a container that the loop changes,
        `Checkpointer.extras` has the stored value. Small things: they are stored at every
        snapshot. A constant is refused: it would be restored as it is now for ever. `Reshard` says
        what becomes of one that differs between ranks when their number changes.
      extras_classes: what extras may be made of beside plain containers, numbers, strings, bytes,
        tensors and NumPy arrays; other classes are refused, since to read one runs its code.
      masters: tensors that an optimizer steps on in place of parameters of the model, by the names
        of these: fp32 copies of bf16 weights. They are captured as `master/<parameter>`.
      derived: what follows from other state, such as bf16 weights from their fp32 master copies,
        and is made anew at a restore instead of captured; docs/derived_state.md.
      volatile: names, or patterns with `*`, of what is written between the steps of the optimizer:
        the parameters of an embedding with max_norm, say. It is copied before `snapshot` returns.
        Buffers are volatile anyway.
      replicas: "auto", or "none": each rank's parameters are its own, also under DDP, as those of
        post-local SGD are.
      buffers: what is restored when another number of ranks stored the version: "equal", their
        buffers if all had the same, an error by name if not; "first", rank 0's.
      mesh: a torch DeviceMesh over all ranks, with names for its dimensions, for a model whose
        DTensors have none, or several. When the number of ranks changes it says who are peers, such
        as tensor-parallel ones, which go on sharing a random stream.
      rng: whether the global random generators of Python, NumPy and torch are part of the state.
      required: False: if no rank reaches a daemon, or if some do and nothing was ever committed,
        training runs unprotected after one warning. Needs a process group if there are more ranks.
      unprotected_after: seconds, from the first snapshot after the newest commit, in which another
        has to be committed: else `snapshot` raises `unreft.Unprotected`, which ends the job for its
        launcher. None: it trains on, and says so again and again.
      options: of `unreft.Client`: socket, job, rank, world, attempt, timeouts and
        device_checksum.

    With a process group all ranks attach together: they agree on the attempt's number, and tell
    each other who reaches a daemon, so that all raise if one must. Once in a process: what is to be
    captured is given in one call. After `close` it may be called again.

    Raises `unreft.Unavailable` when no daemon answers, `unreft.InvalidArgument` for what cannot be
    captured, or be derived as declared, by name; on the other ranks `unreft.Aborted`.
    """

    def prepare(rank: int, world: int) -> tuple[TrainingState, Extras, DerivedTensors]:
        check_mode(buffers)
        optimizers = refusals.as_optimizers(optimizer)
        rules = [derived] if isinstance(derived, Derived) else list(derived)
        replica_sets = Replicas(model, rank, world, replicas, mesh)
        state = TrainingState(model, optimizers, replica_sets, masters or {}, volatile)
        return state, Extras(extras or {}, extras_classes), DerivedTensors(rules, state)

    def make(client: Any, parts: tuple, **common: Any) -> Checkpointer:
        state, own_extras, derived_tensors = parts
        return Checkpointer(
            client, state, own_extras, rng, derived_tensors, buffers=buffers, **common
        )

    return attaching.attach(
        "unreft.torch.attach",
        prepare,
        make,
        required=required,
        unprotected_after=unprotected_after,
        options=options,
    )


def peek(
    *, required: bool = True, at_or_before: int | None = None, **options: Any
) -> int | None:
    """The step that `restore` will put in place, before there is a model or an optimizer.

    For what must know where training goes on before it is made: data loaders, the Trainer of
    Hugging Face. It takes the decision of this attempt, which waits for all ranks as `restore`
    does, and is the same for all; `attach` and `restore` in this process follow it. None if
    nothing was ever committed. A second call returns the same.

    Args: as of `attach`, which must be given the same `options` if it is given any, and
    `at_or_before` as of `Checkpointer.restore`. With several
    of torchrun's agents call it after torch.distributed is initialised.

    Raises what `attach` and `restore` raise.
    """
    rank, world = ranks.rank_and_world(options.get("rank"), options.get("world"))
    return attempt.peek(required, at_or_before, {**options, "rank": rank, "world": world})
