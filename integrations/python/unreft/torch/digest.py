"""Digests of a tensor's bytes by integer operations of torch: the same on every device.

A tensor is cut into pieces of 16 MiB, and each piece has a 64-bit digest: the sum of its 32-bit
words, each times a weight, modulo 2^64. docs/derived_state.md has the definition, so that a program
in another language can compute the same. The operations run in the current stream of the tensor's
device, use 96 MiB of its memory at most, and wait for nothing.
"""

import torch

PIECE_BYTES = 16 << 20
_WORD_BYTES = 4
_HOST_TILE_WORDS = 1 << 18  # what stays in a cache between two operations


class Digester:
    """Keeps the weights, on each device where it was used."""

    def __init__(self):
        self._weights: dict[torch.device, torch.Tensor] = {}

    def of(self, piece: torch.Tensor) -> torch.Tensor:
        """Of a flat, dense tensor of 1 to `piece_elements` elements. No dimensions, int64."""
        words = words_of(piece)
        weights = self._weights.get(words.device)
        if weights is None or len(weights) < len(words):
            # The sizes double, so that few are made.
            count = 1 << (len(words) - 1).bit_length()
            weights = self._weights[words.device] = _weights(count, words.device)
        tile = _HOST_TILE_WORDS if words.device.type == "cpu" else len(words)
        # Not words * weights: of two types, that is 25 times slower on a CPU.
        tiles = zip(words.split(tile), weights[: len(words)].split(tile))
        sums = [own.to(torch.int64).mul_(weight).sum() for own, weight in tiles]
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum()


def piece_elements(dtype: torch.dtype) -> int:
    return PIECE_BYTES // dtype.itemsize


def piece_count(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() // piece_elements(tensor.dtype))


def words_of(flat: torch.Tensor) -> torch.Tensor:
    """The bytes of a flat, dense tensor as integers; zeros fill up the last one."""
    data = flat.detach().view(torch.uint8)
    size = -(-len(data) // _WORD_BYTES) * _WORD_BYTES
    if len(data) == size and data.storage_offset() % _WORD_BYTES == 0:
        return data.view(torch.int32)
    words = torch.zeros(size // _WORD_BYTES, dtype=torch.int32, device=data.device)
    words.view(torch.uint8)[: len(data)].copy_(data)
    return words


def _weights(count: int, device: torch.device) -> torch.Tensor:
    """The outputs of SplitMix64 from the seed 0, made odd: no change of one word goes unseen."""
    z = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    z *= _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ _shifted(z, shift)) * _signed(factor)
    return (z ^ _shifted(z, 31)) | 1


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """To the right, as of an unsigned number."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
