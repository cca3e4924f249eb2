"""Which box of which logical tensor a PyTorch tensor is, and which ranks hold the same box.

Names in the store:

    model/<parameter>            optim/<parameter>/<key>   the same tensor on all ranks of a set
    rank3/buffer/<buffer>        rank3/model/<parameter>   of rank 3 alone
    group4/model/<parameter>                               of a set of ranks, not all, led by rank 4
"""

import dataclasses
import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from unreft.errors import InvalidArgument
from unreft.tensor import Device, Dtype, Tensor

if dist.is_available():
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
else:  # a build of torch without distributed
    DTensor = Replicate = Shard = ()


@dataclasses.dataclass(frozen=True)
class Holders:
    """The ranks that hold the same bytes, this rank's place among them, and the prefix of names."""

    prefix: str
    index: int
    count: int


@dataclasses.dataclass(frozen=True)
class Bound:
    """A live tensor, and what the store knows it as.

    `local` is the memory of this rank; `owner` the DTensor that it is a part of, if it is one's.
    """

    local: torch.Tensor
    spec: Tensor
    owner: torch.Tensor | None = None


def uncompiled(model: nn.Module) -> nn.Module:
    """What torch.compile was given, if it has made `model`."""
    while hasattr(model, "_orig_mod"):
        model = model._orig_mod
    return model


class Replicas:
    """Says for each tensor which ranks hold the same bytes.

    `mode` "auto": those of DistributedDataParallel and of DTensor's replicating dimensions; "none":
    each rank's plain tensors are its own.
    """

    def __init__(self, model: nn.Module, rank: int, world: int, mode: str = "auto"):
        if mode not in ("auto", "none"):
            raise InvalidArgument(f"replicas: needs 'auto' or 'none', found {mode!r}")
        self.rank = rank
        self.world = world
        self._own = Holders(f"rank{rank}/", 0, 1)
        self._plain = Holders("", 0, 1) if world == 1 else self._own
        self._not_synchronised: frozenset[str] = frozenset()
        if mode == "auto" and dist.is_available():
            model = uncompiled(model)
            if isinstance(model, nn.parallel.DistributedDataParallel):
                self._plain = self._of(dist.get_process_group_ranks(model.process_group))
                self._not_synchronised = frozenset(model.parameters_to_ignore)

    def own(self) -> Holders:
        """Of state that no other rank has."""
        return self._own

    def of_plain(self, parameter: str) -> Holders:
        """Of a parameter, or of its optimizer state, that is an ordinary tensor."""
        return self._own if parameter in self._not_synchronised else self._plain

    def of_mesh(self, mesh) -> Holders:
        """Of what all ranks of a device mesh hold alike."""
        return self._of(mesh.mesh.flatten().tolist())

    def _of(self, ranks: list[int]) -> Holders:
        prefix = "" if len(ranks) == self.world else f"group{min(ranks)}/"
        return Holders(prefix, ranks.index(self.rank), len(ranks))


@torch.no_grad()
def bind(name: str, tensor: torch.Tensor, holders: Holders, volatile: bool = False) -> Bound:
    """What `tensor` is in the store. Refuses by name what cannot be copied as it lies in memory."""
    if isinstance(tensor, DTensor):
        # Its mesh says who holds what; `holders` is about ordinary tensors.
        return _bind_dtensor(name, tensor, holders.prefix, volatile)
    shape = tuple(tensor.shape)
    return _bound(name, tensor, shape, (0,) * len(shape), holders, volatile)


def _bind_dtensor(name: str, tensor: "DTensor", prefix: str, volatile: bool) -> Bound:
    mesh = tensor.device_mesh
    index, count = 0, 1
    for dimension, placement in enumerate(tensor.placements):
        # Exact types: what derives from Shard lays its pieces out in another order.
        if type(placement) is Replicate:
            index = index * mesh.size(dimension) + mesh.get_local_rank(dimension)
            count *= mesh.size(dimension)
        elif type(placement) is not Shard:
            raise InvalidArgument(f"tensor '{name}': placement {placement} is not supported")
    shape = tuple(tensor.shape)
    _, offset = compute_local_shape_and_global_offset(shape, mesh, tensor.placements)
    # Not to_local(), which returns a view of a parameter's that does not follow where it goes.
    bound = _bound(
        name,
        tensor._local_tensor,
        shape,
        tuple(offset),
        Holders(prefix, index, count),
        volatile,
    )
    return dataclasses.replace(bound, owner=tensor)


def _bound(
    name: str,
    local: torch.Tensor,
    global_shape: tuple[int, ...],
    offset: tuple[int, ...],
    holders: Holders,
    volatile: bool,
) -> Bound:
    name = holders.prefix + name
    _check(name, local)
    spec = Tensor(
        name=name,
        dtype=Dtype.parse(str(local.dtype).removeprefix("torch."), name),
        global_shape=global_shape,
        offset=offset,
        extent=tuple(local.shape),
        data=local.data_ptr(),
        device=device_of(local)[0],
        device_index=device_of(local)[1],
        replica_index=holders.index,
        replica_count=holders.count,
        volatile=volatile,
    )
    return Bound(local, spec)


def device_of(local: torch.Tensor) -> tuple[Device, int]:
    """Where its bytes are, and the number of the device: 0 for the CPU."""
    if local.device.type == "cuda":
        return Device.CUDA, local.device.index
    return Device.CPU, 0


def _check(name: str, local: torch.Tensor) -> None:
    subject = f"tensor '{name}'"
    if local.layout != torch.strided:
        raise InvalidArgument(f"{subject}: layout {local.layout} is not supported, only strided is")
    if is_traceable_wrapper_subclass(local):
        raise InvalidArgument(f"{subject}: tensor class {type(local).__name__} is not supported")
    if local.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(
            f"{subject} is on {local.device}: needed CPU memory or a CUDA device"
        )
    if local.is_conj() or local.is_neg():
        raise InvalidArgument(f"{subject}: a conjugated or negated view is not supported")
    if not local.is_contiguous():
        raise InvalidArgument(
            f"{subject}: needs row-major memory, found strides {tuple(local.stride())} of shape "
            f"{tuple(local.shape)}; make it contiguous() before training"
        )


def not_empty(bounds: Iterable[Bound]) -> list[Tensor]:
    """The specs of what has bytes: there is nothing to copy of the others."""
    return [bound.spec for bound in bounds if math.prod(bound.spec.extent)]
