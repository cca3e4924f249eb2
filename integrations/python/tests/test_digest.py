"""Digests of tensors against their definition in docs/derived_state.md, in plain integers."""

import pytest
import torch
from unreft.torch import digest

MODULUS = 1 << 64


def weights(count):
    state = 0
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % MODULUS
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % MODULUS
        z = (z ^ z >> 27) * 0x94D049BB133111EB % MODULUS
        yield (z ^ z >> 31) | 1


def defined(data):
    data += b"\0" * (-len(data) % 4)
    words = [int.from_bytes(data[i : i + 4], "little", signed=True) for i in range(0, len(data), 4)]
    return sum(word * weight for word, weight in zip(words, weights(len(words)))) % MODULUS


def bytes_of(tensor):
    return bytes(tensor.contiguous().view(torch.uint8).tolist())


def of(tensor):
    return digest.Digester().of(tensor).item() % MODULUS


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.complex64,
        torch.complex128,
        torch.uint64,
    ],
)
def test_every_type(dtype):
    data = torch.randint(0, 256, (48 * dtype.itemsize,), dtype=torch.uint8)
    if dtype == torch.bool:
        data &= 1
    for count in (1, 3, 4, 48):
        tensor = data.view(dtype)[:count]
        assert of(tensor) == defined(bytes_of(tensor))


def test_memory_that_is_not_aligned_to_words():
    whole = torch.randn(64).to(torch.bfloat16)
    for begin in range(4):
        assert of(whole[begin : begin + 21]) == defined(bytes_of(whole[begin : begin + 21]))


def test_tiles_do_not_show(monkeypatch):
    tensor = torch.randn(1000)
    expected = of(tensor)
    monkeypatch.setattr(digest, "_HOST_TILE_WORDS", 7)
    assert of(tensor) == expected == defined(bytes_of(tensor))


def test_known_digests():
    """As in docs/derived_state.md."""
    assert of(torch.tensor([1, 0], dtype=torch.int32)) == 0xE220A8397B1DCDAF
    assert of(torch.arange(6, dtype=torch.uint8)) == 0x328717F2EC0F0FD4
    assert of(torch.tensor([1.0, -2.0], dtype=torch.bfloat16)) == 0xBAF2CE9E2484E880


def test_every_change_of_a_word_shows():
    tensor = torch.zeros(100, dtype=torch.int32)
    seen = {of(tensor)}
    for place in range(100):
        for bit in range(32):
            tensor[place] = (1 << bit) - (1 << 32 if bit == 31 else 0)
            seen.add(of(tensor))
        tensor[place] = 0
    assert len(seen) == 1 + 100 * 32


def test_order_shows():
    tensor = torch.arange(1, 9)
    assert len({of(tensor.roll(shift)) for shift in range(8)}) == 8


def test_one_digester_for_pieces_of_any_size():
    digester = digest.Digester()
    tensor = torch.randn(100)
    for count in (3, 100, 5, 64, 65):
        assert digester.of(tensor[:count]).item() % MODULUS == of(tensor[:count])


def test_pieces():
    assert digest.piece_elements(torch.bfloat16) == 8 << 20
    assert digest.piece_count(torch.empty((8 << 20) + 1, dtype=torch.bfloat16)) == 2
    assert digest.piece_count(torch.empty(1, dtype=torch.complex128)) == 1
