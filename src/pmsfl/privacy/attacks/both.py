"""Smashed data and upload together (the paper's section 2.2): whatever either says about the images is used."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.privacy.attacks.base import Attack, flat_images
from pmsfl.privacy.attacks.expectation import over_masks
from pmsfl.privacy.attacks.gradient import cosine_distance, gradient_of, update_of, uploaded_gradient
from pmsfl.privacy.attacks.invert import descend, smashed_distance, start_images
from pmsfl.privacy.attacks.joint import LONGER, LR_MASK, WARM_UP, fit_mask
from pmsfl.privacy.threat import ThreatModel, Transcript

WEIGHT = 0.1  # of the gradient's direction beside the smashed data
TRUST = 0.5  # of an uploaded bit, or mean of a few, beside θ: it was drawn from the client's newest θ, once


class SmashedAndUpdate(Attack):
    """Weights and probabilities add a gradient to match; bits say where the client's θ has gone."""

    name = "smashed-and-update"
    about = "smashed data and upload together (paper, section 2.2)"
    needs = ("gradient", "upload")

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        theta = threat.surface.theta
        if theta is None:
            start, leaves, steps = start_images(view, threat), [], self.budget.steps
            fit = smashed_distance(view, threat, threat.surface.weights.expand(len(start), -1))
        else:
            start = over_masks(view, threat, max(1, int(WARM_UP * self.budget.steps)))
            fit, scores = fit_mask(view, threat, _updated(theta, view))
            leaves, steps = [(scores, LR_MASK)], LONGER * self.budget.steps

        def weights(group: int) -> Tensor:
            if theta is None:
                return threat.surface.weights
            return threat.surface.under(torch.sigmoid(scores[group]))

        def objective(x: Tensor, step: int) -> Tensor:
            loss = fit(x, step)
            if view.updates[0].kind == "bits":
                return loss
            return loss + WEIGHT * torch.stack([mismatch(x, g) for g in range(len(x))]).mean()

        def mismatch(x: Tensor, group: int) -> Tensor:
            assert view.gradient is not None
            update = update_of(view, group)
            seen = uploaded_gradient(update, threat)
            found = gradient_of(x[group], weights(group), view.gradient[group], update, threat)
            return cosine_distance(found * update.contributes, seen * update.contributes)

        return flat_images(descend(start, objective, steps, leaves))


def _updated(theta: Tensor, view: Transcript) -> Tensor:
    """θ moved towards what the client uploaded [P]."""
    update = view.updates[0]
    if update.kind == "weights":
        return theta
    trust = TRUST if update.kind == "bits" or update.masks > 1 else 1.0
    return torch.where(update.contributes, (1.0 - trust) * theta + trust * update.after, theta)
