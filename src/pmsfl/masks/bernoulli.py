"""Scores → θ → M, and how a gradient finds its way back to the scores.

Tensors are any shape; coordinates are the last axis. θ = σ(s), M ~ Bern(θ).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["paper", "plain"]
Act = Literal["drop", "flip"]


def to_scores(theta: Tensor, clip: float) -> Tensor:
    """s = logit(θ), θ first clipped to [clip, 1 − clip] so that no score is infinite."""
    return torch.logit(theta.clamp(clip, 1.0 - clip))


def bound(clip: float) -> float:
    """The largest |s| whose θ stays within [clip, 1 − clip]. Scores are projected to it after every step."""
    return math.log((1.0 - clip) / clip)


def sample(theta: Tensor, uniform: Tensor) -> Tensor:
    """M ~ Bern(θ) as booleans, from uniforms in [0, 1) of the same shape."""
    return uniform < theta


def sample_mean(theta: Tensor, uniform: Tensor, masks: int) -> Tensor:
    """The mean of so many masks drawn evenly from θ, with one uniform for all of them; same shape.

    Their draws lie 1/masks apart, so the mean is θ rounded by chance to a multiple of 1/masks: right on average, and
    never off by a whole step. One mask: `sample`.
    """
    return torch.ceil(masks * theta - uniform) / masks


def keep_mask(theta: Tensor, uniform: Tensor) -> Tensor:
    """Stand-in uniforms (0 or 1) that give `sample` the mask of this draw again, wherever θ has moved since."""
    return (~sample(theta, uniform)).to(theta.dtype)


def stand_in(theta: Tensor, mean: Tensor, masks: int) -> Tensor:
    """Numbers that, taken for uniforms, give `sample_mean` (of one mask, `sample`) this very mean at this θ."""
    return masks * (theta - mean) + 0.5


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


def under(weights: Tensor, mask: Tensor, act: Act) -> Tensor:
    """Weights under a mask (bits, or their chances): where it is 0 a weight drops out, or its sign flips.

    With one bit a weight, half of the frozen signs are wrong and can only be dropped; flipped, they are of use.
    """
    return weights * mask if act == "drop" else weights * (2.0 * mask - 1.0)


def mask_of(effective: Tensor, weights: Tensor, act: Act) -> Tensor:
    """The mask that `under` was given, from what it made of weights that are nowhere 0."""
    ratio = effective / weights
    return ratio if act == "drop" else 0.5 * (ratio + 1.0)


def entropy_bits(theta: Tensor) -> Tensor:
    """Binary entropy of each θ in bits, 0 at 0 and 1; same shape."""
    nats: Tensor = torch.special.entr(theta) + torch.special.entr(1.0 - theta)
    return nats / math.log(2.0)


def mean_entropy_bits(theta: Tensor, masks: int) -> Tensor:
    """Entropy of `sample_mean` in bits: chance decides between two neighbouring multiples of 1/masks; same shape."""
    return entropy_bits((masks * theta).frac())


def share_at_clip(scores: Tensor, clip: float) -> Tensor:
    """The share of each row's scores [..., P] whose θ is at c or 1 − c: [...]. logit(c) may round to within 1e-5."""
    edge = bound(clip) * (1.0 - 1e-5)
    return (scores.abs() >= edge).sum(-1) / max(scores.shape[-1], 1)
