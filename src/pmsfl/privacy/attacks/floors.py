"""What anybody gets who sees nothing of the victim: the floor under every score."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.privacy.attacks.base import Attack
from pmsfl.privacy.threat import ThreatModel, Transcript


class Grey(Attack):
    """A grey image."""

    name = "grey"
    about = "a grey image"
    is_floor = True

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        return torch.full((view.images, *threat.shape), 0.5, dtype=threat.surface.weights.dtype, device=threat.device)


class MeanImage(Attack):
    """The mean of the public images, pixel by pixel."""

    name = "mean-image"
    about = "the mean public image"
    needs = ("public images",)
    is_floor = True

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        assert threat.public is not None
        return threat.public.mean(0).expand(view.images, *threat.shape)
