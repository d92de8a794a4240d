"""Images and a relaxed mask optimised together, from where the expectation over masks ends."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.masks.bernoulli import to_scores
from pmsfl.privacy.attacks.base import Attack, flat_images
from pmsfl.privacy.attacks.expectation import over_masks
from pmsfl.privacy.attacks.invert import Objective, descend, distance
from pmsfl.privacy.threat import ThreatModel, Transcript

LR_MASK = 0.15
PRIOR = 1e-3  # weight of the mask's distance from θ
MOST_LOOKS = 4  # observations of a mini-batch used at once, each with a mask of its own
WARM_UP = 0.5  # share of the steps spent on the expectation


class Joint(Attack):
    """One unknown mask per forward pass, shared by a mini-batch of images: more equations than unknowns."""

    name = "joint"
    about = "images and relaxed mask together"
    needs = ("masks",)

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        start = over_masks(view, threat, max(1, int(WARM_UP * self.budget.steps)))
        theta = threat.surface.theta
        assert theta is not None
        objective, scores = fit_mask(view, threat, theta)
        return flat_images(descend(start, objective, self.budget.steps, [(scores, LR_MASK)]))


def fit_mask(view: Transcript, threat: ThreatModel, theta: Tensor) -> tuple[Objective, Tensor]:
    """What to minimise over images and mask scores, and those scores [G·k, P], a leaf. theta: the mask's prior [P]."""
    surface = threat.surface
    looks = min(view.linked, MOST_LOOKS) if view.together else 1
    seen = view.smashed[:, :, :looks].transpose(1, 2).flatten(0, 1).to(surface.weights.dtype)  # [G·k, B, ...]
    scores = to_scores(theta, 0.02).repeat(len(seen), 1).requires_grad_()

    def objective(x: Tensor, step: int) -> Tensor:
        mask = torch.sigmoid(scores)
        found = surface.bottom(x.repeat_interleave(looks, 0), surface.weights * mask)
        return distance(found, seen) + PRIOR * (mask - theta).square().mean()

    return objective, scores
