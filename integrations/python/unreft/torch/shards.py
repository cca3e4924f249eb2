"""Which box of which logical tensor a PyTorch tensor is, and which ranks hold the same box.

Names in the store:

    model/<parameter>            optim/<parameter>/<key>   the same tensor on all ranks of a set
    rank3/buffer/<buffer>        rank3/model/<parameter>   of rank 3 alone
    group4/model/<parameter>                               of a set of ranks, not all, led by rank 4
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from unreft.errors import InvalidArgument
from unreft.tensor import Device, Dtype, Tensor
from unreft.torch import dtensor_box, mesh_place
from unreft.torch.comm_hooks import CommHooks
from unreft.torch.names import clean

if dist.is_available():
    from torch.distributed.tensor import DTensor, Replicate
else:  # a build of torch without distributed
    DTensor = Replicate = ()


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
    `replaceable`: another tensor of the same kind may stand for it, since nothing else refers to
    it, as is so for an optimizer's state.
    """

    local: torch.Tensor
    spec: Tensor
    owner: torch.Tensor | None = None
    replaceable: bool = False


def uncompiled(model: nn.Module) -> nn.Module:
    """What torch.compile was given, if it has made `model`."""
    while hasattr(model, "_orig_mod"):
        model = model._orig_mod
    return model


def own_of(rank: int) -> Holders:
    """Of what that rank alone has."""
    return Holders(f"rank{rank}/", 0, 1)


class Replicas:
    """Says for each tensor which ranks hold the same bytes.

    `mode` "auto": those of DistributedDataParallel and of DTensor's replicating dimensions; "none":
    each rank's plain tensors are its own. `mesh` says where this rank is, if not the model does.
    """

    def __init__(
        self, model: nn.Module, rank: int, world: int, mode: str = "auto", mesh: Any = None
    ):
        if mode not in ("auto", "none"):
            raise InvalidArgument(f"replicas: needs 'auto' or 'none', found {mode!r}")
        self.rank = rank
        self.world = world
        self.place = mesh_place.find(model, mesh, world)
        self._own = own_of(rank)
        self._plain = Holders("", 0, 1) if world == 1 else self._own
        self._not_synchronised: frozenset[str] = frozenset()
        self._hooks: CommHooks | None = None
        model = uncompiled(model)
        if not isinstance(model, nn.parallel.DistributedDataParallel):
            return
        self._hooks = CommHooks(model, are_alike=mode == "auto")
        if mode == "auto":
            self._plain = self._of(dist.get_process_group_ranks(model.process_group))
            self._not_synchronised = frozenset(map(clean, model.parameters_to_ignore))

    def check(self) -> None:
        """Raises `InvalidArgument` where ranks that should hold the same do not."""
        if self._hooks:
            self._hooks.check()

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
        # Not to_local(), which returns a view of a parameter's that does not follow where it goes.
        bound = _bind_shard(name, tensor._local_tensor, tensor, holders.prefix, volatile)
        return dataclasses.replace(bound, owner=tensor)
    shape = tuple(tensor.shape)
    order = memory_order(tensor)
    return _bound(name, tensor, shape, (0,) * len(shape), holders, volatile, order)


@torch.no_grad()
def bind_shard(name: str, local: torch.Tensor, tensor: "DTensor", prefix: str) -> Bound:
    """A plain tensor that is laid out over the ranks as this rank's part of `tensor` is."""
    return _bind_shard(name, local, tensor, prefix, False)


def _bind_shard(
    name: str, local: torch.Tensor, tensor: "DTensor", prefix: str, volatile: bool
) -> Bound:
    mesh = tensor.device_mesh
    index, count = 0, 1
    for dimension, placement in enumerate(tensor.placements):
        if type(placement) is Replicate:
            index = index * mesh.size(dimension) + mesh.get_local_rank(dimension)
            count *= mesh.size(dimension)
    shape = tuple(tensor.shape)
    try:
        offset = dtensor_box.offset_of(tensor)
    except InvalidArgument as error:
        raise InvalidArgument(f"tensor '{name}': {error.message}") from None
    order = _order_of_shards(local, tensor)
    return _bound(name, local, shape, offset, Holders(prefix, index, count), volatile, order)


def _order_of_shards(local: torch.Tensor, tensor: "DTensor") -> tuple[int, ...] | None:
    """The order that all ranks say: a shard with one row says nothing by its strides."""
    dims = [dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1]
    order = sorted(dims, key=lambda dim: (-tensor.stride(dim), dim))
    if order == dims:
        return memory_order(local)
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), dim)))
    return order if local.permute(order).is_contiguous() else memory_order(local)


