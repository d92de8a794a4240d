"""A bottom of dense layers only, for the paper's appendix B."""

from __future__ import annotations

from torch import nn

from pmsfl.models.split import SplitModel


def chain(classes: int) -> SplitModel:
    """Two dense layers below the cut and one above, for images [1, 12, 12]."""
    bottom = nn.Sequential(nn.Flatten(), nn.Linear(144, 60, bias=False), nn.ReLU(), nn.Linear(60, 40, bias=False))
    return SplitModel([bottom, nn.Sequential(nn.ReLU(), nn.Linear(40, 20))], nn.Linear(20, classes))
