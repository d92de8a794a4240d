"""The paper's own privacy formulas, for comparison only: none of them is a guarantee, and each says why."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Claim:
    """What the paper states for a setting. value: its ε, None where the statement has no number here."""

    statement: str
    value: float | None
    verdict: str


def smashed_claim(epsilon: float, clip: float, size: int) -> float:
    """Theorem 2: ε_amp = ln((1 − c^d) e^ε + c^d)."""
    never = math.exp(size * math.log(clip))  # 0 for any real d
    return math.log1p((1.0 - never) * math.expm1(epsilon)) if epsilon < 700.0 else epsilon


def update_claim(noise: float, steps: int, delta: float) -> float:
    """Theorem 3a solved for ε: σ = noise·Γ/|Q| on the mean of |Q| gradients clipped to Γ, R steps."""
    return math.sqrt(2.0 * steps * math.log(1.0 / delta)) / noise


def theta_claim(noise: float, clip: float, delta: float) -> float:
    """Theorem 3b solved for ε."""
    return (1.0 - 2.0 * clip) * math.sqrt(2.0 * math.log(1.25 / delta)) / noise


def sampling_claim(clip: float, size: int) -> float:
    """The printed term of the Bernoulli amplification, at its best order α."""
    a = 1.0 + np.logspace(-3.0, 6.0, 2001)
    terms = size / (a - 1.0) * (math.log(2.0) + a * math.log(1.0 - clip) + (1.0 - a) * math.log(clip))
    return float(terms.min())


def pure_bound(clip: float, size: int) -> float:
    """A bound that does hold for one mask, d·ln((1 − c)/c), however the scores moved."""
    return size * math.log((1.0 - clip) / clip)


def claims(
    *,
    clip: float,
    size: int,
    delta: float,
    steps: int,
    smashed: float | None,
    gradient_noise: float,
    theta_noise: float,
    upload_masks: int = 1,
) -> list[Claim]:
    """Theorems 1 to 3 for d = `size` masked coordinates and R = `steps`.

    smashed: the ε of one release, None: no noise. upload_masks: how many go up as their mean.
    """
    holds = f"what does hold for one mask is d·ln((1−c)/c) = {pure_bound(clip, size):.4g}"
    if upload_masks > 1:  # the means of θ = c and of θ = 1 − c need not have a value in common
        holds = f"about one mask, not the mean of {upload_masks}, for which no such bound holds"
    log_never = size * math.log10(clip)
    return [
        Claim(
            "Theorem 1: reconstruction error at least Σ P(M̂) λ_min/λ_max ‖x‖",
            None,
            "bounds one attacker, who guesses a mask and inverts; W⊙(M̂−M) is nearly always singular, so it is 0",
        ),
        Claim(
            "Theorem 2: smashed data, ε_amp = ln((1−c^d)e^ε + c^d)",
            None if smashed is None else smashed_claim(smashed, clip, size),
            f"holds for one scalar, one release, a fresh mask per sample; c^d = 10^{log_never:.0f}: no amplification",
        ),
        Claim(
            "Theorem 3a: noise on score updates, σ² ≥ 2RΓ² ln(1/δ)/(ε²|Q|²)",
            update_claim(gradient_noise, steps, delta) if gradient_noise > 0.0 else None,
            "replacing a record moves the sum by 2Γ, not Γ, and it covers one round only",
        ),
        Claim(
            "Theorem 3b: noise on θ, σ² ≥ 2(1−2c)² ln(1.25/δ)/ε²",
            theta_claim(theta_noise, clip, delta) if theta_noise > 0.0 else None,
            "wrong for d > 1: a factor of √d is missing; one round only",
        ),
        Claim(
            "Bernoulli amplification: min over α of d/(α−1)·log(2(1−c)^α c^(1−α))",
            sampling_claim(clip, size),
            f"not a Rényi divergence; {holds}",
        ),
    ]
