"""Confidence intervals of a mean: Student's t for whole degrees of freedom, without a statistics library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """A mean and its standard error (None with a single value)."""

    mean: float
    error: float | None
    n: int


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def summarise(values: Iterable[float]) -> Summary | None:
    """Mean and standard error, the deviation taken with n − 1; None without values."""
    found = list(values)
    if not found:
        return None
    centre = mean(found)
    if len(found) == 1:
        return Summary(centre, None, 1)
    variance = math.fsum((v - centre) ** 2 for v in found) / (len(found) - 1)
    return Summary(centre, math.sqrt(variance / len(found)), len(found))


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its confidence interval (None with a single value)."""

    mean: float
    half: float | None
    n: int


def interval(values: Iterable[float]) -> Interval | None:
    """Mean ± 95 %; None without values."""
    found = summarise(values)
    if found is None:
        return None
    half = None if found.error is None else t_quantile(found.n - 1) * found.error
    return Interval(found.mean, half, found.n)


@cache
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """t with P(|T| ≤ t) = confidence, found by bisection."""
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < confidence:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if t_probability(middle, freedom) < confidence else (low, middle)
    return high


def t_probability(t: float, freedom: int) -> float:
    """P(|T| ≤ t) as a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    if freedom < 1:
        raise ValueError(f"freedom = {freedom}: Student's t takes at least 1")
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(odd, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    return 2.0 / math.pi * (angle + sine * total) if odd else sine * total
