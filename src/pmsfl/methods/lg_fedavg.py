"""LG-FedAvg in split form: the lower half of a client's blocks stays local, the upper half is shared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pmsfl.methods.base import Method
from pmsfl.methods.pm_sfl import PMSFL
from pmsfl.models.split import Slot


class LocalHalf(Method):
    """Blocks 1..⌊d/2⌋ of a bottom of depth d are personal from the start, weights and norms alike."""

    def personal_at_start(self, layers: list[Slot], size: int) -> Tensor:
        kept = torch.zeros(size, dtype=torch.bool)
        half = (layers[-1].block + 1) // 2 if layers else 0
        for s in layers:
            kept[s.offset : s.offset + s.size] = s.block < half
        return kept

    def local_plain(self, slots: Sequence[Slot], depth: int) -> list[bool]:
        everywhere = super().local_plain(slots, depth)
        return [local or s.block < depth // 2 for local, s in zip(everywhere, slots, strict=True)]


class LGFedAvg(LocalHalf, PMSFL):
    """Masks are trained, as in the paper's table; mask bits of the upper half go up."""

    name = "lg-fedavg"
    summary = "lower half of the bottom local, upper half shared; masks (train=weights: weights)"
    paper = "LG-FedAvg (2020)"
    personalises = False
    compensates = False


class LGFedAvgWeights(LocalHalf):
    """The labelled variant: weights are trained and averaged."""

    name = "lg-fedavg"
    summary = LGFedAvg.summary
    paper = LGFedAvg.paper
