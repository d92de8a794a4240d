"""DepthFL in split form: a classifier after every client block, and the classifiers teach each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pmsfl.methods.base import Method
from pmsfl.methods.pm_sfl import PMSFL

RAMP = 0.3  # share of the rounds over which distillation comes in


class DepthFL(PMSFL):
    """Masks are trained, as in the paper's table; a block is averaged over the clients that hold it."""

    name = "depthfl"
    summary = "a classifier after every client block, distilled into each other; masks (train=weights: weights)"
    paper = "DepthFL (ICLR 2023)"
    personalises = False
    compensates = False
    exits = True


class DepthFLWeights(Method):
    """The labelled variant: weights are trained and averaged."""

    name = "depthfl"
    summary = DepthFL.summary
    paper = DepthFL.paper
    exits = True


def distillation(round_: int, rounds: int) -> float:
    """The weight of distillation in a round: it comes in linearly over the first 30 % of the rounds."""
    return min(1.0, (round_ + 1) / max(RAMP * rounds, 1.0))


def exit_loss(logits: Tensor, labels: Tensor, ramp: float | Tensor, smoothing: float = 0.0) -> Tensor:
    """Σ over clients of their local loss. logits [A, d, B, C] of d classifiers, labels [A, B].

    Cross-entropy of each classifier, with smoothed labels where asked, plus ramp · KL between all pairs (the teacher
    detached, temperature 1).
    """
    a, d, b, c = logits.shape
    everyone = labels.unsqueeze(1).expand(a, d, b)
    each = F.cross_entropy(logits.reshape(-1, c), everyone.reshape(-1), reduction="sum", label_smoothing=smoothing)
    loss = each / b
    if d == 1:
        return loss
    student = logits.log_softmax(-1)
    teacher = student.detach()
    # KL(teacher j ‖ student i) for every ordered pair; i = j contributes nothing to the value or the gradient.
    p = teacher.exp()
    entropy = (p * teacher).sum((0, 2, 3)).sum() * (d - 1)
    cross = torch.einsum("ajbc,aibc->ji", p, student)
    off = cross.sum() - cross.diagonal().sum()
    return loss + ramp * (entropy - off) / (b * (d - 1))
