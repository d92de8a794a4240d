"""How payloads are written, and how many bytes each way of writing takes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from pmsfl.errors import PmsflError

# A dim travels as u32. The product is capped far below 2**63, so that strides and byte counts made from an
# accepted shape cannot overflow anywhere downstream, not even when one of the dims is zero.
MAX_DIMS = 8
MAX_DIM = 2**32 - 1
MAX_ELEMENTS = 2**40


class WireError(PmsflError):
    """A message, payload or value that cannot be sent or was not understood."""


class Codec(IntEnum):
    """How a payload is written. The numbers are part of the format: never renumber or reuse one."""

    FP32 = 1
    FP64 = 2
    BF16 = 3
    FP16 = 4
    INT64 = 5
    U8 = 6
    U16 = 7
    PACKED_BITS = 8
    INDICES = 9


ITEM_BYTES: dict[Codec, int] = {
    Codec.FP32: 4,
    Codec.FP64: 8,
    Codec.BF16: 2,
    Codec.FP16: 2,
    Codec.INT64: 8,
    Codec.U8: 1,
    Codec.U16: 2,
}


def elements(shape: Sequence[int]) -> int:
    """Number of elements of a shape; WireError for a shape that no message can carry."""
    if len(shape) > MAX_DIMS:
        raise WireError(f"shape has {len(shape)} dims, at most {MAX_DIMS} are allowed")
    count, extent = 1, 1
    for dim in shape:
        if not 0 <= dim <= MAX_DIM:
            raise WireError(f"dim {dim} is outside 0..{MAX_DIM}")
        count *= int(dim)
        extent *= max(int(dim), 1)  # zero dims must not hide the others: strides are made of them
    if extent > MAX_ELEMENTS:
        raise WireError(f"shape {tuple(shape)} spans more than {MAX_ELEMENTS} elements")
    return count


def bitmap_bytes(n: int) -> int:
    """Bytes of `n` packed bits."""
    return (n + 7) // 8


def payload_bounds(shape: Sequence[int], codec: Codec) -> tuple[int, int]:
    """Fewest and most bytes a payload of this shape and codec may have.

    For `INDICES` the shape names the space the indices come from, not their number; the encoder takes the
    shorter of two layouts, so the bitmap bounds the payload.
    """
    count = elements(shape)
    if codec == Codec.INDICES:
        return 1, 1 + bitmap_bytes(count)
    size = bitmap_bytes(count) if codec == Codec.PACKED_BITS else count * ITEM_BYTES[Codec(codec)]
    return size, size


def payload_bytes(shape: Sequence[int], codec: Codec) -> int:
    """Bytes of a payload whose codec makes its length a function of the shape; WireError for `INDICES`."""
    least, most = payload_bounds(shape, codec)
    if codec == Codec.INDICES:
        raise WireError("the length of an INDICES payload depends on the indices, not on the shape alone")
    assert least == most
    return most
