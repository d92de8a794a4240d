"""`pmsfl bench wire`: how many bits each codec takes on a trained run's own messages, and how fast it is.

MB/s count four bytes per parameter or value, whatever travels. Ratios to fp32 include headers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmsfl.bench.messages import Sample, keep_messages, messages_of
from pmsfl.engine.settings import CODECS, THETA_CODECS
from pmsfl.errors import PmsflError
from pmsfl.masks.bernoulli import entropy_bits
from pmsfl.wire.codecs import Codec
from pmsfl.wire.coded_masks import cross_entropy_bits, decode_bits, encode_bits
from pmsfl.wire.masks import decode_indices, encode_indices, pack_bits, unpack_bits
from pmsfl.wire.messages import header_bytes
from pmsfl.wire.tensors import decode_tensor, encode_tensor
from pmsfl.wire.units import decode_unit, encode_unit

FP32_BYTES = 4


def measure_wire(path: Path | None, device: str = "auto", repeats: int = 5, keep: Path | None = None) -> dict[str, Any]:
    """Masks, θ, personal indices and tensors at the cut, each in every codec.

    path: a run, or a file of messages that were kept; without it the demo is trained. keep: write such a file first.
    """
    if repeats < 1:
        raise PmsflError(f"repeats = {repeats}: take at least 1")
    sample, about = messages_of(path, device)
    if keep is not None:
        keep_messages(keep, sample, about)
    in_run = about.pop("indices_in_run")
    return (
        {"bench": "wire"}
        | about
        | {"repeats": repeats, "clients": len(sample.bits), "parameters": len(sample.theta)}
        | {
            "mask": measure_masks(sample, repeats),
            "indices": measure_indices(sample, repeats) | in_run,
            "theta": {name: _theta(sample.theta, codec, repeats) for name, codec in THETA_CODECS.items()},
            "tensors": {name: _tensor(sample.smashed, codec, repeats) for name, codec in CODECS.items()},
            "gradients": {name: _tensor(sample.gradient, codec, repeats) for name, codec in CODECS.items()},
        }
    )


def measure_masks(sample: Sample, repeats: int) -> dict[str, Any]:
    """Coded and packed bits of all clients, beside what θ says about them. Headers, 36 bytes a client, stand apart:
    they are all that matters for a tiny model and nothing for a large one. The ratio has them in."""
    known = [sample.theta[shared] for shared in sample.contributes]
    bits = [row[shared] for row, shared in zip(sample.bits, sample.contributes, strict=True)]
    count = sum(len(b) for b in bits)
    if not count:
        raise PmsflError("every coordinate of these clients is personal: no mask bits are left to send")
    coded = [encode_bits(b, t) for b, t in zip(bits, known, strict=True)]
    packed = [pack_bits(b) for b in bits]
    size = 8 * sum(len(p) for p in coded) / count
    header = 8 * header_bytes(1) * len(bits) / count
    least = sum(cross_entropy_bits(b, t) for b, t in zip(bits, known, strict=True)) / count
    return {
        "bits_per_parameter": size,
        "cross_entropy": least,
        "over_cross_entropy": size / least,
        "header_bits_per_parameter": header,
        "entropy": float(torch.cat([entropy_bits(t.double()) for t in known]).mean()),
        "ratio": 8 * FP32_BYTES / (size + header),
        "parameters": count,
        "packed_bits_per_parameter": 8 * sum(len(p) for p in packed) / count,
        "mb_s_encode": _speed(lambda: [encode_bits(b, t) for b, t in zip(bits, known, strict=True)], count, repeats),
        "mb_s_decode": _speed(lambda: [decode_bits(p, t) for p, t in zip(coded, known, strict=True)], count, repeats),
        "mb_s_encode_packed": _speed(lambda: [pack_bits(b) for b in bits], count, repeats),
        "mb_s_decode_packed": _speed(
            lambda: [unpack_bits(p, len(b)) for p, b in zip(packed, bits, strict=True)], count, repeats
        ),
    }


def measure_indices(sample: Sample, repeats: int) -> dict[str, Any]:
    """New personal coordinates of all clients in this round; only their number where there are none."""
    pairs = []
    for fresh, contributes in zip(sample.fresh, sample.contributes, strict=True):
        space = fresh | contributes
        pairs.append((fresh[space].nonzero().squeeze(1), int(space.sum())))
    number, space_size = sum(len(i) for i, _ in pairs), sum(n for _, n in pairs)
    if not number:
        return {"indices": 0}
    payloads = [encode_indices(i, n) for i, n in pairs]
    mask_bytes = sum(header_bytes(1) + (int(c.sum()) + 7) // 8 for c in sample.contributes)
    size = sum(header_bytes(1) + len(p) for p in payloads)
    entropy = sum(n * float(entropy_bits(torch.tensor(len(i) / max(n, 1), dtype=torch.float64))) for i, n in pairs)
    return {
        "indices": number,
        "bits_per_index": 8 * size / number,
        "entropy_per_index": entropy / number,
        "of_packed_mask": size / mask_bytes,
        "mb_s_encode": _speed(lambda: [encode_indices(i, n) for i, n in pairs], space_size, repeats),
        "mb_s_decode": _speed(
            lambda: [decode_indices(p, n) for p, (_, n) in zip(payloads, pairs, strict=True)], space_size, repeats
        ),
    }


def _theta(theta: Tensor, codec: Codec, repeats: int) -> dict[str, float]:
    n = len(theta)
    payload = encode_unit(theta, codec)
    received = decode_unit(payload, n, codec, theta.dtype)
    size = header_bytes(1) + len(payload)
    return {
        "bits_per_parameter": 8 * size / n,
        "ratio": FP32_BYTES * n / size,
        "max_error": float((received - theta).abs().max()),
        "mb_s_encode": _speed(lambda: encode_unit(theta, codec), n, repeats),
        "mb_s_decode": _speed(lambda: decode_unit(payload, n, codec, theta.dtype), n, repeats),
    }


def _tensor(tensor: Tensor, codec: Codec, repeats: int) -> dict[str, float]:
    t, shape = tensor.float(), tuple(tensor.shape)
    payload = encode_tensor(t, codec)
    received = decode_tensor(payload, shape, codec, torch.float32)
    size = header_bytes(len(shape)) + len(payload)
    error = received - t
    return {
        "bits_per_value": 8 * size / t.numel(),
        "ratio": (header_bytes(len(shape)) + FP32_BYTES * t.numel()) / size,
        "max_error": float(error.abs().max()),
        "relative_error": float(error.norm() / t.norm().clamp_min(1e-30)),
        "mb_s_encode": _speed(lambda: encode_tensor(t, codec), t.numel(), repeats),
        "mb_s_decode": _speed(lambda: decode_tensor(payload, shape, codec), t.numel(), repeats),
    }


def _speed(work: Callable[[], object], values: int, repeats: int) -> float:
    """MB/s of float32 values, the median of some repeats after one to warm up."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return FP32_BYTES * values / max(float(np.median(seconds)), 1e-9) / 1e6
