"""Gradient matching: images whose gradient, under the dL/dq that the server sent, is the one a client uploaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pmsfl.masks.bernoulli import to_scores
from pmsfl.privacy.attacks.base import Attack, flat_images
from pmsfl.privacy.attacks.invert import descend, start_images
from pmsfl.privacy.threat import ThreatModel, Transcript, Update

CLIP = 1e-4  # keeps logits of uploaded probabilities finite


def uploaded_gradient(update: Update, threat: ThreatModel) -> Tensor:
    """The gradient behind an upload [P]: itself after one SGD step, else its direction."""
    if update.kind == "theta":
        scores = to_scores(update.before, CLIP)
        shrunk = threat.step.lr * update.steps * threat.step.shrinkage * scores
        if update.masks == 1:
            return scores - to_scores(update.after, CLIP) - shrunk
        slope = (update.before * (1.0 - update.before)).clamp_min(CLIP)  # a mean of 0 or 1 has no logit worth having
        return (update.before - update.after) / slope - shrunk
    change = (update.before - update.after) / (threat.step.lr * update.steps)
    return change - threat.step.weight_decay * update.before if threat.step.optimiser == "sgd" else change


def gradient_of(x: Tensor, weights: Tensor, delta: Tensor, update: Update, threat: ThreatModel) -> Tensor:
    """What images x [B, C, H, W] would have given under weights [P] and dL/dq: [P], differentiable in all of them."""
    leaf = weights if weights.requires_grad else weights.detach().requires_grad_()
    out = threat.surface.bottom_of(x, leaf)
    (gradient,) = torch.autograd.grad(out, leaf, delta.to(out.dtype), create_graph=True)
    if update.kind != "theta":
        return gradient
    theta = update.before
    slope = theta * (1 - theta) * (theta if threat.step.estimator == "paper" else 1.0)
    return gradient * threat.surface.slope * slope


def update_of(view: Transcript, group: int) -> Update:
    """The upload that a mini-batch went into."""
    return view.updates[group if len(view.updates) == view.smashed.shape[0] else 0]


def cosine_distance(found: Tensor, seen: Tensor) -> Tensor:
    """1 − cosine of two vectors: a scalar."""
    return 1.0 - torch.nn.functional.cosine_similarity(found, seen, dim=0, eps=1e-12)


def relative_distance(found: Tensor, seen: Tensor) -> Tensor:
    """Squared distance of two vectors in units of the second's square: a scalar."""
    return (found - seen).square().sum() / seen.square().sum().clamp_min(1e-24)


class CosineMatching(Attack):
    """Only the direction must fit; total variation does the rest (Geiping et al. 2020)."""

    name = "gradient-cosine"
    about = "gradient matching, cosine and smoothness"
    needs = ("gradient", "float upload")
    measure: Callable[[Tensor, Tensor], Tensor] = staticmethod(cosine_distance)

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        assert view.gradient is not None
        delta, groups = view.gradient, range(view.smashed.shape[0])
        updates = [update_of(view, g) for g in groups]
        seen = [torch.where(u.contributes, uploaded_gradient(u, threat), 0.0) for u in updates]
        weights = threat.surface.expected()

        def objective(x: Tensor, step: int) -> Tensor:
            found = [gradient_of(x[g], weights, delta[g], updates[g], threat) * updates[g].contributes for g in groups]
            return torch.stack([self.measure(f, s) for f, s in zip(found, seen, strict=True)]).mean()

        return flat_images(descend(start_images(view, threat), objective, self.budget.steps))


class DeepLeakage(CosineMatching):
    """DLG (Zhu et al. 2019): the gradient itself must fit, which takes an upload that shows its size."""

    name = "gradient-l2"
    about = "gradient matching, squared distance (DLG)"
    measure = staticmethod(relative_distance)

    def why_not(self, view: Transcript, threat: ThreatModel) -> str | None:
        if why := super().why_not(view, threat):
            return why
        return None if threat.step.optimiser == "sgd" else "Adam's step hides the size of the gradient"
