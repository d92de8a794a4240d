"""Clipping and keyed noise, and what a composition of releases adds up to. Rows are samples or clients."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from pmsfl.masks.random import fold, words


def clip_rows(x: Tensor, limit: float, order: int) -> Tensor:
    """Each row of x [n, m] scaled down to an L1 (order 1) or L2 (order 2) norm of at most `limit`."""
    norm: Tensor = torch.linalg.vector_norm(x, order, 1, keepdim=True)  # has a gradient at 0, too
    return x * (limit / norm.clamp_min(limit))


def _open_uniform(key: Tensor, n: int) -> Tensor:
    """float64 in the open (0, 1), 53 bits: a float32 uniform would make an infinite Laplace draw now and then."""
    bits = (words(key, n) >> 11) & ((1 << 53) - 1)
    return ((bits.double() + 0.5) * 2.0**-53).clamp_max(1.0 - 2.0**-53)  # the last one would round up to 1


def laplace(keys: Tensor, n: int) -> Tensor:
    """Laplace noise of scale 1: float64 [*keys.shape, n]."""
    u = _open_uniform(keys, n) - 0.5
    return -u.sign() * torch.log1p(-2.0 * u.abs())


def gaussian(keys: Tensor, n: int) -> Tensor:
    """Standard normal noise by Box-Muller: float64 [*keys.shape, n]."""
    radius = torch.sqrt(-2.0 * torch.log(_open_uniform(fold(keys, 0), n)))
    return radius * torch.cos(2.0 * math.pi * _open_uniform(fold(keys, 1), n))


def clip_and_noise(
    x: Tensor, mechanism: str, limit: float, epsilon: float, delta: float, keys: Tensor, size: int
) -> Tensor:
    """Rows x [n, m], each clipped to `limit` and given noise that makes one release of it (ε, δ)-private.

    Replacing what a row is made from moves it by up to 2·limit: in L1 for laplace, in L2 for gaussian.
    keys: [A], each for n/A of the rows, which are `size` numbers.
    """
    if mechanism == "laplace":
        noise = laplace(keys, size) * (2.0 * limit / epsilon)
    else:
        noise = gaussian(keys, size) * (2.0 * limit / gaussian_ratio(epsilon, delta))
    return clip_rows(x, limit, 1 if mechanism == "laplace" else 2) + noise.reshape(x.shape).to(x.dtype)


def noised_mean(x: Tensor, limit: float, noise: float, keys: Tensor) -> Tensor:
    """The mean over n of rows x [A, n, m], each clipped to `limit` in L2, with noise·limit on their sum: [A, m]."""
    a, n, m = x.shape
    total = clip_rows(x.reshape(a * n, m), limit, 2).reshape(a, n, m).sum(1)
    return (total + noise * limit * gaussian(keys, m).to(total.dtype)) / n


def signal_to_noise_db(mechanism: str, epsilon: float, delta: float, size: int) -> float:
    """At most how strong a clipped row of `size` numbers is against its noise in `clip_and_noise`, in decibels."""
    per_limit = 2.0 / epsilon if mechanism == "laplace" else 2.0 / gaussian_ratio(epsilon, delta)
    variance = per_limit**2 * (2.0 if mechanism == "laplace" else 1.0)
    return -10.0 * math.log10(size * variance)


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a Gaussian mechanism whose sensitivity is μ standard deviations; exact (Balle and Wang, 2018)."""
    first = _normal_cdf(mu / 2.0 - epsilon / mu)
    log_second = epsilon + _log_normal_cdf(-mu / 2.0 - epsilon / mu)
    return first - (math.exp(log_second) if log_second > -745.0 else 0.0)


def _log_normal_cdf(x: float) -> float:
    if x > -30.0:
        return math.log(max(_normal_cdf(x), 5e-324))
    return -0.5 * x * x - math.log(-x) - 0.5 * math.log(2.0 * math.pi)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The ε at δ of a Gaussian mechanism with ratio μ. k releases compose to √k·μ exactly, so one call does all."""
    low, high = 0.0, 1.0
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    while gaussian_delta(mu, high) > delta:
        high *= 2.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


@cache
def gaussian_ratio(epsilon: float, delta: float) -> float:
    """The largest μ = sensitivity/σ that keeps a single release (ε, δ)-private."""
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    return low


def laplace_epsilon(epsilon: float, releases: int, delta: float) -> float:
    """What `releases` pure ε-private releases come to at δ: the better of basic and advanced composition."""
    basic = releases * epsilon
    if epsilon > 50.0:
        return basic
    advanced = epsilon * math.sqrt(2.0 * releases * math.log(1.0 / delta))
    advanced += releases * epsilon * math.expm1(epsilon) / (math.exp(epsilon) + 1.0)
    return min(basic, advanced)


# Every order is a valid bound by itself, so a grid is never wrong, and more ρ never gives less ε.
_ORDERS = 1.0 + np.logspace(-4.0, 7.0, 4001)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The ε at δ of a ρ-zCDP mechanism (Canonne, Kamath and Steinke, 2020); ρ adds up over releases.

    A mask M ~ Bern(σ(s)) is (S²/8)-zCDP for scores that move by S in L2: the log-partition of a Bernoulli variable
    has curvature 1/4 at most. Its Rényi divergences are those of a Gaussian with σ = 2 on the scores, or less, but
    the Gaussian's exact δ(ε) is no bound: one fair coin whose score moves by S is S/4 apart in total variation, the
    Gaussian 0.1995·S.
    """
    if rho <= 0.0:
        return 0.0
    a = _ORDERS
    bounds = rho * a + np.log1p(-1.0 / a) - (math.log(delta) + np.log(a)) / (a - 1.0)
    return max(float(bounds.min()), 0.0)


def mask_rho(sensitivity: float) -> float:
    """The ρ of one sampled mask whose scores have this L2 sensitivity."""
    return sensitivity * sensitivity / 8.0
