"""Expectation over masks: images whose smashed data fit on average over masks drawn anew in every step."""

from __future__ import annotations

from torch import Tensor

from pmsfl.privacy.attacks.base import Attack, flat_images
from pmsfl.privacy.attacks.invert import descend, distance, start_images
from pmsfl.privacy.threat import ThreatModel, Transcript


def over_masks(view: Transcript, threat: ThreatModel, steps: int, looks: int = 1) -> Tensor:
    """Images [G, B, C, H, W] that fit the mean of the first observations of each mini-batch."""
    surface, generator = threat.surface, threat.generator()
    seen = view.smashed[:, :, :looks].to(surface.weights.dtype).mean(2)

    def objective(x: Tensor, step: int) -> Tensor:
        return distance(surface.bottom(x, surface.draw(len(x), generator)), seen)

    return descend(start_images(view, threat), objective, steps)


class OverMasks(Attack):
    """EOT: the attacker averages over what it does not know."""

    name = "over-masks"
    about = "inversion in expectation over masks"
    needs = ("masks",)

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        return flat_images(over_masks(view, threat, self.budget.steps))