def _bound(
    name: str,
    local: torch.Tensor,
    global_shape: tuple[int, ...],
    offset: tuple[int, ...],
    holders: Holders,
    volatile: bool,
    order: tuple[int, ...] | None,
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
        memory_order=order,
    )
    return Bound(local, spec)


def fits(spec: Tensor, local: torch.Tensor) -> bool:
    """Whether a tensor may stand for the one of that spec, but for its address."""
    return (
        type(local) in (torch.Tensor, nn.Parameter)
        and tuple(local.shape) == spec.extent
        and str(local.dtype).removeprefix("torch.") == _torch_name(spec.dtype)
        and device_of(local) == (spec.device, spec.device_index)
        and memory_order(local) == spec.memory_order
        and _complaint(local) is None
    )


def memory_order(local: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions as they lie in memory, from the slowest to the fastest; None: row-major."""
    if local.layout != torch.strided or local.is_contiguous():
        return None
    return tuple(sorted(range(local.dim()), key=lambda d: (-local.stride(d), d)))


def _is_dense(local: torch.Tensor) -> bool:
    order = memory_order(local)
    return order is None or local.permute(order).is_contiguous()


def in_order(bound: Bound, order: tuple[int, ...] | None) -> Bound:
    """New memory for the same part of the tensor, with its dimensions in that order."""
    local = _empty(bound.spec.extent, order, bound.local.dtype, bound.local.device)
    spec = dataclasses.replace(bound.spec, data=local.data_ptr(), memory_order=order)
    return Bound(local, spec)


def on_host(stored: Tensor) -> Bound:
    """Memory of the host for the whole of a stored tensor, as it lies in the store."""
    shape = stored.global_shape
    local = _empty(shape, stored.memory_order, torch_dtype(stored.dtype), "cpu")
    box = {"offset": (0,) * len(shape), "extent": shape}
    return Bound(local, dataclasses.replace(stored, data=local.data_ptr(), **box))


def _empty(shape: tuple[int, ...], order: tuple[int, ...] | None, dtype: torch.dtype, device):
    """A tensor whose dimensions lie in memory in that order."""
    dims = tuple(range(len(shape))) if order is None else order
    memory = torch.empty([shape[dim] for dim in dims], dtype=dtype, device=device)
    return memory.permute([dims.index(dim) for dim in range(len(dims))])


def _torch_name(dtype: Dtype) -> str:
    name = dtype.name.lower()
    return {"float8_e4m3": "float8_e4m3fn"}.get(name, name)


def torch_dtype(dtype: Dtype) -> torch.dtype:
    return getattr(torch, _torch_name(dtype))


def device_of(local: torch.Tensor) -> tuple[Device, int]:
    """Where its bytes are, and the number of the device: 0 for the CPU."""
    if local.device.type == "cuda":
        return Device.CUDA, local.device.index
    return Device.CPU, 0


def _check(name: str, local: torch.Tensor) -> None:
    if complaint := _complaint(local):
        raise InvalidArgument(f"tensor '{name}': {complaint}")


def _complaint(local: torch.Tensor) -> str | None:
    """Why its bytes cannot be copied as they lie, with what helps; None if they can."""
    if local.layout != torch.strided:
        return f"layout {local.layout} is not supported, only strided is; make it to_dense()"
    if is_traceable_wrapper_subclass(local):
        return (
            f"tensor class {type(local).__name__} is not supported: keep it out of what is "
            "attached, or register the plain tensors that it is made of"
        )
    if local.device.type not in ("cpu", "cuda"):
        return f"it is on {local.device}: needed CPU memory or a CUDA device"
    if local.is_inference():
        return (
            "it is an inference tensor, which nothing may write outside torch.inference_mode(): "
            "make it outside, or clone() it there"
        )
    if local.is_conj() or local.is_neg():
        return (
            "a conjugated or negated view is not supported: resolve_conj() or resolve_neg() makes "
            "a plain one"
        )
    if memory_order(local) is not None and not _is_dense(local):
        return (
            f"needs dense memory, found strides {tuple(local.stride())} of shape "
            f"{tuple(local.shape)}; make it contiguous() before training"
        )
    return None


def not_empty(bounds: Iterable[Bound]) -> list[Tensor]:
    """The specs of what has bytes: there is nothing to copy of the others."""
    return [bound.spec for bound in bounds if math.prod(bound.spec.extent)]
