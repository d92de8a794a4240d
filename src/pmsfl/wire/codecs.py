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
    QUANT8 = 10
    QUANT4 = 11
    QUANT2 = 12
    CODED_BITS = 13
    UNIT8 = 14
    UNIT16 = 15
    CODED_UNIT = 16


ITEM_BYTES: dict[Codec, int] = {
    Codec.FP32: 4,
    Codec.FP64: 8,
    Codec.BF16: 2,
    Codec.FP16: 2,
    Codec.INT64: 8,
    Codec.U8: 1,
    Codec.U16: 2,
    Codec.UNIT8: 1,
    Codec.UNIT16: 2,
}

# Bits per value of the codecs that quantise by channel, and bytes of a channel's scale and zero.
QUANT_BITS: dict[Codec, int] = {Codec.QUANT8: 8, Codec.QUANT4: 4, Codec.QUANT2: 2}
CHANNEL_BYTES = 3

# Codecs that choose the shorter of several layouts: a layout byte, then at most what the plain layout takes.
_DATA_DEPENDENT = (Codec.INDICES, Codec.CODED_BITS, Codec.CODED_UNIT)


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


def channel_axis(ndim: int) -> int | None:
    """Which axis of a tensor has the channels: the second of maps [B, C, H, W], the last of sequences [B, T, D],
    none of [B, F], which has one scale."""
    return {3: 2}.get(ndim, 1) if ndim > 2 else None


def channels(shape: Sequence[int]) -> int:
    """How many scales a quantised tensor of this shape has."""
    axis = channel_axis(len(shape))
    return 1 if axis is None else int(shape[axis])


def payload_bounds(shape: Sequence[int], codec: Codec) -> tuple[int, int]:
    """Fewest and most bytes a payload of this shape and codec may have.

    For `INDICES` the shape names the space the indices come from, not their number. Where an encoder takes the
    shorter of several layouts, the plain one bounds the payload.
    """
    count = elements(shape)
    if codec in _DATA_DEPENDENT:
        return 1, 1 + (count if codec == Codec.CODED_UNIT else bitmap_bytes(count))
    if codec in QUANT_BITS:
        size = CHANNEL_BYTES * channels(shape) + bitmap_bytes(count * QUANT_BITS[codec])
    else:
        size = bitmap_bytes(count) if codec == Codec.PACKED_BITS else count * ITEM_BYTES[Codec(codec)]
    return size, size


def payload_bytes(shape: Sequence[int], codec: Codec) -> int:
    """Bytes of a payload whose codec makes its length a function of the shape; WireError for the others."""
    least, most = payload_bounds(shape, codec)
    if codec in _DATA_DEPENDENT:
        raise WireError(f"the length of a payload in {codec.name} depends on its values, not on the shape alone")
    assert least == most
    return most
