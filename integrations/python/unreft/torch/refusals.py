"""What is refused before anything is captured, since it could not be restored as it was."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from unreft.errors import InvalidArgument
from unreft.torch.shards import DTensor

_DEEPSPEED = (
    "What is trained lies in the flat partitions of DeepSpeed's ZeRO, which "
    "unreft.deepspeed.attach(engine) captures"
)
_MEGATRON = (
    "What it steps on lies in parts of the buckets of Megatron-Core, which "
    "unreft.mcore.attach(model_chunks, optimizer) captures"
)


def check_model(model: nn.Module) -> None:
    """Raises `InvalidArgument` for a model that DeepSpeed or FSDP1 has taken over."""
    for part in model.modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            raise InvalidArgument(
                "model: FullyShardedDataParallel (FSDP1) lets parameters lie elsewhere in forward "
                "and backward than between steps: shard it by fully_shard (FSDP2) instead, with "
                "accelerate by fsdp_version=2"
            )
        if _is_of("deepspeed", part) and type(part).__name__.endswith("Engine"):
            raise InvalidArgument(f"model: {type(part).__name__} is an engine. {_DEEPSPEED}")
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


def check_state(optimizer: torch.optim.Optimizer) -> None:
    """Raises `InvalidArgument` for state of something else than a parameter of a group, and for
    sharded state that is cut otherwise than its parameter: nobody would know how to make it."""
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
            if isinstance(value, DTensor) and value.ndim and value.shape != key.shape:
                raise InvalidArgument(
                    f"{kind}: the state '{name}' of a parameter of shape {tuple(key.shape)} is a "
                    f"DTensor of shape {tuple(value.shape)}; needed one of the parameter's shape. "
                    "Take an optimizer whose state has the shape of its parameters, or train "
                    "without FSDP2"
                )


def _is_of(package: str, value: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == package for cls in type(value).__mro__)
