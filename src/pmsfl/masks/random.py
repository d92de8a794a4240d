"""Keyed random bits: every draw is a pure function of a key and a counter.

A mask must be the same on a CPU and on a GPU, under every executor and after a resume, so nothing here has a
state. The generator is SplitMix64 read as a counter-based one: word i of key k is mix(k + (i+1)·γ). All
arithmetic is 64-bit integer with wrap-around, which torch does identically everywhere; golden vectors in the
tests pin it.

It is not a cryptographic generator. A deployment gives each stream a key of its own, derived from a client's
secret, so that the bits of one stream say nothing about another's key.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= (1 << 63) else word


GAMMA = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)


class Stream(IntEnum):
    """What a key is for. Streams never share keys: an uploaded mask must say nothing about a forward one."""

    FROZEN = 1
    SCORES = 2
    SAMPLING = 3
    BATCHES = 4
    AUGMENT = 5
    FORWARD = 6
    UPLOAD = 7
    EVALUATION = 8
    SERVER = 9
    DROPOUT = 10
    ORDER = 11
    CONTROL = 12
    NOISE = 13
    LABELS = 14
    FAULTS = 15


def _shift(z: Tensor, by: int) -> Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * MIX_1
    z = (z ^ _shift(z, 27)) * MIX_2
    return z ^ _shift(z, 31)


def root(seed: int, stream: Stream, device: torch.device | str = "cpu") -> Tensor:
    """The key of one stream of a run: an int64 scalar."""
    key = torch.tensor(_signed(seed & ((1 << 64) - 1)), dtype=torch.int64, device=device)
    return fold(fold(key, 0), int(stream))


def fold(key: Tensor, data: int | Tensor) -> Tensor:
    """A new key from a key and an integer (or a tensor of them, which broadcasts): same shape rules as `+`."""
    spread = (data + 1) * GAMMA  # a tensor wraps around by itself, Python's integers do not
    if isinstance(spread, int):
        spread = _signed(spread & ((1 << 64) - 1))
    return _mix(_mix(key + GAMMA) ^ spread)


def words(key: Tensor, n: int) -> Tensor:
    """64 random bits each: int64 [*key.shape, n]. Word i does not depend on n."""
    return _mix(key.unsqueeze(-1) + _counter(n, key.device))


_counters: dict[tuple[int, torch.device], Tensor] = {}
_MOST_COUNTERS = 64


def _counter(n: int, device: torch.device) -> Tensor:
    """γ, 2γ, … nγ. Kept: a step draws the same lengths over and over."""
    keep = type(n) is int  # and not a tracer's symbol
    known = _counters.get((n, device)) if keep else None
    if known is None:
        known = torch.arange(1, n + 1, dtype=torch.int64, device=device) * GAMMA
        if keep and type(known) is Tensor:  # a tracer's stand-in must not outlive the trace
            if len(_counters) >= _MOST_COUNTERS:
                _counters.pop(next(iter(_counters)))
            _counters[n, device] = known
    return known


def uniform(key: Tensor, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniforms in [0, 1) on the grid of 2^-24, exact in every float type used here: [*key.shape, n].

    Two uniforms come from one word. Element i does not depend on n, so a client with a shallower bottom draws a
    prefix of what a deeper one draws.
    """
    w = words(key, (n + 1) // 2)
    pairs = torch.stack((_shift(w, 40), (w >> 8) & 0xFFFFFF), dim=-1)
    return pairs.flatten(-2)[..., :n].to(dtype) * 2.0**-24


def turned(drawn: Tensor, turns: Tensor) -> Tensor:
    """Uniforms [n] moved on around the circle [0, 1) by each of `turns` [K] (on the same grid, in [0, 1)): [K, n]."""
    back = drawn - (1.0 - turns).unsqueeze(-1)  # exact, which a sum above 1 would not be in float32
    return torch.where(back < 0.0, back + 1.0, back)


def integers(key: Tensor, n: int, high: int) -> Tensor:
    """n integers in [0, high) per key: int64 [*key.shape, n]. high must be below 2^31."""
    return (_shift(words(key, n), 32) * high) >> 32


def permutation(key: Tensor, n: int) -> Tensor:
    """A random order of 0..n-1 per key: int64 [*key.shape, n]. Ties, were there any, go to the lower index."""
    return torch.argsort(words(key, n), dim=-1, stable=True)


# Inverse normal distribution function by P. J. Acklam's rational approximation (relative error 1.2e-9).
_A: tuple[float, ...] = (
    -3.969683028665376e01,
    2.209460984245205e02,
    -2.759285104469687e02,
    1.383577518672690e02,
    -3.066479806614716e01,
    2.506628277459239e00,
)
_B = (
    -5.447609879822406e01,
    1.615858368580409e02,
    -1.556989798598866e02,
    6.680131188771972e01,
    -1.328068155288572e01,
    1.0,
)
_C = (
    -7.784894002430293e-03,
    -3.223964580411365e-01,
    -2.400758277161838e00,
    -2.549732539343734e00,
    4.374664141464968e00,
    2.938163982698783e00,
)
_D = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00, 1.0)
_TAIL = 0.02425
_Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _polynomial(coefficients: tuple[float, ...], x: _Array) -> _Array:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _log(x: _Array) -> _Array:
    """Natural logarithm by +, × and ÷ alone (these are exactly rounded on every machine; libm's log is not)."""
    mantissa, exponent = np.frexp(x)
    z = (mantissa - 1.0) / (mantissa + 1.0)
    series = _polynomial(tuple(1.0 / k for k in range(41, 0, -2)), z * z)
    return 2.0 * z * series + exponent * 0.6931471805599453


def normal(key: Tensor, n: int) -> Tensor:
    """n standard normals from one key: float64 [n] on the CPU, bit-identical on every IEEE machine.

    Frozen weights are derived from a seed on every host and compared by hash, so one differing last bit in a
    libm would lock a client out. Hence the arithmetic by hand, and the 53-bit uniforms in the open (0, 1).
    """
    w = _shift(words(key.cpu(), n), 11).numpy().astype(np.float64)
    p = (w + 0.5) * 2.0**-53
    q = p - 0.5
    central = _polynomial(_A, q * q) * q / _polynomial(_B, q * q)
    side = np.minimum(p, 1.0 - p)
    t = np.sqrt(-2.0 * _log(side))
    tail = _polynomial(_C, t) / _polynomial(_D, t)
    out = np.where(side < _TAIL, np.where(p < 0.5, tail, -tail), central)
    return torch.from_numpy(out)
