"""Inversion under one assumed mask: none, the mean one, a guess; and under the true one, which no server has."""

from __future__ import annotations

from torch import Tensor

from pmsfl.privacy.attacks.base import Attack, flat_images
from pmsfl.privacy.attacks.invert import descend, smashed_distance, start_images
from pmsfl.privacy.threat import ThreatModel, Transcript


class Inversion(Attack):
    """Ignores the mask. Where there is none this is plain inversion."""

    name = "inversion"
    about = "inversion that ignores the mask"

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        weights = self.assumed(view, threat)
        objective = smashed_distance(view, threat, weights)
        return flat_images(descend(start_images(view, threat), objective, self.budget.steps))

    def assumed(self, view: Transcript, threat: ThreatModel) -> Tensor:
        """The weights the attacker believes in: [G, P]."""
        return threat.surface.weights.expand(view.smashed.shape[0], -1)


class ExpectedMask(Inversion):
    """Takes the mean mask for the real one."""

    name = "expected-mask"
    about = "inversion under the mean mask"
    needs = ("masks",)

    def assumed(self, view: Transcript, threat: ThreatModel) -> Tensor:
        return threat.surface.expected().expand(view.smashed.shape[0], -1)


class GuessedMask(Inversion):
    """Draws a mask and takes it for the real one."""

    name = "guessed-mask"
    about = "inversion under a guessed mask"
    needs = ("masks",)

    def assumed(self, view: Transcript, threat: ThreatModel) -> Tensor:
        return threat.surface.draw(view.smashed.shape[0], threat.generator())


class OracleMask(Inversion):
    """Has the real mask: what hiding it is worth against inversion."""

    name = "oracle-mask"
    about = "inversion under the true mask (no server has it)"
    needs = ("masks", "true masks")
    is_oracle = True

    def assumed(self, view: Transcript, threat: ThreatModel) -> Tensor:
        assert threat.true_weights is not None
        return threat.true_weights
