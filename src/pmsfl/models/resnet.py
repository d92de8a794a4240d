"""ResNet-18 for small images, as the paper cuts it: stem + stage 1, stages 2, 3 and 4 are its four blocks."""

from __future__ import annotations

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
    stem = [
        nn.Conv2d(channels, width, 3, 1, stem_padding, bias=False),
        StaticBN(width),
        nn.ReLU(),
    ]
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
