"""Whether what is stored is of the program that restores it: the same tensors, of their kinds."""

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from unreft.errors import FailedPrecondition
from unreft.tensor import Tensor
from unreft.torch import listing


@dataclasses.dataclass(frozen=True)
class Kind:
    """Type and shape of a whole tensor. `padded`: it may be stored with other sizes, since these
    are those of its padding."""

    dtype: str
    shape: tuple[int, ...]
    padded: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def fits(self, stored: "Kind") -> bool:
        if self.padded:
            return (stored.dtype, len(stored.shape)) == (self.dtype, len(self.shape))
        return (stored.dtype, stored.shape) == (self.dtype, self.shape)


def kind_of_stored(spec: Tensor) -> Kind:
    return Kind(spec.dtype.name.lower(), tuple(spec.global_shape))


def kind_of(dtype: torch.dtype, shape: tuple[int, ...], padded: bool = False) -> Kind:
    return Kind(str(dtype).removeprefix("torch."), shape, padded)


def check_names(
    missing: Sequence[str], unknown: Sequence[str], advice: str, most: int = listing.NAMES_MAX
) -> None:
    """Raises `FailedPrecondition` if there are any, naming the first `most` of them.

    `missing`: what the program has and nobody stored; `unknown`: what it does not know.
    """
    if missing:
        raise FailedPrecondition(
            f"of the tensors, the stored state lacks {len(missing)} of this program: "
            f"{listing.names(missing, most)}. {advice}"
        )
    if unknown:
        raise FailedPrecondition(
            f"of the stored tensors, {len(unknown)} are none that this program attaches: "
            f"{listing.names(unknown, most)}. {advice}"
        )


def check_kinds(
    needed: Mapping[str, Kind], stored: Mapping[str, Tensor], advice: str, most: int
) -> None:
    """Raises `FailedPrecondition` if any of `needed`, all of which are stored, is of another kind.
    """
    found = {name: kind_of_stored(stored[name]) for name in needed}
    if different := [name for name, kind in needed.items() if not kind.fits(found[name])]:
        first = different[0]
        raise FailedPrecondition(
            f"of the tensors, {len(different)} were stored with another shape or type: "
            f"{listing.names(different, most)}; '{first}' is {found[first]} there, found "
            f"{needed[first]}. {advice}"
        )
