"""Tensors as bytes, little endian, in C order: plain casts, or few bits (quantised.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pmsfl.wire.codecs import QUANT_BITS, Codec, WireError, elements, payload_bytes
from pmsfl.wire.quantised import decode_quantised, encode_quantised, quantised_round_trip

__all__ = ["decode_tensor", "encode_tensor", "label_codec", "payload_bytes", "round_trip"]

_FLOATS: dict[Codec, torch.dtype] = {
    Codec.FP32: torch.float32,
    Codec.FP64: torch.float64,
    Codec.BF16: torch.bfloat16,
    Codec.FP16: torch.float16,
}
# Greatest value of each integer codec; INT64 takes every value of the integer dtypes accepted below.
_UNSIGNED: dict[Codec, int] = {Codec.U8: 2**8 - 1, Codec.U16: 2**16 - 1}
# uint64 is left out: its upper half would wrap in int64.
_INTEGERS = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.int64,
}
# numpy has no bf16: its bits travel as int16.
_LAYOUT: dict[Codec, str] = {
    Codec.FP32: "<f4",
    Codec.FP64: "<f8",
    Codec.BF16: "<i2",
    Codec.FP16: "<f2",
    Codec.INT64: "<i8",
    Codec.U8: "<u1",
    Codec.U16: "<u2",
}


def encode_tensor(tensor: torch.Tensor, codec: Codec) -> bytes:
    """The tensor's values in C order, written with `codec`.

    Float codecs take float tensors, integer codecs integer (or bool) tensors whose values all fit;
    anything else is a WireError.
    """
    if codec in QUANT_BITS:
        return encode_quantised(tensor, codec)
    # Cast before the transfer: fewer bytes to copy, and the same rounding as `round_trip` on that device.
    values = _cast(tensor, codec)
    if codec == Codec.BF16:
        values = values.view(torch.int16)
    return values.cpu().numpy().astype(_LAYOUT[codec], copy=False).tobytes()


def decode_tensor(
    payload: bytes | memoryview, shape: Sequence[int], codec: Codec, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A fresh, writable CPU tensor from a payload.

    Without `dtype`, float codecs give their own dtype, few bits float32, and integer codecs int64, the dtype of labels.
    """
    if codec in QUANT_BITS:
        few = decode_quantised(payload, shape, codec)
        return few if dtype is None else few.to(dtype)
    layout = _layout(codec)
    count, size = elements(shape), payload_bytes(shape, codec)
    if len(payload) != size:
        raise WireError(f"payload has {len(payload)} bytes, {codec.name} of {tuple(shape)} takes {size}")
    # frombuffer refuses an empty buffer
    raw = np.frombuffer(payload, dtype=layout) if count else np.empty(0, dtype=layout)
    native = layout.newbyteorder("=") if codec in _FLOATS else np.dtype(np.int64)
    values = torch.from_numpy(raw.astype(native, copy=True))
    if codec == Codec.BF16:
        values = values.view(torch.bfloat16)
    values = values.reshape(tuple(shape))
    return values if dtype is None else values.to(dtype)


def round_trip(tensor: torch.Tensor, codec: Codec, stacked: bool = False) -> torch.Tensor:
    """What the receiver would see, cast back to the input's dtype, without making the bytes.

    Works on any device. The result is contiguous, shares no memory with the input and carries no autograd
    history, like a decoded tensor. stacked: the first axis counts messages, not rows of one.
    """
    if codec in QUANT_BITS:
        return quantised_round_trip(tensor, codec, stacked)
    return _cast(tensor, codec).to(tensor.dtype)


def label_codec(classes: int) -> Codec:
    """The smallest codec for labels in `0..classes - 1`."""
    if not 1 <= classes <= 2**16:
        raise WireError(f"labels of {classes} classes cannot be sent, 1 to {2**16} classes can")
    return Codec.U8 if classes <= 2**8 else Codec.U16


def _layout(codec: Codec) -> np.dtype[np.generic]:
    if codec not in _LAYOUT:
        raise WireError(f"{codec!r} does not carry tensor values")
    return np.dtype(_LAYOUT[codec])


def _cast(tensor: torch.Tensor, codec: Codec) -> torch.Tensor:
    """A contiguous, detached copy in the dtype of the codec (int64 for the integer codecs)."""
    _layout(codec)
    if codec in _FLOATS:
        if not tensor.is_floating_point():
            raise WireError(f"{codec.name} carries float tensors, got {tensor.dtype}")
        return _copy(tensor, _FLOATS[codec])
    if tensor.dtype not in _INTEGERS:
        raise WireError(f"{codec.name} carries integer tensors, got {tensor.dtype}")
    values = _copy(tensor, torch.int64)
    if codec in _UNSIGNED and values.numel():
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > _UNSIGNED[codec]:
            raise WireError(f"values {low}..{high} do not fit {codec.name}, 0..{_UNSIGNED[codec]}")
    return values


def _copy(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # Contiguous first: a strided cast may give NaN other bits, and bytes must not depend on strides.
    return tensor.detach().contiguous().to(dtype, copy=True, memory_format=torch.contiguous_format)
