"""The tensors of an optimizer's state: which box of which tensor each is, and how one is made.

The state of a DTensor is mostly made of DTensors. An optimizer that steps on `to_local()` keeps
plain tensors instead: what has the shape of the rank's part is that part, and anything else is the
rank's own, since nothing says that other ranks have the same.
"""

from collections.abc import Iterable
from typing import Any

import torch

from unreft.tensor import Tensor
from unreft.torch.shards import Bound, DTensor, Holders, Replicate, bind, bind_shard, torch_dtype

# These follow from the number of steps alone: torch's optimizers keep them as plain scalars.
_COUNTS = ("step", "eta", "mu", "mu_product")


def is_shard(value: Any, parameter: torch.Tensor) -> bool:
    """Whether it is a plain tensor with a value for each element of this rank's part."""
    return (
        isinstance(parameter, DTensor)
        and isinstance(value, torch.Tensor)
        and not isinstance(value, DTensor)
        and value.dim() > 0
        and value.shape == parameter._local_tensor.shape
    )


def bind_value(
    head: str,
    key: str,
    value: torch.Tensor,
    parameter: torch.Tensor,
    holders: Holders,
    own: Holders,
) -> Bound:
    """The state `key` of a parameter, as `<head>/<key>`.

    `holders`: of the parameter; `own`: of what no other rank has.
    """
    name = f"{head}/{key}"
    if is_shard(value, parameter):
        return bind_shard(name, value, parameter, holders.prefix)
    is_count = key in _COUNTS and value.dim() == 0
    if is_sharded(parameter) and not isinstance(value, DTensor) and not is_count:
        return bind(name, value, own)
    return bind(name, value, holders)


def make_value(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: torch.Tensor,
    key: str,
    stored: Tensor,
    *,
    is_own: bool,
) -> torch.Tensor:
    """The live tensor for a stored one: the one there is, or as the optimizer makes it.

    `is_own`: it is this rank's alone, of a parameter of which other ranks have parts.
    """
    dtype = torch_dtype(stored.dtype)
    of_parameter = not is_own and tuple(parameter.shape) == stored.global_shape
    live = optimizer.state[parameter].get(key) if parameter in optimizer.state else None
    if isinstance(live, torch.Tensor) and live.dtype == dtype:
        if tuple(live.shape) == stored.global_shape or of_parameter and is_shard(live, parameter):
            return live
    if of_parameter and stored.global_shape:
        return torch.zeros_like(parameter, dtype=dtype)
    # The step count stays on the CPU unless the optimizer's kernel reads it.
    on_device = key != "step" or group.get("fused") or group.get("capturable")
    device = parameter.device if on_device else "cpu"
    return torch.zeros(stored.extent, dtype=dtype, device=device)


def shards_of(states: Iterable[tuple[str, torch.Tensor, dict]]) -> dict[str, list[str]]:
    """By the name of a parameter, the keys of its state that are plain tensors of its part.

    `states`: name, parameter and state of each.
    """
    found = {}
    for name, parameter, state in states:
        if keys := [key for key, value in state.items() if is_shard(value, parameter)]:
            found[name] = keys
    return found


def make_plain(state: dict[str, Any], keys: Iterable[str]) -> None:
    """Has the optimizer find those values as it had left them: not as DTensors."""
    for key in keys:
        if isinstance(state.get(key), DTensor):
            state[key] = state[key]._local_tensor


def is_sharded(parameter: torch.Tensor) -> bool:
    return isinstance(parameter, DTensor) and any(
        type(placement) is not Replicate for placement in parameter.placements
    )
