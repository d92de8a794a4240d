"""Mask bits and personal indices as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pmsfl.wire import rice
from pmsfl.wire.codecs import WireError, bitmap_bytes

# Indices below 2**32 keep every sum of gaps that the decoder forms far below 2**63.
MAX_INDEX_SPACE = 2**32

# First byte of an indices payload. Part of the format: never renumber.
_GAPS = 0
_BITMAP = 1
_RICE = 2

_MORE = 0x80  # continuation bit of a LEB128 byte
_LOW = 0x7F
_MAX_VARINT = 9  # 63 bits: what a non-negative int64 holds

_Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


def pack_bits(bits: torch.Tensor) -> bytes:
    """A bool tensor `[n]` as `(n + 7) // 8` bytes: bit `i` is bit `i % 8` of byte `i // 8`, the rest zero."""
    if bits.dtype != torch.bool or bits.ndim != 1:
        raise WireError(f"pack_bits takes a bool tensor [n], got {bits.dtype} {list(bits.shape)}")
    return np.packbits(bits.detach().cpu().numpy(), bitorder="little").tobytes()


def unpack_bits(payload: bytes | memoryview, n: int) -> torch.Tensor:
    """The bool tensor `[n]` that `pack_bits` wrote; WireError on another length or bits set beyond `n`."""
    return torch.from_numpy(_unpack(payload, n))


def pack_counts(counts: torch.Tensor, most: int) -> bytes:
    """Whole numbers in `[0, most]`, int64 `[n]`, as packed bits: all lowest bits, then all second ones, ..."""
    if counts.ndim != 1 or (len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= most):
        raise WireError(f"pack_counts takes numbers [n] in 0..{most}, got {list(counts.shape)}")
    return pack_bits(torch.cat([(counts >> i) & 1 for i in range(most.bit_length())]).bool())


def unpack_counts(payload: bytes | memoryview, n: int, most: int) -> torch.Tensor:
    """The int64 tensor `[n]` that `pack_counts` wrote; WireError on another length or a number above `most`."""
    planes = unpack_bits(payload, n * most.bit_length()).reshape(most.bit_length(), n).long()
    counts = sum((plane << i for i, plane in enumerate(planes)), torch.zeros(n, dtype=torch.int64))
    if n and int(counts.max()) > most:
        raise WireError(f"a count of {int(counts.max())} masks, at most {most} are drawn")
    return counts


def encode_indices(indices: torch.Tensor | npt.NDArray[Any], n: int) -> bytes:
    """Strictly growing indices in `[0, n)` as bytes: varint gaps, a bitmap of `n` or Rice-coded gaps, whichever is
    shortest, the first of them if equal."""
    values = _checked_indices(indices, n)
    gaps = np.diff(values, prepend=-1) - 1
    lengths = _varint_lengths(gaps)
    low_bits, rice_bytes = rice.plan(gaps)
    sizes = {_GAPS: int(lengths.sum()), _BITMAP: bitmap_bytes(n), _RICE: rice_bytes}
    layout = min(sizes, key=lambda kind: sizes[kind])
    if layout == _GAPS:
        return bytes([_GAPS]) + _write_varints(gaps, lengths).tobytes()
    if layout == _RICE:
        return bytes([_RICE]) + rice.write(gaps, low_bits)
    bits = np.zeros(n, dtype=np.bool_)
    bits[values] = True
    return bytes([_BITMAP]) + np.packbits(bits, bitorder="little").tobytes()


def decode_indices(payload: bytes | memoryview, n: int) -> torch.Tensor:
    """The int64 indices that `encode_indices` wrote; WireError on anything malformed."""
    _check_space(n)
    if len(payload) == 0:
        raise WireError("indices payload is empty: not even its layout byte is there")
    if len(payload) > 1 + bitmap_bytes(n):
        # No encoder writes more, and this bounds what a hostile payload makes the decoder allocate.
        raise WireError(f"indices payload of {len(payload)} bytes, at most {1 + bitmap_bytes(n)} for n = {n}")
    layout, body = payload[0], memoryview(payload)[1:]
    if layout == _BITMAP:
        return torch.from_numpy(np.flatnonzero(_unpack(body, n)).astype(np.int64, copy=False))
    if layout not in (_GAPS, _RICE):
        raise WireError(f"unknown layout {layout} of indices")
    gaps = _read_varints(_as_bytes(body)) if layout == _GAPS else rice.read(body, n)
    # Each gap first, so that the sum cannot wrap around.
    if len(gaps) and int(gaps.max()) >= n:
        raise WireError(f"a gap of {int(gaps.max())} leads out of range 0..{n - 1}")
    indices = np.cumsum(gaps + 1, dtype=np.int64) - 1
    if len(indices) and int(indices[-1]) >= n:
        raise WireError(f"index {int(indices[-1])} is out of range 0..{n - 1}")
    return torch.from_numpy(indices)


def _check_space(n: int) -> None:
    if not 0 <= n <= MAX_INDEX_SPACE:
        raise WireError(f"indices come from a space of 0..{MAX_INDEX_SPACE}, not {n}")


def _as_bytes(payload: bytes | memoryview) -> _Bytes:
    # frombuffer refuses an empty buffer
    return np.frombuffer(payload, dtype=np.uint8) if len(payload) else np.empty(0, dtype=np.uint8)


def _unpack(payload: bytes | memoryview, n: int) -> npt.NDArray[np.bool_]:
    if n < 0:
        raise WireError(f"a mask cannot have {n} bits")
    if len(payload) != bitmap_bytes(n):
        raise WireError(f"{n} bits take {bitmap_bytes(n)} bytes, got {len(payload)}")
    packed = _as_bytes(payload)
    if n % 8 and int(packed[-1]) >> (n % 8):
        raise WireError(f"bits are set beyond the {n} of the mask")
    return np.unpackbits(packed, count=n, bitorder="little").view(np.bool_)


def _checked_indices(indices: torch.Tensor | npt.NDArray[Any], n: int) -> _Ints:
    _check_space(n)
    array = indices.detach().cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
    if array.ndim != 1 or array.dtype != np.int64:
        raise WireError(f"indices must be int64 of one dimension, got {array.dtype} {list(array.shape)}")
    if len(array) and (int(array[0]) < 0 or int(array[-1]) >= n):
        raise WireError(f"indices {int(array[0])}..{int(array[-1])} are out of range 0..{n - 1}")
    if not bool(np.all(array[1:] > array[:-1])):
        raise WireError("indices must be sorted and unique")
    return array


def _varint_lengths(values: _Ints) -> _Ints:
    lengths = np.ones(len(values), dtype=np.int64)
    top = int(values.max()) if len(values) else 0
    shift = 7
    while top >> shift:
        lengths += values >= (1 << shift)
        shift += 7
    return lengths


def _write_varints(values: _Ints, lengths: _Ints) -> _Bytes:
    """LEB128 of all values at once: one pass per byte position, not per value."""
    out = np.empty(int(lengths.sum()), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    position = 0
    while len(values):
        more = lengths > position + 1
        out[starts + position] = (values & _LOW) | np.where(more, _MORE, 0)
        values, lengths, starts = values[more] >> 7, lengths[more], starts[more]
        position += 1
    return out


def _read_varints(data: _Bytes) -> _Ints:
    if len(data) and data[-1] & _MORE:
        raise WireError("truncated varint at the end of the indices")
    ends = np.flatnonzero(data < _MORE)
    starts = np.concatenate((np.zeros(min(1, len(ends)), dtype=np.int64), ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max()) if len(lengths) else 0
    if longest > _MAX_VARINT:
        raise WireError(f"varint of {longest} bytes, at most {_MAX_VARINT} are allowed")
    if bool(np.any((lengths > 1) & (data[ends] == 0))):
        raise WireError("overlong varint: its last byte adds nothing")
    values = (data[starts] & _LOW).astype(np.int64)
    for position in range(1, longest):
        longer = np.flatnonzero(lengths > position)
        part = (data[starts[longer] + position] & _LOW).astype(np.int64)
        values[longer] |= part << (7 * position)
    return values
