"""What is refused before anything is captured, since it could not be restored as it was."""

import functools
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from unreft.errors import InvalidArgument
from unreft.torch.shards import DTensor

_log = logging.getLogger("unreft")

_DEEPSPEED = (
    "What is trained lies in the flat partitions of DeepSpeed's ZeRO, which "
    "unreft.deepspeed.attach(engine) captures"
)
_MEGATRON = (
    "What it steps on lies in parts of the buckets of Megatron-Core, which "
    "unreft.mcore.attach(model_chunks, optimizer) captures"
)


def check_model(model: nn.Module) -> None:
    """Raises `InvalidArgument` for a model that DeepSpeed, FSDP1 or TorchScript has taken over, or
    that does not have its parameters yet."""
    for part in model.modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            raise InvalidArgument(
                "model: FullyShardedDataParallel (FSDP1) lets parameters lie elsewhere in forward "
                "and backward than between steps: shard it by fully_shard (FSDP2) instead, with "
                "accelerate by fsdp_version=2"
            )
        if _is_of("deepspeed", part) and type(part).__name__.endswith("Engine"):
            raise InvalidArgument(f"model: {type(part).__name__} is an engine. {_DEEPSPEED}")
        if isinstance(part, torch.jit.ScriptModule):
            raise InvalidArgument(
                f"model: {type(part).__name__} ({part.original_name}) is of TorchScript, whose "
                "parameters and buffers cannot be followed: train the module that it was made "
                "from, by torch.compile if that is for speed"
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise InvalidArgument(
                f"model: '{name}' of a lazy module has no shape yet: run one forward pass before "
                "attach()"
            )
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise InvalidArgument(f"parameter '{name}' is partitioned by ZeRO-3. {_DEEPSPEED}")
        if hasattr(parameter, "_hp_mapping"):
            raise InvalidArgument(
                f"parameter '{name}' has its fp32 copy in a partition of ZeRO-1 or 2. {_DEEPSPEED}"
            )


def as_optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    """One optimizer or several as a list; raises `InvalidArgument` for what is not one."""
    if isinstance(optimizer, torch.optim.Optimizer):
        given = [optimizer]
    elif isinstance(optimizer, Iterable):
        given = list(optimizer)
    else:
        given = [optimizer]
    for each in given:
        if _is_of("deepspeed", each):
            raise InvalidArgument(f"optimizer: {type(each).__name__} is DeepSpeed's. {_DEEPSPEED}")
        if _is_of("megatron", each):
            raise InvalidArgument(f"optimizer: {type(each).__name__} is Megatron's. {_MEGATRON}")
        if not isinstance(each, torch.optim.Optimizer):
            raise InvalidArgument(
                f"optimizer: needed torch.optim.Optimizer objects, found a {type(each).__name__}: "
                "pass the optimizer of torch that it wraps, or pass it in `extras` if it is small "
                "and has state_dict and load_state_dict"
            )
        if type(each).__name__ == "ZeroRedundancyOptimizer":
            raise InvalidArgument(
                "optimizer: ZeroRedundancyOptimizer keeps other ranks' state nowhere that could be "
                "captured in time: use FSDP2 (fully_shard), which shards it too"
            )
    return given


def check_state(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str] | None = None
) -> None:
    """Raises `InvalidArgument` for state of something else than a parameter of a group, for what
    would come back as something else, and for sharded state that is cut otherwise than its
    parameter: nobody would know how to make it. Warns of what comes back as copies.

    `names`: of the parameters of the model.
    """
    stepped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    kind = type(optimizer).__name__
    for key in optimizer.state:
        if not isinstance(key, torch.Tensor):
            raise InvalidArgument(
                f"{kind}: state under {key!r} is not supported, only that of a parameter is: keep "
                "it in an object that `extras` is given"
            )
        if key not in stepped:
            raise InvalidArgument(
                f"{kind}: it has state of a tensor of shape {tuple(key.shape)} that is in none of "
                "its parameter groups, so that nothing names it: attach the optimizer that this "
                "one wraps, or put the tensor into a parameter group"
            )
        for name, value in optimizer.state[key].items():
            if not isinstance(name, str):
                raise InvalidArgument(
                    f"{kind}: state of a parameter is under {name!r}, a {type(name).__name__}: "
                    "needed keys that are strings, by which it is stored and restored"
                )
            if isinstance(value, DTensor) and value.ndim and value.shape != key.shape:
                raise InvalidArgument(
                    f"{kind}: the state '{name}' of a parameter of shape {tuple(key.shape)} is a "
                    f"DTensor of shape {tuple(value.shape)}; needed one of the parameter's shape. "
                    "Take an optimizer whose state has the shape of its parameters, or train "
                    "without FSDP2"
                )
    _check_shared(optimizer, names or {})


def _check_shared(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
    """Each place of a tensor comes back as a tensor of its own."""
    kind = type(optimizer).__name__
    seen: set[torch.Tensor] = set()
    for state in optimizer.state.values():
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            is_parameter = value in names or value in optimizer.state
            if value in seen and value.dim() == 0:
                raise InvalidArgument(
                    f"{kind}: its state '{key}' is one tensor for several parameters, which a "
                    "restore would make several tensors of, and a step that counts in one would "
                    "count in none of the others: keep it in the parameter group instead, whose "
                    "tensors are restored in place"
                )
            if value in seen or is_parameter:
                _warn_of_copies(kind, key, is_parameter)
            seen.add(value)


@functools.lru_cache(maxsize=64)  # once each
def _warn_of_copies(kind: str, key: str, is_parameter: bool) -> None:
    what = "a parameter itself" if is_parameter else "in several places one tensor"
    _log.warning(
        "%s: its state '%s' is %s, of which a restore makes copies: that is good for what is only "
        "read. What steps change belongs into the parameter group, or into `extras`",
        kind,
        key,
        what,
    )


def _is_of(package: str, value: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == package for cls in type(value).__mro__)
