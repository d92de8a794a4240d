"""ResNet-18 for small images, as the paper cuts it: stem + stage 1, stages 2, 3 and 4 are its four blocks.

And a lean and a tapered one, whose clients get deeper for about the same work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from pmsfl.models.conv import mean_over_pixels
from pmsfl.models.norm import StaticBN
from pmsfl.models.split import SplitModel


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut. [B, c_in, H, W] → [B, c_out, H/stride, W/stride]."""

    any_layout = True

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.norm1 = StaticBN(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.norm2 = StaticBN(c_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), StaticBN(c_out))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class PoolLinear(nn.Module):
    """Global average pooling and a linear layer: the head. [B, C, H, W] → [B, classes]."""

    any_layout = True

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(mean_over_pixels(x))
        return logits


def resnet18(channels: int, classes: int, width: int = 64, stem_padding: int = 1, halves: bool = False) -> SplitModel:
    """ResNet-18 with a 3×3 stem and no stem pooling, for inputs [B, channels, H, W].

    halves: every stage is two blocks, so that it can be cut in its middle, too.
    """
    stem = _stem(channels, width, stem_padding)
    blocks, c_in = [], width
    for i in range(4):
        c_out = width * 2**i
        stage: list[nn.Module] = [BasicBlock(c_in, c_out, 1 if i == 0 else 2), BasicBlock(c_out, c_out, 1)]
        if halves:
            blocks += [nn.Sequential(*(stem if i == 0 else []), stage[0]), nn.Sequential(stage[1])]
        else:
            blocks.append(nn.Sequential(*(stem if i == 0 else []), *stage))
        c_in = c_out
    return SplitModel(blocks, PoolLinear(c_in, classes))


def resnet18_lean(channels: int, classes: int, width: int = 64, stem_padding: int = 1) -> SplitModel:
    """ResNet-18 with the two blocks of its first stage at the end instead: as much work in all, less of it at first.

    It can be cut after each of its eight blocks. After block 5, on 4 × 4 maps of an image of 32 × 32, a client has
    computed 1.15 times as much as after ResNet-18's second stage, on 16 × 16.
    """
    return _by_blocks(channels, classes, width, [width * n for n in (2, 2, 4, 4, 8, 8, 8, 8)], stem_padding)


def resnet18_tapered(channels: int, classes: int, width: int = 64, stem_padding: int = 1) -> SplitModel:
    """ResNet-18 with half the channels up to the end of its first stage, a quarter of that work, and two more blocks at
    its end.

    It can be cut after each of its ten blocks. After block 7, on 4 × 4 maps of an image of 32 × 32, a client has
    computed 1.24 times as much as after ResNet-18's second stage, on 16 × 16.
    """
    first = max(width // 2, 1)
    widths = [first] * 2 + [width * n for n in (2, 2, 4, 4, 8, 8, 8, 8)]
    return _by_blocks(channels, classes, first, widths, stem_padding)


def _by_blocks(channels: int, classes: int, first: int, widths: Sequence[int], stem_padding: int) -> SplitModel:
    """A stem with `first` channels and a residual block for each of the widths; where they grow, maps shrink."""
    blocks, c_in = [], first
    for i, c_out in enumerate(widths):
        block = BasicBlock(c_in, c_out, 1 if c_in == c_out else 2)
        blocks.append(nn.Sequential(*(_stem(channels, first, stem_padding) if i == 0 else []), block))
        c_in = c_out
    return SplitModel(blocks, PoolLinear(c_in, classes))


def _stem(channels: int, width: int, padding: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, 3, 1, padding, bias=False), StaticBN(width), nn.ReLU()]
