"""Standalone: every client keeps its own bottom for good; only the top is shared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pmsfl.methods.base import Method
from pmsfl.models.split import Slot


class Standalone(Method):
    """Weights trained, never merged: the lower reference of every federated method."""

    name = "standalone"
    summary = "weights of the bottom trained and never merged; one shared top"
    paper = "baseline of the PM-SFL paper"
    uploads = "nothing"

    def personal_at_start(self, layers: list[Slot], size: int) -> Tensor:
        return torch.ones(size, dtype=torch.bool)

    def local_plain(self, slots: Sequence[Slot], depth: int) -> list[bool]:
        return [s.block < depth for s in slots]
