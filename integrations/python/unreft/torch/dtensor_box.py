"""Which box of the whole a DTensor's local part is."""

import torch
import torch.distributed as dist

from unreft.errors import InvalidArgument

if dist.is_available():
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

_STRIDED = "_StridedShard"


def offset_of(tensor) -> tuple[int, ...]:
    """Where the local part begins, by dimension.

    Raises `InvalidArgument` for a placement whose parts are no boxes, or that is not known.
    """
    # Exact types: what derives from Shard lays its pieces out in another order.
    is_strided = False
    for placement in tensor.placements:
        is_strided |= type(placement).__name__ == _STRIDED
        if type(placement) not in (Replicate, Shard) and type(placement).__name__ != _STRIDED:
            raise InvalidArgument(
                f"its DTensor placement {type(placement).__name__} is not supported, only Shard "
                "and Replicate are"
            )
    if is_strided:
        return _offset_of_strided(tensor)
    _, offset = compute_local_shape_and_global_offset(
        tuple(tensor.shape), tensor.device_mesh, tensor.placements
    )
    return tuple(offset)


def _offset_of_strided(tensor) -> tuple[int, ...]:
    """FSDP2 on top of tensor parallelism shards a dimension twice, of the mesh's dimensions the
    inner one first: each of the `split_factor` parts of tensor parallelism by itself."""
    mesh = tensor.device_mesh
    places = [torch.arange(size) for size in tensor.shape]
    for dimension, placement in enumerate(tensor.placements):
        if type(placement) is Replicate:
            continue
        count, own = mesh.size(dimension), mesh.get_local_rank(dimension)
        parts = _chunks(places[placement.dim], getattr(placement, "split_factor", 1))
        places[placement.dim] = torch.cat([_chunks(part, count)[own] for part in parts])
    sizes = tuple(len(of_dim) for of_dim in places)
    if sizes != tuple(tensor._local_tensor.shape):
        raise InvalidArgument(
            f"its placements {tensor.placements} give this rank a part of {list(sizes)}, found "
            f"one of {list(tensor._local_tensor.shape)}"
        )
    for of_dim in places:
        if len(of_dim) and int(of_dim[-1] - of_dim[0]) >= len(of_dim):
            raise InvalidArgument(
                f"its placements {tensor.placements} ({_STRIDED}) give ranks parts that are no "
                "boxes: shard it by tensor parallelism first and by FSDP2 after that, or by one "
                "of the two"
            )
    return tuple(int(of_dim[0]) if len(of_dim) else 0 for of_dim in places)


def _chunks(places: torch.Tensor, count: int) -> list[torch.Tensor]:
    """As torch.chunk, but so many in any case: the last ones may be empty."""
    size = -(-len(places) // count)
    return [places[part * size : (part + 1) * size] for part in range(count)]
