"""Many uploads → one shared vector (Eqs. 5 and 8): K clients, P coordinates.

The same rules serve bits, probabilities and weights, so that damping never flatters one method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pmsfl.masks.bernoulli import entropy_bits, to_scores

Rule = Literal["sampled", "damped", "beta", "settled"]


@dataclass(frozen=True)
class Aggregator:
    """How uploads become the next shared vector.

    sampled: the mean of the contributors. damped: previous + η·(mean − previous).
    beta: the mode of a Beta posterior with a symmetric prior (FedPM), for uploads in [0, 1].
    settled: damped with an η that falls from 1 in the end (`at`), for masks: what is left of it then is the mean of the
    last rounds, without their noise. Weights come to rest by their learning rate.
    """

    rule: Rule = "sampled"
    damping: float = 0.5
    prior: float = 1.0
    min_contributors: int = 1

    def at(self, unsettled: float) -> Aggregator:
        """The rule of a round, given η of a settled one."""
        return replace(self, damping=unsettled) if self.rule == "settled" else self


def weighted_sums(uploads: Tensor, contributes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per coordinate: Σ weight·upload, Σ weight and the head count of its contributors; each [P].

    uploads, contributes: [K, P]; weights: [K]. What a client does not contribute is never looked at.
    """
    share = contributes * weights.unsqueeze(1)
    total = torch.where(contributes, uploads * share, torch.zeros_like(uploads)).sum(0)
    return total, share.sum(0), contributes.sum(0)


Counts = tuple[Tensor, Tensor]


def merge(
    previous: Tensor,
    uploads: Tensor,
    contributes: Tensor,
    aggregator: Aggregator,
    weights: Tensor | None = None,
    counts: Counts | None = None,
) -> tuple[Tensor, Counts | None]:
    """The next shared vector [P]. A coordinate with too few contributors keeps its previous value (no 0/0).

    For `beta` also the posterior's pseudo-counts (α, β), each [P]; `counts` are those of the round before, or
    None to start from the prior.
    """
    if weights is None:
        weights = torch.ones(uploads.shape[0], dtype=previous.dtype, device=previous.device)
    sums = weighted_sums(uploads, contributes, weights.to(previous.dtype))
    return merge_sums(previous, *sums, aggregator, counts)


def merge_sums(
    previous: Tensor, total: Tensor, share: Tensor, heads: Tensor, aggregator: Aggregator, counts: Counts | None = None
) -> tuple[Tensor, Counts | None]:
    """`merge` for a server that never sees single uploads: from what `weighted_sums` (or a secure sum, where the share
    is the head count) gives."""
    value = total / share.clamp_min(torch.finfo(previous.dtype).tiny)
    if aggregator.rule in ("damped", "settled"):
        value = previous + aggregator.damping * (value - previous)
    elif aggregator.rule == "beta":
        counts = counts or (torch.full_like(previous, aggregator.prior),) * 2
        counts = (counts[0] + total, counts[1] + (share - total))
        value = beta_mode(*counts, fallback=value)
    enough = (heads >= max(1, aggregator.min_contributors)) & (share > 0)
    return torch.where(enough, value, previous), counts


def beta_mode(alpha: Tensor, beta: Tensor, fallback: Tensor) -> Tensor:
    """The mode (α−1)/(α+β−2), where the posterior has one; elsewhere `fallback`."""
    excess = alpha + beta - 2.0
    return torch.where(excess > 0, (alpha - 1.0) / excess.clamp_min(1e-12), fallback).clamp(0.0, 1.0)


def steer_entropy(theta: Tensor, target: float, rate: float, clip: float) -> Tensor:
    """θ [P] with its logits moved by `rate` away from 0 where the mean entropy is above `target` bits, and towards 0
    where it is below: less random masks learn more, more random ones tell less."""
    logits = to_scores(theta, clip)
    away = torch.sign(entropy_bits(theta).mean() - target)
    return torch.sigmoid(logits * (1.0 + rate * away))
