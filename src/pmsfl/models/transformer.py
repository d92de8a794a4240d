"""The paper's Transformer: four identical layers, two heads, width 768, feed-forward 1536.

For sequences [B, T, F] and for spectrogram-like maps [B, C, H, W], read as H time steps of C·W features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pmsfl.errors import PmsflError
from pmsfl.models.split import SplitModel


class Embed(nn.Module):
    """Tokens with learned positions. [B, T, F] or [B, C, T, W] → [B, T, width]."""

    def __init__(self, tokens: int, features: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(features, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            x = x.transpose(1, 2).flatten(2)
        tokens: Tensor = self.project(x)
        return tokens + self.position


class EncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward. [B, T, width] → the same."""

    def __init__(self, width: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, feed_forward)
        self.down = nn.Linear(feed_forward, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, width // self.heads).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (width // self.heads) ** -0.5
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(b, t, width)
        x = x + self.out(mixed)
        hidden: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + hidden


class MeanLinear(nn.Module):
    """Mean over tokens, norm and a linear layer: the head. [B, T, width] → [B, classes]."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.norm(x.mean(1)))
        return logits


def transformer(
    input_shape: tuple[int, ...],
    classes: int,
    width: int = 768,
    layers: int = 4,
    heads: int = 2,
    feed_forward: int | None = None,
) -> SplitModel:
    """A Transformer encoder for one sample's shape (T, F) or (C, T, W). The embedding carries no masks."""
    if len(input_shape) not in (2, 3) or width % heads:
        raise PmsflError(
            f"transformer: takes samples [T, F] or [C, T, W] (these have shape {input_shape}) and a width that "
            f"{heads} heads divide (this is {width})"
        )
    if len(input_shape) == 2:
        tokens, features = input_shape
    else:
        channels, tokens, map_width = input_shape
        features = channels * map_width
    embed = Embed(tokens, features, width)
    encoder = [EncoderLayer(width, heads, feed_forward or 2 * width) for _ in range(layers)]
    blocks = [nn.Sequential(embed, encoder[0]), *encoder[1:]]
    return SplitModel(blocks, MeanLinear(width, classes), unmasked=("blocks.0.0",))
