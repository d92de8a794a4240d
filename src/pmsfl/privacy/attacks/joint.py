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
WARM_UP = 0.5  # share of the steps spent on the expectation
LONGER = 2  # times the steps that known weights take: the mask moves slowly


class Joint(Attack):
    """One unknown mask per forward pass, shared by a mini-batch of images: more equations than unknowns."""

    name = "joint"
    about = "images and relaxed mask together, 1 observation"
    needs = ("masks",)
    looks = 1

    def why_not(self, view: Transcript, threat: ThreatModel) -> str | None:
        if self.looks > 1 and not (view.together and min(view.linked, threat.linked) >= self.looks):
            return f"no mini-batch was seen whole {self.looks} times"
        return super().why_not(view, threat)

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        start = over_masks(view, threat, max(1, int(WARM_UP * self.budget.steps)), self.looks)
        theta = threat.surface.theta
        assert theta is not None
        objective, scores = fit_mask(view, threat, theta, self.looks)
        return flat_images(descend(start, objective, LONGER * self.budget.steps, [(scores, LR_MASK)]))


class JointFew(Joint):
    """Four masks, one set of images: the more often a record comes, the less its masks hide."""

    name = "joint-4"
    about = "images and four relaxed masks together, 4 observations"
    looks = 4


def fit_mask(view: Transcript, threat: ThreatModel, theta: Tensor, looks: int = 1) -> tuple[Objective, Tensor]:
    """What to minimise over images and mask scores, and those scores [G·looks, P], a leaf.

    theta: the mask's prior [P]; looks: observations of each mini-batch to fit, a mask of its own for each.
    """
    surface = threat.surface
    seen = view.smashed[:, :, :looks].transpose(1, 2).flatten(0, 1).to(surface.weights.dtype)  # [G·k, B, ...]
    scores = to_scores(theta, 0.02).repeat(len(seen), 1).requires_grad_()

    def objective(x: Tensor, step: int) -> Tensor:
        mask = torch.sigmoid(scores)
        found = surface.bottom(x.repeat_interleave(looks, 0), surface.under(mask))
        return distance(found, seen) + PRIOR * (mask - theta).square().mean()

    return objective, scores
