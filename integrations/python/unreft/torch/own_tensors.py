"""OwnTensors: what each rank stored by names of its own, in another world.

Of a buffer, or of a parameter that no rank shares, each rank stores its own: `rank3/buffer/mean`.
That a rank of another world may take it up, all of them have to be alike, or to differ along
dimensions of a device mesh alone that have as many ranks as before. Only of buffers rank 0's may be
taken instead, for who asks for it: DistributedDataParallel gives them to all ranks anyway.
"""

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from typing import Any

from unreft.errors import FailedPrecondition, InvalidArgument
from unreft.tensor import Tensor
from unreft.torch import listing
from unreft.torch.alike import bits, same_bytes
from unreft.torch.device_extras import NAME as DEVICE_EXTRAS
from unreft.torch.mesh_place import Place, same_place
from unreft.torch.restored_memory import read_whole
from unreft.torch.shards import Bound, Holders

_OWN = re.compile(r"rank(\d+)/(.+)", re.DOTALL)
_BUFFER = "buffer/"
EQUAL, FIRST = "equal", "first"  # what `buffers` of attach may be


def check_mode(buffers: str) -> None:
    if buffers not in (EQUAL, FIRST):
        raise InvalidArgument(f"buffers: needs '{EQUAL}' or '{FIRST}', found {buffers!r}")


class OwnTensors:
    """Of all `source_world` ranks that stored a version; `own` are the names of this rank."""

    def __init__(
        self,
        stored: Sequence[Tensor],
        source_world: int,
        world: int,
        own: Holders,
        places: Sequence[Place] | str = "",
        place: Place | None = None,
    ):
        """`places`: of these ranks in a device mesh; `place`: of this rank now.

        Raises `FailedPrecondition` for what not all ranks stored, of one kind.
        """
        self._ranks = source_world
        self._world = world
        self._places, self._place = places, place
        self._by_mesh: dict[str, int] = {}  # name to the rank whose tensor this one takes
        self._prefix = own.prefix
        self._shared: list[Tensor] = []
        self._own: dict[str, dict[int, Tensor]] = {}
        for tensor in stored:
            match = _OWN.fullmatch(tensor.name)
            if match is None:
                self._shared.append(tensor)
            elif match[2] != DEVICE_EXTRAS:
                self._own.setdefault(match[2], {})[int(match[1])] = tensor
        self._check_all_have()
        self._check_kinds()

    def as_own(self) -> list[Tensor]:
        """Everything stored, as if rank 0's were this rank's."""
        own = [
            dataclasses.replace(of[0], name=self._prefix + name) for name, of in self._own.items()
        ]
        return [*self._shared, *own]

    def to_read(self, bounds: Sequence[Bound]) -> list[Bound]:
        """The live tensors with the names by which they are read."""
        names = {
            self._prefix + name: of[self._by_mesh.get(name, 0)].name
            for name, of in self._own.items()
        }
        return [
            dataclasses.replace(bound, spec=dataclasses.replace(bound.spec, name=names[name]))
            if (name := bound.spec.name) in names
            else bound
            for bound in bounds
        ]

    @property
    def by_mesh(self) -> list[str]:
        """After `check_alike`: what each rank takes from one that had its place in a mesh."""
        return list(self._by_mesh)

    def check_alike(self, client: Any, bounds: Sequence[Bound], buffers: str) -> list[str]:
        """Compares what the ranks stored of the live tensors, and changes none of these.

        Returns the buffers that are rank 0's, since they differ and `buffers` permits it. Raises
        `FailedPrecondition` for others that differ, by name.
        """
        filled = [bound.spec.name for bound in bounds if bound.local.numel()]
        live = [
            name.removeprefix(self._prefix) for name in filled if name.startswith(self._prefix)
        ]
        different: dict[str, list[int]] = {}
        for name in sorted(live, key=lambda name: not name.startswith(_BUFFER)):
            if ranks := self._unlike_first(client, name):
                source = self._same_place(client, name)
                if source is not None:
                    self._by_mesh[name] = source
                    continue
                if not name.startswith(_BUFFER):
                    self._refuse_tensor(name, ranks)
                different[name.removeprefix(_BUFFER)] = ranks
        if different and buffers != FIRST:
            self._refuse_buffers(different)
        return list(different)

    def _unlike_first(self, client: Any, name: str) -> list[int]:
        """One rank's at a time beside the first: it may be large."""
        of = self._own[name]
        first = read_whole(client, of[0])
        return [
            rank
            for rank in range(1, self._ranks)
            if not same_bytes(first, read_whole(client, of[rank]))
        ]

    def _same_place(self, client: Any, name: str) -> int | None:
        if isinstance(self._places, str):
            return None
        digests = [
            hashlib.blake2b(bits(read_whole(client, of)).contiguous().numpy()).digest()
            for _, of in sorted(self._own[name].items())
        ]
        return same_place(digests, self._places, self._place)

    # --- refusals ---

    def _check_all_have(self) -> None:
        some = [name for name, of in self._own.items() if of.keys() != set(range(self._ranks))]
        if some:
            raise FailedPrecondition(
                f"of the tensors that ranks have of their own, {len(some)} were not stored by all "
                f"{self._ranks} ranks: {listing.names(some)}; '{some[0]}' was by "
                f"{listing.ranks(sorted(self._own[some[0]]))}. {self._restart()}"
            )

    def _check_kinds(self) -> None:
        for name, of in self._own.items():
            others = [rank for rank, other in of.items() if _kind(other) != _kind(of[0])]
            if others:
                raise FailedPrecondition(
                    f"tensor '{name}': needed one kind on all {self._ranks} ranks that stored it, "
                    f"found {_kind(of[0])} on rank 0 and {_kind(of[others[0]])} on "
                    f"{listing.ranks(others)}. {self._restart()}"
                )

    def _refuse_tensor(self, name: str, ranks: list[int]) -> None:
        raise FailedPrecondition(
            f"tensor '{name}' is each rank's own: needed alike on all {self._ranks} ranks that "
            f"stored it, for a world of {self._world}, but on {listing.ranks(ranks)} it is not "
            f"what it is on rank 0. {self._restart()}, or have ranks that hold the same wrapped in "
            "DistributedDataParallel, and parts of a whole in DTensors, before the snapshot"
        )

    def _refuse_buffers(self, different: dict[str, list[int]]) -> None:
        first = next(iter(different))
        raise FailedPrecondition(
            f"buffers: needed alike on all {self._ranks} ranks that stored them, for a world of "
            f"{self._world}; {len(different)} are not: {listing.names(list(different))}; '{first}' "
            f"on {listing.ranks(different[first])} is not what it is on rank 0. Take rank 0's, as "
            f"DistributedDataParallel does, with attach(buffers='{FIRST}'), make them alike before "
            f"a snapshot, or restart with {self._ranks} ranks"
        )

    def _restart(self) -> str:
        return f"Restart with {self._ranks} ranks"


def _kind(spec: Tensor) -> str:
    return f"{spec.dtype.name.lower()}{list(spec.global_shape)}"
