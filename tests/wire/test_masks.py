"""Mask bits and personal indices survive the wire compactly, and malformed payloads are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.wire.codecs import WireError
from pmsfl.wire.masks import (
    MAX_INDEX_SPACE,
    decode_indices,
    encode_indices,
    pack_bits,
    pack_counts,
    unpack_bits,
    unpack_counts,
)

relaxed = settings(deadline=None, max_examples=200)


def leb128(value: int) -> bytes:
    """One varint, the slow and obvious way."""
    out = []
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def reference(indices: list[int], n: int) -> bytes:
    previous, gaps = -1, b""
    for index in indices:
        gaps += leb128(index - previous - 1)
        previous = index
    bitmap = sum(1 << index for index in indices).to_bytes((n + 7) // 8, "little")
    coded = min((rice(indices, k) for k in range(33)), key=len)
    return min((b"\x00" + gaps, b"\x01" + bitmap, b"\x02" + coded), key=len)


def rice(indices: list[int], k: int) -> bytes:
    """Gaps in Rice's code, bit by bit."""
    low, unary, previous = "", "", -1
    for index in indices:
        gap = index - previous - 1
        low += "".join(str(gap >> place & 1) for place in range(k))
        unary += "0" * (gap >> k) + "1"
        if len(unary) > 10_000:
            return bytes(10_000)  # longer than anything that would be chosen
        previous = index
    parts = (int("0" + bits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little") for bits in (low, unary))
    return bytes([k]) + len(indices).to_bytes(4, "little") + b"".join(parts)


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[list[int], int]:
    n = draw(st.one_of(st.integers(0, 70), st.integers(0, 5000), st.integers(2**20, 2**22)))
    chosen = draw(st.sets(st.integers(0, n - 1), max_size=80)) if n else set()
    return sorted(chosen), n


@relaxed
@given(st.lists(st.booleans(), max_size=70))
def test_bits_round_trip_in_the_fewest_bytes(values: list[bool]) -> None:
    payload = pack_bits(torch.tensor(values, dtype=torch.bool))
    assert len(payload) == (len(values) + 7) // 8
    assert int.from_bytes(payload, "little") == sum(1 << i for i, bit in enumerate(values) if bit)
    received = unpack_bits(payload, len(values))
    assert received.dtype == torch.bool
    assert received.tolist() == values


def test_strided_bits_are_packed_in_their_order() -> None:
    assert pack_bits(torch.tensor([True, False, False, False, True, True])[::2]) == b"\x05"


def test_unpacked_bits_are_writable() -> None:
    received = unpack_bits(b"\x00", 3)
    received[1] = True
    assert received.tolist() == [False, True, False]


@pytest.mark.parametrize(("payload", "n"), [(b"", 1), (b"\0", 0), (b"\0", 9), (b"\0\0", 8), (b"", -1)])
def test_bits_of_another_length_are_refused(payload: bytes, n: int) -> None:
    with pytest.raises(WireError):
        unpack_bits(payload, n)


@pytest.mark.parametrize("n", range(1, 8))
def test_every_bit_beyond_the_last_is_refused(n: int) -> None:
    assert unpack_bits(bytes([2**n - 1]), n).all()
    for bit in range(n, 8):
        with pytest.raises(WireError, match="beyond"):
            unpack_bits(bytes([1 << bit]), n)


@pytest.mark.parametrize("bits", [torch.zeros(3), torch.zeros(2, 2, dtype=torch.bool), torch.tensor(True)])
def test_only_flat_bool_tensors_are_packed(bits: torch.Tensor) -> None:
    with pytest.raises(WireError, match="bool tensor"):
        pack_bits(bits)


@relaxed
@given(index_sets())
def test_indices_round_trip_as_the_reference_writes_them(case: tuple[list[int], int]) -> None:
    indices, n = case
    payload = encode_indices(torch.tensor(indices, dtype=torch.int64), n)
    assert payload == reference(indices, n)
    assert payload == encode_indices(np.array(indices, dtype=np.int64), n)
    received = decode_indices(payload, n)
    assert received.dtype == torch.int64
    assert received.tolist() == indices


@pytest.mark.parametrize("index", [0, 127, 128, 16383, 16384, 2**21, 2**28 - 1, 2**28, MAX_INDEX_SPACE - 1])
def test_one_index_takes_one_varint(index: int) -> None:
    payload = encode_indices(torch.tensor([index]), MAX_INDEX_SPACE)
    assert payload == b"\x00" + leb128(index)
    assert decode_indices(payload, MAX_INDEX_SPACE).tolist() == [index]


def test_dense_indices_take_a_bitmap_and_sparse_ones_gaps() -> None:
    assert len(encode_indices(torch.arange(8000), 8000)) == 1 + 1000
    assert len(encode_indices(torch.arange(0, 800, 100), 800)) == 1 + 8


def test_many_indices_take_little_more_than_their_entropy() -> None:
    n, share = 200_000, 0.05
    chosen = np.flatnonzero(np.random.default_rng(0).random(n) < share)
    payload = encode_indices(chosen, n)
    entropy = -n * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert payload[0] == 2
    assert 8 * len(payload) < 1.03 * entropy


@pytest.mark.timeout(20)
@pytest.mark.parametrize("share", [0.01, 0.12, 1.0])
def test_twelve_million_indices_round_trip(share: float) -> None:
    n = 12_000_000
    indices = np.flatnonzero(np.random.default_rng(0).random(n, dtype=np.float32) < share)
    payload = encode_indices(indices, n)
    assert len(payload) <= 1 + n // 8
    assert np.array_equal(decode_indices(payload, n).numpy(), indices)


@pytest.mark.parametrize(
    "indices",
    [
        np.array([1, 1]),
        np.array([2, 1]),
        np.array([-1, 1]),
        np.array([1, 10]),
        np.array([3, 20, 5]),
        np.array([[1]]),
        np.array([1.0]),
        np.array([1], dtype=np.uint64),
    ],
)
def test_indices_that_are_not_growing_int64_in_range_are_refused(indices: npt.NDArray[Any]) -> None:
    with pytest.raises(WireError):
        encode_indices(indices, 10)


@pytest.mark.parametrize(
    ("payload", "n", "problem"),
    [
        (b"", 10, "empty"),
        (b"\x03\x00", 100, "unknown layout 3"),
        (b"\x02\x00", 100, "truncated Rice"),
        (b"\x02\x00\x01\0\0\0", 100, "truncated Rice"),
        (b"\x02\x21\x01\0\0\0\0\0\0\0\0\1", 100, "33 low bits"),
        (b"\x02\x00\x65\0\0\0", 100, "101 indices from 100"),
        (b"\x02\x00\x01\0\0\0\x03", 100, "says 1 gaps and has 2"),
        (b"\x02\x00\x02\0\0\0\x01", 100, "says 2 gaps and has 1"),
        (b"\x02\x00\x01\0\0\0\x01\x00", 100, "bytes follow"),
        (b"\x02\x01\x01\0\0\0\x02\x01", 100, "behind the low bits"),
        (b"\x02\x05\x01\0\0\0\x00\x10", 100, "out of range"),
        (b"\x02\x20\x01\0\0\0\xff\xff\xff\xff\x01", 100, "out of range"),
        (b"\x00\x0a", 10, "out of range"),
        (b"\x00\x05\x04", 10, "out of range"),
        (b"\x00\x00", 0, "at most 1"),
        (b"\x00\x00\x00\x00", 10, "at most 3"),
        (b"\x00\x80", 100, "truncated"),
        (b"\x00\x01\xff", 100, "truncated"),
        (b"\x00\x80\x00", 100, "overlong"),
        (b"\x00" + b"\x80" * 9 + b"\x01", 1000, "varint of 10 bytes"),
        (b"\x00" + b"\xff" * 8 + b"\x7f", 1000, "out of range"),
        (b"\x00" + (b"\xff" * 8 + b"\x7f") * 2, 1000, "out of range"),  # the sum wraps around to -1
        (b"\x01", 10, "take 2 bytes"),
        (b"\x01\x00", 10, "take 2 bytes"),
        (b"\x01\x00\x04", 10, "beyond"),
        (b"\x00", -1, "space"),
        (b"\x00", MAX_INDEX_SPACE + 1, "space"),
    ],
)
def test_malformed_indices_are_refused(payload: bytes, n: int, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        decode_indices(payload, n)


@relaxed
@given(st.sampled_from([b"", b"\x00", b"\x01", b"\x02"]), st.binary(max_size=40), st.integers(0, 400))
def test_arbitrary_payloads_give_valid_indices_or_a_wire_error(layout: bytes, body: bytes, n: int) -> None:
    try:
        indices = decode_indices(layout + body, n).tolist()
    except WireError:
        return
    assert indices == sorted(set(indices))
    assert all(0 <= index < n for index in indices)
    assert decode_indices(encode_indices(torch.tensor(indices, dtype=torch.int64), n), n).tolist() == indices


@given(st.integers(1, 255), st.integers(0, 70), st.integers(0, 2**30))
@relaxed
def test_counts_survive_in_as_many_bits_as_their_greatest_takes(most: int, n: int, seed: int) -> None:
    counts = torch.from_numpy(np.random.default_rng(seed).integers(0, most + 1, n))
    payload = pack_counts(counts, most)
    assert len(payload) == (n * most.bit_length() + 7) // 8
    assert torch.equal(unpack_counts(payload, n, most), counts)


def test_a_single_mask_is_packed_as_it_always_was() -> None:
    bits = torch.tensor([1, 0, 1, 1, 0, 0, 0, 1, 1])
    assert pack_counts(bits, 1) == pack_bits(bits.bool())


def test_counts_that_cannot_be_are_refused() -> None:
    for counts in (torch.tensor([6]), torch.tensor([-1]), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(WireError, match=r"0\.\.5"):
            pack_counts(counts, 5)
    payload = pack_counts(torch.tensor([7, 0]), 7)
    with pytest.raises(WireError, match="count of 7 masks, at most 5"):
        unpack_counts(payload, 2, 5)
    with pytest.raises(WireError, match="bytes"):
        unpack_counts(payload + b"\0", 2, 7)
