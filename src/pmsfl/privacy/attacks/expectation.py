"""Expectation over masks: images whose smashed data fit on average over masks drawn anew in every step."""

from __future__ import annotations

from torch import Tensor

from pmsfl.privacy.attacks.base import Attack, first_look, flat_images
from pmsfl.privacy.attacks.invert import descend, distance, start_images
from pmsfl.privacy.threat import ThreatModel, Transcript


def over_masks(view: Transcript, threat: ThreatModel, steps: int) -> Tensor:
    """Images [G, B, C, H, W]; with several observations of a mini-batch, of their mean."""
    surface, generator = threat.surface, threat.generator()
    seen = first_look(view, surface.weights.dtype)
    if view.together:
        seen = view.smashed.to(seen.dtype).mean(2)

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
