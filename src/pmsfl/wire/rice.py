"""Gaps between indices in Rice's code: of a gap the low k bits as they are, the rest in unary.

For indices that fall anywhere with one probability it is within a few percent of what any code needs. Layout:

    k u8 | count m u32 | m x k low bits | m times: as many 0 bits as the rest says, then a 1

Both bit fields begin at a byte; within a byte the lowest bit is the first; unused bits are 0.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from pmsfl.wire.codecs import WireError, bitmap_bytes

Ints = npt.NDArray[np.int64]

_HEAD = struct.Struct("<BI")
_MOST_LOW_BITS = 32  # gaps are below 2^32


def plan(gaps: Ints) -> tuple[int, int]:
    """The k that makes the gaps shortest, and the bytes they then take."""
    middle = (int(gaps.sum()) // max(len(gaps), 1)).bit_length()
    sizes = {k: _size(gaps, k) for k in range(max(middle - 3, 0), min(middle + 2, _MOST_LOW_BITS) + 1)}
    best = min(sizes, key=lambda k: (sizes[k], k))
    return best, sizes[best]


def _size(gaps: Ints, k: int) -> int:
    return _HEAD.size + bitmap_bytes(len(gaps) * k) + bitmap_bytes(int((gaps >> k).sum()) + len(gaps))


def write(gaps: Ints, k: int) -> bytes:
    """Non-negative gaps as bytes."""
    low = ((gaps[:, None] >> np.arange(k)) & 1).astype(np.bool_)
    ends = np.cumsum((gaps >> k) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.bool_)
    unary[ends] = True
    return _HEAD.pack(k, len(gaps)) + b"".join(np.packbits(bits, bitorder="little").tobytes() for bits in (low, unary))


def read(payload: memoryview, n: int) -> Ints:
    """The gaps that `write` wrote for a space of n; WireError on anything malformed. Allocates in proportion to the
    payload."""
    if len(payload) < _HEAD.size:
        raise WireError(f"truncated Rice code: {len(payload)} bytes of {_HEAD.size}")
    k, count = _HEAD.unpack_from(payload)
    if k > _MOST_LOW_BITS or count > n:
        raise WireError(f"Rice code of {count} indices from {n} with {k} low bits")
    body = _HEAD.size + bitmap_bytes(count * k)
    if len(payload) < body + bitmap_bytes(count):  # a gap takes a bit of unary at least
        raise WireError(f"truncated Rice code: {len(payload)} bytes do not hold {count} gaps")
    low = _bits(payload[_HEAD.size : body])
    if bool(low[count * k :].any()):
        raise WireError("bits are set behind the low bits of a Rice code")
    ends = np.flatnonzero(_bits(payload[body:]))
    if len(ends) != count or len(payload) - body != bitmap_bytes(int(ends[-1]) + 1 if count else 0):
        raise WireError(f"Rice code says {count} gaps and has {len(ends)}, or bytes follow the last")
    gaps: Ints = np.diff(ends, prepend=-1) - 1
    if count and int(gaps.max()) > n >> k:  # before the shift, which could wrap around
        raise WireError(f"a gap of a Rice code leads out of range 0..{n - 1}")
    weights = np.int64(1) << np.arange(k, dtype=np.int64)
    values: Ints = (gaps << k) + low[: count * k].reshape(count, k).astype(np.int64) @ weights
    return values


def _bits(data: memoryview) -> npt.NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little") if len(data) else np.empty(0, np.uint8)
