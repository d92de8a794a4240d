"""Mask bits coded against the θ that both sides know.

Payload: layout u8, then
    0: packed bits, where coding would be longer (a mask that has moved far from θ)
    1: ANS words of the bits, sorted by their probability (stable)

A bit's probability is θ on the grid of 1/256, within 1/256..255/256. Few probabilities let the coder run through
long rows of bits with one model: that is what makes it fast; it costs about 0.1 % of the length.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmsfl.wire.ans import Model, bernoulli
from pmsfl.wire.ans import decode as ans_decode
from pmsfl.wire.ans import encode as ans_encode
from pmsfl.wire.codecs import WireError, bitmap_bytes
from pmsfl.wire.masks import pack_bits, unpack_bits

_PACKED, _CODED = 0, 1
GRID = 256


def encode_bits(bits: Tensor, theta: Tensor) -> bytes:
    """A bool tensor [n] given θ [n], the probability that each is set; at most a byte longer than packed bits."""
    if bits.dtype != torch.bool or bits.ndim != 1 or bits.shape != theta.shape:
        raise WireError(f"bits must be bool [n] like θ, got {bits.dtype} {list(bits.shape)} and {list(theta.shape)}")
    order, models = _models(theta)
    words = ans_encode(bits.detach().cpu().numpy()[order].astype(np.int32), models)
    if len(words) < bitmap_bytes(len(bits)):
        return bytes([_CODED]) + words
    return bytes([_PACKED]) + pack_bits(bits)


def decode_bits(payload: bytes | memoryview, theta: Tensor) -> Tensor:
    """The bool tensor [n] that `encode_bits` wrote with the same θ [n]; WireError on anything else."""
    n = len(theta)
    if not 1 <= len(payload) <= 1 + bitmap_bytes(n):
        raise WireError(f"{n} coded bits take 1 to {1 + bitmap_bytes(n)} bytes, got {len(payload)}")
    layout, body = payload[0], memoryview(payload)[1:]
    if layout == _PACKED:
        return unpack_bits(body, n)
    if layout != _CODED:
        raise WireError(f"unknown layout {layout} of coded bits")
    order, models = _models(theta)
    bits = np.empty(n, dtype=np.bool_)
    bits[order] = ans_decode(body, models).astype(np.bool_)
    return torch.from_numpy(bits)


def cross_entropy_bits(bits: Tensor, theta: Tensor) -> float:
    """-Σ log2 P_θ(bits): what no code that knows θ alone can beat on average."""
    p = theta.detach().double().cpu()
    return float(-torch.where(bits.cpu(), p, 1.0 - p).log2().sum())


def _models(theta: Tensor) -> tuple[npt.NDArray[np.int64], list[Model]]:
    """Where each sorted bit stands, and the models of the sorted bits."""
    values = theta.detach().cpu().numpy()
    if not bool(np.isfinite(values).all()):
        raise WireError("θ is not finite; if training diverged, start a new run with a lower lr_score")
    # A power of two: the product is exact in every float type, so that both sides round alike.
    levels = np.clip(np.rint(values * values.dtype.type(GRID)), 1, GRID - 1).astype(np.uint8)
    counts = np.bincount(levels, minlength=GRID).tolist()
    order = np.argsort(levels, kind="stable")
    return order, [(count, bernoulli(level, GRID)) for level, count in enumerate(counts) if count]
