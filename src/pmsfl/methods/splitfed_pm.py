"""SplitFed-PM: the same masks, but clients upload their probabilities instead of sampled bits."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.methods.base import Uploads
from pmsfl.methods.pm_sfl import PMSFL


class SplitFedPM(PMSFL):
    """Probabilistic masks without personalisation; θ_k goes up as floats."""

    name = "splitfed-pm"
    summary = "scores of random masks; uploads probabilities; nothing personal"
    paper = "baseline of the PM-SFL paper"
    uploads: Uploads = "theta"
    personalises = False
    compensates = False

    def upload(self, trained: Tensor, uniform: Tensor | None) -> Tensor:
        return torch.sigmoid(trained)
