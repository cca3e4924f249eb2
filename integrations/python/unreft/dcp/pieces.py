"""From the items of a save plan to what the client captures."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

import unreft
from unreft.dcp.catalogue import Entry
from unreft.tensor import Dtype, Tensor
from unreft.torch.shards import device_of

# Of an item: the name, and the begin of its box.
Key = tuple[str, tuple[int, ...] | None]


@dataclasses.dataclass
class Pieces:
    """What one rank saves. `memory` keeps alive what the specs point to."""

    specs: list[Tensor]
    memory: list[torch.Tensor]
    values: dict[str, bytes]


def key_of(item: WriteItem) -> Key:
    offset = item.index.offset
    return item.index.fqn, None if offset is None else tuple(offset)


def kind_of(item: WriteItem) -> tuple:
    """What two items of one name have alike if the same bytes are saved of both."""
    data = item.tensor_data
    if data is None:
        return (key_of(item),)
    return key_of(item), data.properties.dtype, tuple(data.chunk.sizes), tuple(data.size)


def bytes_of(item: WriteItem) -> int:
    """Of its box; 0 of a value, which is not serialised yet."""
    if item.tensor_data is None:
        return 0
    element = item.tensor_data.properties.dtype.itemsize
    return element * math.prod(item.tensor_data.chunk.sizes)


def is_value(item: WriteItem) -> bool:
    return item.type == WriteItemType.BYTE_IO


@torch.no_grad()
def of_items(items: Iterable[WriteItem], resolve: Callable[[WriteItem], Any]) -> Pieces:
    """What `resolve` has of the items. Refuses by name what cannot be stored."""
    pieces = Pieces([], [], {})
    for item in items:
        if is_value(item):
            pieces.values[item.index.fqn] = resolve(item).getvalue()
        elif math.prod(item.tensor_data.chunk.sizes):
            local = resolve(item).detach()
            spec, local = _piece(item, local)
            pieces.specs.append(spec)
            pieces.memory.append(local)
    return pieces


def _piece(item: WriteItem, local: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    name, chunk = item.index.fqn, item.tensor_data.chunk
    if tuple(local.shape) != tuple(chunk.sizes):
        raise unreft.InvalidArgument(
            f"tensor '{name}': the plan says a box of {list(chunk.sizes)}, found "
            f"{list(local.shape)}"
        )
    if local.layout != torch.strided:
        raise unreft.InvalidArgument(
            f"tensor '{name}': layout {local.layout} is not supported, only strided is; make it "
            "to_dense()"
        )
    if local.device.type == "meta":
        raise unreft.InvalidArgument(
            f"tensor '{name}': it is on meta, without memory: needed one on a device or the CPU"
        )
    local = local.resolve_conj().resolve_neg().contiguous()
    if local.device.type not in ("cpu", "cuda"):
        local = local.cpu()
    device, index = device_of(local)
    spec = Tensor(
        name=name,
        dtype=Dtype.parse(str(local.dtype).removeprefix("torch."), name),
        global_shape=tuple(item.tensor_data.size),
        offset=tuple(chunk.offsets),
        extent=tuple(chunk.sizes),
        data=local.data_ptr(),
        device=device,
        device_index=index,
    )
    return spec, local


def entries_of(plan: SavePlan, rank: int) -> dict[str, Entry]:
    """The catalogue of what the plan has that rank save."""
    paths = plan.planner_data if isinstance(plan.planner_data, dict) else {}
    entries = {name: Entry(path=_path(path)) for name, path in paths.items()}
    for item in plan.items:
        entry = entries.setdefault(item.index.fqn, Entry())
        if is_value(item):
            entry.value_of = rank
        elif not math.prod(item.tensor_data.size):
            dtype = str(item.tensor_data.properties.dtype).removeprefix("torch.")
            entry.empty = (dtype, tuple(item.tensor_data.size))
    return entries


def _path(path: Any) -> tuple[str | int, ...] | None:
    is_known = isinstance(path, tuple) and all(type(part) in (str, int) for part in path)
    return path if is_known else None
