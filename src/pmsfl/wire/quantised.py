"""Floats in 8, 4 or 2 bits with a scale and a zero per channel.

Payload, C channels, n values of b bits:

    C x bf16 step | C x u8 zero | n codes of b bits in C order, the first in the lowest bits, the rest zero

A value is (code - zero) * step. Both factors have at most 8 significant bits, so the product is exact in every float
type that a receiver may use: all receivers see the same numbers. Zero has a code of its own; data behind a ReLU uses
all codes above it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmsfl.wire.codecs import QUANT_BITS, Codec, WireError, channel_axis, channels, elements, payload_bytes

_LOW_BITS = 0xFFFF  # of a float32: those that a bf16 has not
_INFINITY = 0x7F80  # the bits of a bf16


def quantised_round_trip(tensor: Tensor, codec: Codec, stacked: bool = False) -> Tensor:
    """What the receiver would see, in the input's dtype. Nothing in it waits for the device.

    stacked: the first axis counts messages, each with scales of its own.
    """
    codes, step, zero = _quantise(tensor, codec, stacked)
    return ((codes - zero) * step).to(tensor.dtype).contiguous()


def encode_quantised(tensor: Tensor, codec: Codec) -> bytes:
    """One tensor as bytes."""
    bits = QUANT_BITS[codec]
    if not elements(tuple(tensor.shape)):
        return bytes(payload_bytes(tuple(tensor.shape), codec))
    codes, step, zero = _quantise(tensor, codec, stacked=False)
    # What is not finite has a step that is not, which the receiver will see; its codes mean nothing.
    small = codes.nan_to_num(0.0, 0.0, 0.0).to(torch.uint8).cpu().numpy().reshape(-1)
    steps = step.to(torch.bfloat16).flatten().view(torch.int16).cpu().numpy().astype("<i2")
    zeros = zero.nan_to_num(0.0, 0.0, 0.0).to(torch.uint8).flatten().cpu().numpy()
    return steps.tobytes() + zeros.tobytes() + _pack(small, bits).tobytes()


def decode_quantised(payload: bytes | memoryview, shape: Sequence[int], codec: Codec) -> Tensor:
    """A fresh float32 tensor; WireError on another length, an impossible zero or bits behind the last code."""
    bits, count, groups = QUANT_BITS[codec], elements(shape), channels(shape)
    size = payload_bytes(shape, codec)
    if len(payload) != size:
        raise WireError(f"payload has {len(payload)} bytes, {codec.name} of {tuple(shape)} takes {size}")
    steps = np.frombuffer(payload, dtype="<i2", count=groups)
    zeros = np.frombuffer(payload, dtype=np.uint8, count=groups, offset=2 * groups)
    if bool(np.any((steps < 0) & ((steps & 0x7FFF) <= _INFINITY))):  # NaN may have a sign
        raise WireError(f"{codec.name}: a channel's step is negative")
    if groups and int(zeros.max()) >= 1 << bits:
        raise WireError(f"{codec.name}: a channel's zero is {int(zeros.max())}, codes end at {(1 << bits) - 1}")
    codes = _unpack(np.frombuffer(payload, dtype=np.uint8, offset=3 * groups), count, bits)
    axis = channel_axis(len(shape))
    along = [1] * len(shape)
    if axis is not None:
        along[axis] = groups
    step = torch.from_numpy(steps.astype(np.int16)).view(torch.bfloat16).to(torch.float32).reshape(along)
    zero = torch.from_numpy(zeros.astype(np.float32)).reshape(along)
    values = torch.from_numpy(codes.astype(np.float32)).reshape(tuple(shape))
    return values.sub_(zero).mul_(step)


def _quantise(tensor: Tensor, codec: Codec, stacked: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes like the tensor, step and zero with one entry per message and channel (other axes 1), all floats."""
    if not tensor.is_floating_point():
        raise WireError(f"{codec.name} carries float tensors, got {tensor.dtype}")
    top = float(2 ** QUANT_BITS[codec] - 1)
    values = tensor.detach()
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    low, high = _range(values, stacked)
    step = _rounded_up((high - low) / top).to(values.dtype)
    divisor = torch.where(step > 0, step, torch.ones_like(step))
    zero = torch.floor(0.5 - low / divisor).clamp(0.0, top)
    codes = (torch.floor(values / divisor + 0.5) + zero).clamp(0.0, top)
    return codes, step, zero


def _rounded_up(step: Tensor) -> Tensor:
    """The next bf16 as a float32, so that codes span the range. In whole numbers: a compiler that keeps bf16 in wider
    registers between two operations would leave a cast out."""
    exact = step.to(torch.float32)
    whole = ((exact.view(torch.int32) + _LOW_BITS) & ~_LOW_BITS).view(torch.float32)
    return torch.where(exact == exact, whole, exact)  # NaN could become a number


def _range(values: Tensor, stacked: bool) -> tuple[Tensor, Tensor]:
    """Least and greatest value of every channel, 0 included; NaN where there is one."""
    first = int(stacked)
    axis = channel_axis(values.ndim - first)
    over = [d for d in range(first, values.ndim) if axis is None or d != axis + first]
    if not over:
        return values.clamp_max(0.0), values.clamp_min(0.0)
    return values.amin(over, keepdim=True).clamp_max(0.0), values.amax(over, keepdim=True).clamp_min(0.0)


def _pack(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    each = 8 // bits
    if each == 1:
        return codes
    padded = np.zeros(-(-len(codes) // each) * each, dtype=np.uint8)
    padded[: len(codes)] = codes
    parts = padded.reshape(-1, each)
    out = parts[:, 0].copy()
    for place in range(1, each):
        out |= parts[:, place] << (bits * place)
    return out


def _unpack(packed: npt.NDArray[np.uint8], count: int, bits: int) -> npt.NDArray[np.uint8]:
    each = 8 // bits
    if each == 1:
        return packed
    parts = np.empty((len(packed), each), dtype=np.uint8)
    for place in range(each):
        parts[:, place] = (packed >> (bits * place)) & ((1 << bits) - 1)
    codes = parts.reshape(-1)
    if bool(codes[count:].any()):
        raise WireError(f"bits are set behind the last of {count} codes")
    return codes[:count]
