"""Scores → θ → M, and how a gradient finds its way back to the scores.

Tensors are any shape; coordinates are the last axis. θ = σ(s), M ~ Bern(θ).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["paper", "plain"]


def to_scores(theta: Tensor, clip: float) -> Tensor:
    """s = logit(θ), θ first clipped to [clip, 1 − clip] so that no score is infinite."""
    return torch.logit(theta.clamp(clip, 1.0 - clip))


def bound(clip: float) -> float:
    """The largest |s| whose θ stays within [clip, 1 − clip]. Scores are projected to it after every step."""
    return math.log((1.0 - clip) / clip)


def sample(theta: Tensor, uniform: Tensor) -> Tensor:
    """M ~ Bern(θ) as booleans, from uniforms in [0, 1) of the same shape."""
    return uniform < theta


def keep_mask(theta: Tensor, uniform: Tensor) -> Tensor:
    """Stand-in uniforms (0 or 1) that give `sample` the mask of this draw again, wherever θ has moved since."""
    return (~sample(theta, uniform)).to(theta.dtype)


def straight_through(scores: Tensor, mask: Tensor, estimator: Estimator) -> Tensor:
    """The mask as floats, with a gradient to the scores.

    paper (Eq. 4): dL/ds = dL/dM · σ(s) · σ'(s); plain: dL/ds = dL/dM · σ'(s).
    Written with detach instead of a custom backward, so that vmap and compilers see ordinary operations;
    θ − θ.detach() is exactly zero, so the value is exactly the mask.
    """
    theta = torch.sigmoid(scores)
    fixed = theta.detach()
    slope = theta - fixed
    if estimator == "paper":
        slope = fixed * slope
    return mask.to(scores.dtype) + slope


def entropy_bits(theta: Tensor) -> Tensor:
    """Binary entropy of each θ in bits, 0 at 0 and 1; same shape."""
    nats: Tensor = torch.special.entr(theta) + torch.special.entr(1.0 - theta)
    return nats / math.log(2.0)


def share_at_clip(scores: Tensor, clip: float) -> Tensor:
    """The share of each row's scores [..., P] whose θ is at c or 1 − c: [...]. logit(c) may round to within 1e-5."""
    edge = bound(clip) * (1.0 - 1e-5)
    return (scores.abs() >= edge).sum(-1) / max(scores.shape[-1], 1)
