"""Place: where a rank is in a device mesh over all ranks, by the names of the dimensions.

A rank's number says nothing about who its peers are; its place does: tensor-parallel peers differ
in one coordinate alone. It is stored rank by rank, so that another world can tell by what the ranks
differed.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from unreft.errors import DataLoss, InvalidArgument

if dist.is_available():
    from torch.distributed.tensor import DTensor
else:  # a build of torch without distributed
    DTensor = ()


@dataclasses.dataclass(frozen=True)
class Place:
    """Along a dimension that the mesh does not have there is one rank, as it is over all ranks."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    at: tuple[int, ...]  # this rank's coordinates

    def size(self, name: str) -> int:
        return self.sizes[self.names.index(name)] if name in self.names else 1

    def index(self, name: str) -> int:
        return self.at[self.names.index(name)] if name in self.names else 0

    def wide(self) -> dict[str, int]:
        """The dimensions along which there are several ranks, with their sizes."""
        return {name: size for name, size in zip(self.names, self.sizes) if size > 1}

    def record(self) -> dict[str, Any]:
        return dict(vars(self))

    def __str__(self) -> str:
        """The mesh, as messages say it."""
        return ", ".join(f"{name} {size}" for name, size in zip(self.names, self.sizes))


ALONE = Place((), (), ())  # in a world of one rank


def find(model: nn.Module, mesh: Any, world: int) -> Place | None:
    """This rank's place in the mesh that the user gives, or else in that of the model's DTensors,
    if these have one over all ranks, and only one.

    Raises `InvalidArgument` for a mesh of the user's that says nothing.
    """
    if mesh is None:
        return _of_model(model, world)
    place = _of_mesh(mesh, world)
    if place is None:
        names = getattr(mesh, "mesh_dim_names", None)
        raise InvalidArgument(
            f"mesh: needed a torch DeviceMesh over all {world} ranks whose dimensions have names "
            f"(init_device_mesh(..., mesh_dim_names=...)), found a {type(mesh).__name__} of shape "
            f"{tuple(getattr(mesh, 'shape', ()))}, names {names}"
        )
    return place


def _of_model(model: nn.Module, world: int) -> Place | None:
    if world == 1:
        return ALONE
    meshes = {p.device_mesh for p in model.parameters() if isinstance(p, DTensor)}
    places = {_of_mesh(mesh, world) for mesh in meshes} - {None}
    return places.pop() if len(places) == 1 else None


def _of_mesh(mesh: Any, world: int) -> Place | None:
    names = getattr(mesh, "mesh_dim_names", None)
    if not names or sorted(mesh.mesh.flatten().tolist()) != list(range(world)):
        return None
    at = mesh.get_coordinate()
    return None if at is None else Place(tuple(names), tuple(mesh.mesh.shape), tuple(at))


def stored_places(records: Sequence[Any]) -> list[Place] | str:
    """Those of all ranks that stored a version, from what `record` gave of each, or None.

    Where they are no places in one mesh: why.
    """
    if without := [rank for rank, record in enumerate(records) if record is None]:
        if len(records) == 1:
            return [ALONE]
        return f"rank {without[0]} stored no place in a device mesh"
    places = list(map(read_place, records))
    first = places[0]
    for rank, place in enumerate(places):
        if (place.names, place.sizes) != (first.names, first.sizes):
            return f"rank 0 stored a place in a mesh of {first}, rank {rank} in one of {place}"
    if len({place.at for place in places}) != len(places) or math.prod(first.sizes) != len(places):
        return f"{len(places)} ranks stored places that are not those of a mesh of {first}"
    return places


def read_place(record: Any) -> Place:
    """What `record` gave; raises `DataLoss` for anything else."""
    try:
        place = Place(**{key: tuple(value) for key, value in record.items()})
        good = (
            len(set(place.names)) == len(place.names) == len(place.sizes) == len(place.at)
            and all(type(name) is str for name in place.names)
            and all(type(number) is int for number in (*place.sizes, *place.at))
            and all(0 <= index < size for index, size in zip(place.at, place.sizes))
        )
    except (AttributeError, TypeError):
        good = False
    if not good:
        raise DataLoss("extras: the stored place of a rank in a device mesh is none")
    return place


def apart_along(digests: Sequence[bytes], places: Sequence[Place]) -> dict[str, bool] | None:
    """Along which dimensions of several ranks what these stored differs, by digests of it.

    None where it does not differ by coordinates alone, with all of them.
    """
    wide = places[0].wide()
    by_place = {place.at: digest for place, digest in zip(places, digests)}
    apart = {}
    for name in wide:
        at = places[0].names.index(name)
        apart[name] = any(
            digest != by_place[(*place[:at], 0, *place[at + 1 :])]
            for place, digest in by_place.items()
        )
    classes = math.prod(size for name, size in wide.items() if apart[name])
    return apart if len(set(digests)) == classes else None


def first_at(places: Sequence[Place], names: Sequence[str]) -> dict[tuple[int, ...], int]:
    """The first rank, by the coordinates along these dimensions."""
    found: dict[tuple[int, ...], int] = {}
    for rank, place in enumerate(places):
        found.setdefault(tuple(map(place.index, names)), rank)
    return found


def same_place(
    digests: Sequence[bytes], places: Sequence[Place] | str, place: Place | None
) -> int | None:
    """The rank whose part of what differs along dimensions of a mesh is that of `place` now.

    None where that is not known, or where the dimensions along which it differs have other sizes:
    then parts would be left out, or missing.
    """
    if isinstance(places, str) or place is None:
        return None
    apart = apart_along(digests, places)
    if apart is None or any(name not in apart for name in place.wide()):
        return None
    names = [name for name in apart if apart[name]]
    if any(place.size(name) != places[0].size(name) for name in names):
        return None
    return first_at(places, names)[tuple(map(place.index, names))]
