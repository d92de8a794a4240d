"""SplitFed-PM: the same masks, but clients upload their probabilities instead of sampled bits."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.methods.base import Method, Uploads
from pmsfl.methods.pm_sfl import PMSFL
from pmsfl.models.split import Slot


class NeverPersonal(Method):
    """A mask method whose personal set never grows."""

    def grow_personal(
        self,
        before: Tensor,
        after: Tensor,
        personal: Tensor,
        participations: Tensor,
        layers: list[Slot],
        noise: Tensor | None,
    ) -> Tensor:
        return personal


class SplitFedPM(NeverPersonal, PMSFL):
    """Probabilistic masks without personalisation; θ_k goes up as floats."""

    name = "splitfed-pm"
    summary = "scores of random masks; uploads probabilities; nothing personal"
    paper = "baseline of the PM-SFL paper"
    uploads: Uploads = "theta"
    compensates = False

    def upload(self, trained: Tensor, uniform: Tensor | None) -> Tensor:
        return torch.sigmoid(trained)
