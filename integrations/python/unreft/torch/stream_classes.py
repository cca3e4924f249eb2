"""Whose stream of random numbers a rank of another world goes on with.

Three rules. Of one stream that all ranks share, each rank takes it. Where every rank had one of its
own, a rank takes that of its number. Where some ranks share one and others do not, as
tensor-parallel peers do, their places in a device mesh say by what: along some dimensions streams
are alike, along the others they are apart, and a rank takes that of its own coordinates on the
latter.

A dimension of one rank says nothing. So what was found out is noted, and holds along a dimension
until it has several ranks again: those that begin anew along it are apart, or alike, as ever.
"""

import dataclasses
import enum
import itertools
from collections.abc import Mapping, Sequence

from unreft.errors import FailedPrecondition
from unreft.torch import listing
from unreft.torch.mesh_place import Place, apart_along, first_at

LEFT_OUT = "pass attach(rng=False) and seed the generators after restore()"


class How(enum.Enum):
    SHARED = enum.auto()
    BY_RANK = enum.auto()
    BY_MESH = enum.auto()


@dataclasses.dataclass(frozen=True)
class Taken:
    how: How
    source: int | None  # the rank that stored it; None: a new one is begun
    name: str  # what a new one is of, such as "rank 5": its seed is made from that
    apart: Mapping[str, bool]  # by the name of a dimension; the note for later worlds
    said: str = ""


def take(
    part: str,
    digests: Sequence[bytes],
    places: Sequence[Place] | str,
    noted: Mapping[str, bool],
    rank: int,
    place: Place | None,
) -> Taken:
    """`digests`: of the streams that all ranks stored, of the generator `part`.

    `places`: of these ranks, or why there are none, as of `stored_places`; `noted`: what was known
    of them before; `rank`, `place`: of now. Raises `FailedPrecondition`.
    """
    apart = dict(noted)
    if not isinstance(places, str):
        one_rank = {name: is_apart for name, is_apart in noted.items() if places[0].size(name) == 1}
        apart = {**one_rank, **(apart_along(digests, places) or {})}
    classes = len(set(digests))
    wide = {} if place is None else place.wide()
    if classes == 1 and not any(apart.get(name) for name in wide):
        return Taken(How.SHARED, 0, "", apart)
    names = apart if place is None else wide
    if classes == len(digests) != 1 and all(apart.get(name, True) for name in names):
        return Taken(How.BY_RANK, rank if rank < classes else None, f"rank {rank}", apart)
    if isinstance(places, str):
        why = f"{places}: have a snapshot taken with attach(mesh=...)"
    elif classes not in (1, len(digests)) and apart_along(digests, places) is None:
        why = f"they are not alike along dimensions of the mesh of {places[0]} that stored them"
    elif place is None:
        why = (
            f"a mesh of {places[0]} stored them, and this rank has no place in one now: give "
            "attach(mesh=...) one with these names"
        )
    elif unknown := [name for name in wide if name not in apart]:
        why = (
            f"of the mesh of now, {place}, it is not known whether they are alike along "
            f"{listing.names(unknown)}: one of {places[0]} stored them"
        )
    else:
        return _taken_by_mesh(places, apart, place)
    raise FailedPrecondition(
        f"random state: the streams of '{part}' {_found(digests, apart)}, and {why}. Restart with "
        f"{len(digests)} ranks, or {LEFT_OUT}"
    )


def _taken_by_mesh(places: Sequence[Place], apart: Mapping[str, bool], place: Place) -> Taken:
    names = sorted(name for name in apart if apart[name])
    alike = sorted(name for name in apart if not apart[name])
    stored = first_at(places, names)
    of_now = itertools.product(*(range(place.size(name)) for name in names))
    new = [_named(names, at) for at in of_now if at not in stored]
    said = [f"alike along {listing.names(alike)}"] if alike else []
    said += [f"by the index along {listing.names(names)}"] if names else []
    said += [f"begun anew at {listing.names(new)}"] if new else []
    at = tuple(map(place.index, names))
    return Taken(How.BY_MESH, stored.get(at), _named(names, at), apart, ", ".join(said))


def _named(names: Sequence[str], at: Sequence[int]) -> str:
    return ", ".join(f"{name} {index}" for name, index in zip(names, at))


def _found(digests: Sequence[bytes], apart: Mapping[str, bool]) -> str:
    """What is wrong with one stream for all, or with one for each rank number."""
    one = len(set(digests)) == 1
    split = "by rank number streams would be split that ranks share, as tensor-parallel peers do"
    if one or len(set(digests)) == len(digests):
        names = listing.names([name for name in sorted(apart) if apart[name] == one])
        found = f"are {'apart' if one else 'alike'} along {names}, where one rank stored them"
        return found if one else f"{found}: {split}"
    twin = next(digest for digest in digests if digests.count(digest) > 1)
    twins = [rank for rank, digest in enumerate(digests) if digest == twin]
    return (
        f"are alike on {listing.ranks(twins)}, but not on all {len(digests)} ranks that stored "
        f"this version: {split}"
    )
