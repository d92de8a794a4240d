"""A small convolutional network for 28×28-like images: what the demo trains on two CPU cores."""

from __future__ import annotations

from torch import nn

from pmsfl.models.norm import StaticBN
from pmsfl.models.resnet import PoolLinear
from pmsfl.models.split import SplitModel


def _block(c_in: int, c_out: int, pool: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(c_in, c_out, 3, 1, 1, bias=False), StaticBN(c_out), nn.ReLU()]
    # The mean, not the maximum: with integer pixels and signed-constant weights many sums are equal, and which of
    # two equal values wins a maximum would hang on the order of additions.
    return nn.Sequential(*layers, *([nn.AvgPool2d(2)] if pool else []))


def small_cnn(channels: int, classes: int, width: int = 16) -> SplitModel:
    """Four blocks of one 3×3 convolution each, pooled after the first two, for inputs [B, channels, H, W]."""
    blocks = [
        _block(channels, width, pool=True),
        _block(width, 2 * width, pool=True),
        _block(2 * width, 4 * width, pool=False),
        _block(4 * width, 4 * width, pool=False),
    ]
    return SplitModel(blocks, PoolLinear(4 * width, classes))
