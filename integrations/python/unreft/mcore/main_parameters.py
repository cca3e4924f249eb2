"""What Megatron-Core's optimizers step on, and of which parameters: all that is read of their
insides.

A DistributedOptimizer has of each parameter the elements that lie in this data-parallel rank's part
of a bucket, as a flat tensor of their own where the parameter is bf16, and as a view of the
parameter where it is fp32. The others step on whole parameters, or on whole fp32 copies of them.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core.optimizer import ChainedOptimizer, DistributedOptimizer
from megatron.core.optimizer.optimizer import FP32Optimizer, Float16OptimizerWithFloat16Params

from unreft.errors import FailedPrecondition

KINDS = (DistributedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer)


@dataclasses.dataclass(frozen=True)
class Main:
    """`main` is what the optimizer steps on: of `parameter` the elements [begin, end), in row-major
    order. It is fp32, and of shape (elements,) or of the parameter's. `on_all_data_parallel`: all
    data-parallel ranks step on the same elements, else each on others."""

    parameter: torch.Tensor
    main: torch.Tensor
    begin: int
    end: int
    on_all_data_parallel: bool


def optimizers_of(optimizer: Any) -> list[Any]:
    """Those of Megatron-Core that have an optimizer of torch, which is their `optimizer`."""
    chained = isinstance(optimizer, ChainedOptimizer)
    return list(optimizer.chained_optimizers) if chained else [optimizer]


def mains_of(optimizer: Any) -> list[Main]:
    """Of one of `optimizers_of`. Raises `FailedPrecondition` where it is not made as it was in the
    release that this was tried with."""
    kind = type(optimizer).__name__
    try:
        found = list(_mains(optimizer))
        stepped = {p for group in optimizer.optimizer.param_groups for p in group["params"]}
    except (AttributeError, KeyError, TypeError) as error:
        raise FailedPrecondition(f"{kind}: what it steps on was not found: {error!r}") from error
    for each in found:
        if each.main.dtype != torch.float32:
            raise FailedPrecondition(
                f"{kind}: it steps on {str(each.main.dtype).removeprefix('torch.')} parameters, "
                "needed float32: with bf16=True in the OptimizerConfig it has float32 ones of each"
            )
        if each.main.numel() != each.end - each.begin or each.main not in stepped:
            raise FailedPrecondition(
                f"{kind}: of a parameter of shape {tuple(each.parameter.shape)} it was to step on "
                f"the elements [{each.begin}, {each.end}), found {tuple(each.main.shape)}"
            )
    if len(found) != len(stepped):
        raise FailedPrecondition(
            f"{kind}: it steps on {len(stepped)} tensors, {len(found)} of which are parameters' of "
            "the model"
        )
    return found


def renew_weights(chunks: Sequence[Any], optimizer: Any) -> None:
    """Makes the weights that the model computes with from what the optimizers step on. All ranks
    call it together."""
    for each in optimizers_of(optimizer):
        if not isinstance(each, FP32Optimizer):
            each._copy_main_params_to_model_params()
    for chunk in chunks:
        if chunk.ddp_config.use_distributed_optimizer:
            chunk.start_param_sync(force_sync=True)


def _mains(optimizer: Any) -> Iterator[Main]:
    if isinstance(optimizer, DistributedOptimizer):
        for parameter, main in _pairs(
            (optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups),
            (optimizer.model_fp32_groups, optimizer.shard_fp32_groups),
        ):
            own = optimizer._get_model_param_range_map(parameter)["param"]
            yield Main(parameter, main, own.start, own.end, False)
        return
    if isinstance(optimizer, FP32Optimizer):
        groups = [group["params"] for group in optimizer.optimizer.param_groups]
        pairs = _pairs((groups, groups))
    else:
        pairs = _pairs(
            (optimizer.float16_groups, optimizer.fp32_from_float16_groups),
            (optimizer.fp32_from_fp32_groups, optimizer.fp32_from_fp32_groups),
        )
    for parameter, main in pairs:
        yield Main(parameter, main, 0, parameter.numel(), True)


def _pairs(*groups: tuple[list, list]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for parameters, mains in groups:
        for of_group, mains_of_group in zip(parameters, mains, strict=True):
            yield from zip(of_group, mains_of_group, strict=True)
