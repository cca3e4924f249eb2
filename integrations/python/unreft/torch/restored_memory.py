"""Reads what a decision restores into memory: that of live tensors, or by way of other memory."""

from typing import Any

import torch

import unreft
from unreft.torch.device_extras import DeviceExtras
from unreft.torch.shards import Bound, in_order, not_empty, on_host


def read_tensors(client: Any, bounds: list[Bound], decision: unreft.Decision) -> None:
    """Where the stored dimensions lie in another order than the live ones, they are permuted."""
    orders = {tensor.name: tensor.memory_order for tensor in decision.tensors}
    targets, turned = [], []
    for bound in bounds:
        order = orders.get(bound.spec.name)
        if bound.local.numel() and order != bound.spec.memory_order:
            target = in_order(bound, order)
            turned.append((bound.local, target.local))
            bound = target
        targets.append(bound)
    client.restore_read(not_empty(targets))
    with torch.no_grad():
        for live, read in turned:
            live.copy_(read)


def read_aside(client: Any, aside: DeviceExtras, decision: unreft.Decision) -> torch.Tensor | None:
    """What the extras had on a device, in memory of the host; None where they had nothing."""
    targets = [aside.target(tensor) for tensor in decision.tensors if aside.is_ours(tensor)]
    if not targets:
        return None
    client.restore_read([target.spec for target in targets])
    return targets[0].local


def read_whole(client: Any, stored: unreft.Tensor) -> torch.Tensor:
    """A stored tensor in memory of the host."""
    bound = on_host(stored)
    client.restore_read(not_empty([bound]))
    return bound.local
