"""Controls: what a claim about learned masks has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.masks.bernoulli import sample
from pmsfl.methods.base import Method
from pmsfl.methods.pm_sfl import PMSFL


class FrozenMask(Method):
    """A random mask drawn once from the initial θ and never learned; norms and top train as everywhere.

    With different depths the server's blocks are the deep clients' blocks, as for learned masks: nothing but norms and
    head is learned then, wherever the block lies.
    """

    name = "frozen-mask"
    summary = "control: one random mask, never learned"
    trains = "nothing"
    masks = True
    uploads = "nothing"

    def initial(self, frozen: Tensor, scores: Tensor, uniform: Tensor) -> Tensor:
        return sample(torch.sigmoid(scores), uniform).to(frozen.dtype)

    def effective(self, trained: Tensor, frozen: Tensor, uniform: Tensor | None) -> Tensor:
        return frozen * trained  # dropped weights, whatever learned masks do


class DenseFrozen(FrozenMask):
    """Frozen weights without any mask."""

    name = "dense-frozen"
    summary = "control: frozen weights, no mask"
    masks = False

    def initial(self, frozen: Tensor, scores: Tensor, uniform: Tensor) -> Tensor:
        return torch.ones_like(frozen)


class ThresholdMask(PMSFL):
    """FedMask-like: the mask is θ > 0.5, nothing is sampled, nothing is personal."""

    name = "threshold-mask"
    summary = "control: learned masks θ > 0.5, never sampled"
    paper = "after FedMask (SenSys 2021)"
    samples_masks = False
    personalises = False

    def effective(self, trained: Tensor, frozen: Tensor, uniform: Tensor | None) -> Tensor:
        return self.thresholded(trained, frozen)

    def upload(self, trained: Tensor, uniform: Tensor | None) -> Tensor:
        return (trained > 0).to(trained.dtype)

    def evaluation_weights(self, trained: Tensor, frozen: Tensor, uniform: Tensor, mode: str) -> Tensor:
        return super().evaluation_weights(trained, frozen, uniform, "threshold")
