"""Which elements of which parameters a rank has in its flat partitions.

ZeRO lays the parameters of a group one behind the other and cuts them for the ranks, without regard
to rows. What is padded lies behind the last element of a group (stages 1 and 2) or of a parameter
(stage 3) and is no element of any parameter, so that it is never stored.
"""

from collections.abc import Mapping
from typing import Any

import torch

from unreft.errors import FailedPrecondition
from unreft.torch.parts import Part, Stepped, box


def partitions_of(optimizer: Any, names: Mapping[torch.Tensor, str]) -> list[Stepped]:
    """Those of a ZeRO optimizer, each of shape (elements,); `names`: of the parameters."""
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        _check_groups(optimizer.optimizer, len(optimizer.single_partition_of_fp32_groups))
        return _of_stage_1_or_2(optimizer, names)
    groups = optimizer.sub_group_to_group_id.values()
    _check_groups(optimizer.optimizer, 1 + max(groups, default=-1))
    return _of_stage_3(optimizer, names)


def groups_of(optimizer: Any) -> list[list[torch.Tensor]]:
    """The parameters that a ZeRO optimizer trains."""
    if hasattr(optimizer, "bit16_groups"):
        return optimizer.bit16_groups
    return optimizer.fp16_groups  # of stage 3


def _check_groups(inner: torch.optim.Optimizer, needed: int) -> None:
    if (found := len(inner.param_groups)) < needed:
        raise FailedPrecondition(
            f"{type(inner).__name__}: ZeRO has partitions of {needed} parameter groups, and it "
            f"steps on {found}: DeepSpeed has made it anew with one for all, as it does with "
            "torch's Adagrad; give it one group"
        )


def _of_stage_1_or_2(optimizer: Any, names: Mapping[torch.Tensor, str]) -> list[Stepped]:
    found = []
    flats = optimizer.single_partition_of_fp32_groups
    for group, (flat, parameters) in enumerate(zip(flats, groups_of(optimizer))):
        shapes = {names[each]: box(each.shape) for each in parameters}
        parts = []
        for parameter in parameters:
            mapping = parameter._hp_mapping
            if mapping is None:  # all of it is other ranks'
                continue
            begin, count = mapping.lp_fragment_address.start, mapping.lp_fragment_address.numel
            name, start = names[parameter], mapping.hp_fragment_address.start
            parts.append(Part(name, shapes[name], begin, begin + count, start))
        found.append(Stepped(optimizer.optimizer, group, flat, shapes, parts, parts))
    return found


def _of_stage_3(optimizer: Any, names: Mapping[torch.Tensor, str]) -> list[Stepped]:
    found = []
    flats = optimizer.fp32_partitioned_groups_flat
    for index, (flat, parameters) in enumerate(zip(flats, groups_of(optimizer))):
        parts, start = [], 0
        for parameter in parameters:
            part = part_of_sharded(parameter, names[parameter], start)
            start += parameter.ds_tensor.ds_numel
            if part.begin < part.end:
                parts.append(part)
        shapes = {names[each]: box(each.ds_shape) for each in parameters}
        group = optimizer.sub_group_to_group_id[index]
        found.append(Stepped(optimizer.optimizer, group, flat, shapes, parts, parts))
    return found


def part_of_sharded(parameter: torch.Tensor, name: str, start: int = 0) -> Part:
    """What this rank has of a parameter that stage 3 has cut into as many equal parts as there are
    ranks, the last of them padded."""
    rank = torch.distributed.get_rank(parameter.ds_process_group)
    size, elements = parameter.ds_tensor.ds_numel, parameter.ds_numel
    begin, end = (min(elements, size * each) for each in (rank, rank + 1))
    return Part(name, box(parameter.ds_shape), begin, end, start)
