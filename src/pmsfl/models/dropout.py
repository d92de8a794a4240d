"""Dropout whose zeros are a function of a key, so that every executor drops the same units."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pmsfl.masks.random import fold, uniform
from pmsfl.models.context import current


class KeyedDropout(nn.Module):
    """Zeroes each element with probability p in training, scaled by 1/(1−p); off where there is no key.

    channels: zeroes whole channels (axis 1) instead, as nn.Dropout2d does.
    """

    any_layout = True

    def __init__(self, p: float, channels: bool = False) -> None:
        super().__init__()
        self.p = p
        self.channels = channels
        self.index = 0  # given by SplitModel: two dropouts of one model never share bits

    def forward(self, x: Tensor) -> Tensor:
        context = current()
        key = context.dropout_key
        if not self.training or key is None or self.p == 0.0:
            return x
        shape = (*x.shape[:2], *(1,) * (x.ndim - 2)) if self.channels else tuple(x.shape)
        wide = torch.promote_types(x.dtype, torch.float32)  # eight bits of a half would not give p
        keep = self._uniform(fold(key, self.index), shape, wide) >= self.p
        return x * keep.to(x.dtype) / (1.0 - self.p)

    @staticmethod
    def _uniform(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        context = current()
        whole = context.whole
        if whole is None:
            own = uniform(key, math.prod(shape), dtype).reshape(shape)
            if context.row_weights is None:
                return own
            # Rows that count get the draws they would get without the others.
            return own[(context.row_weights[: shape[0]].cumsum(0).long() - 1).clamp_min(0)]
        drawn = uniform(key, whole.rows * math.prod(shape[1:]), dtype).reshape(whole.rows, *shape[1:])
        return drawn[whole.places[: shape[0]]]  # rows of deeper cuts join later


def convert_dropout(module: nn.Module) -> nn.Module:
    """Replace every nn.Dropout in `module` by a keyed one; returns the module."""
    if isinstance(module, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return KeyedDropout(module.p, channels=True)
    if isinstance(module, nn.Dropout):
        return KeyedDropout(module.p)
    for name, child in module.named_children():
        setattr(module, name, convert_dropout(child))
    return module
