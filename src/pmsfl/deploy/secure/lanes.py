"""Vectors of whole numbers modulo 2^b: sums, key streams, and b bits each on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Lanes = npt.NDArray[Any]  # uint8 for b up to 8, else uint16: they wrap around by themselves, and 2^b divides them


def lane_dtype(bits: int) -> type[np.uint8] | type[np.uint16]:
    """The type that holds numbers modulo 2^bits."""
    return np.uint8 if bits <= 8 else np.uint16


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of so many numbers on the wire."""
    return (count * bits + 7) // 8


def pack(lanes: Lanes, bits: int) -> bytes:
    """b bits each, the lowest first, the rest of the last byte 0."""
    if bits == 8:
        return lanes.tobytes()
    each = (lanes[:, None] >> np.arange(bits, dtype=lanes.dtype)) & lanes.dtype.type(1)
    return np.packbits(each.astype(np.bool_), bitorder="little").tobytes()


def unpack(payload: bytes | memoryview, count: int, bits: int) -> Lanes | None:
    """What `pack` wrote; None for another length or bits behind the last number."""
    if len(payload) != packed_bytes(count, bits):
        return None
    raw = np.frombuffer(payload, dtype=np.uint8) if count else np.empty(0, dtype=np.uint8)
    if bits == 8:
        return raw.copy()
    every = np.unpackbits(raw, bitorder="little")
    if bool(every[count * bits :].any()):
        return None
    each = every[: count * bits].reshape(count, bits)
    out = np.zeros(count, dtype=lane_dtype(bits))
    for place in range(bits):
        out |= each[:, place].astype(out.dtype) << place
    return out


def reduced(lanes: Lanes, bits: int) -> Lanes:
    """Modulo 2^bits."""
    out: Lanes = lanes & lanes.dtype.type((1 << bits) - 1)
    return out
