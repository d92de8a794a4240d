"""Stages between the bottom and the wire that make a cut narrow, and training that knows its attacker.

A narrow cut has few channels, pooled if asked, and is normalised, so that few bits per number do (`cut_codec`). The
client's half is masked like any client layer; the server's half is part of the top and costs the client nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pmsfl.errors import PmsflError
from pmsfl.models.beside import side_by_side
from pmsfl.models.norm import StaticBN
from pmsfl.privacy.mechanisms import clip_rows

TINY = 1e-12  # under the roots of distances: their slope at 0 is infinite


class Enlarge(nn.Module):
    """Every pixel `factor` times in both directions, cut off behind `size`. [B, C, h, w] → [B, C, H, W]."""

    any_layout = True

    def __init__(self, factor: int, size: Sequence[int]) -> None:
        super().__init__()
        self.factor, self.size = factor, tuple(size)

    def forward(self, x: Tensor) -> Tensor:
        f, (h, w) = self.factor, self.size
        return x.repeat_interleave(f, 2).repeat_interleave(f, 3)[:, :, :h, :w]


class Scale(nn.Module):
    """Everything times a fixed number."""

    any_layout = True

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


def window_of(places: Tensor, width: int, window: int) -> Tensor:
    """The number of the window each place, row by row, of maps so wide is in; same shape. Windows at the edge may be
    smaller."""
    return places // (width * window) * -(-width // window) + places % width // window


class SortWindows(nn.Module):
    """The vectors of every window of window × window places, by their first number. [B, C, H, W] → the same.

    Who gets them has each window as a set: where in it a vector stood is gone.
    """

    any_layout = True

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        return side_by_side(self._sorted, x)

    def _sorted(self, clients: int, x: Tensor) -> Tensor:
        """Of x [B, clients·C, H, W]."""
        # By comparisons and one product: sorts and gathers would tie a compiled step to a number of clients.
        b, _, h, w = x.shape
        place = torch.arange(h * w, device=x.device)
        number = window_of(place, w, self.window)
        same, earlier = number.unsqueeze(1) == number, place.unsqueeze(1) > place
        first = (number.unsqueeze(1) > number).sum(1)  # of each window's slots, window by window
        slot = first + (same & earlier).sum(1)
        vectors = x.reshape(b * clients, -1, h * w)
        value = vectors[:, 0].detach()
        mine, other = value.unsqueeze(2), value.unsqueeze(1)
        rank = (same & ((other < mine) | ((other == mine) & earlier))).sum(2)
        moves = (first + rank).unsqueeze(2) == slot  # [B·clients, from, to]
        return torch.bmm(vectors, moves.to(x.dtype)).reshape(x.shape)


def narrow_stage(shape: Sequence[int], channels: int, pool: int, sort: int = 0) -> nn.Module:
    """The client's half for block outputs of `shape`: [C, H, W] to [channels, ⌈H/pool⌉, ⌈W/pool⌉], [T, D] to
    [T, channels], [F] to [channels]. sort: pixels a side of windows that are sorted; 0: none."""
    if len(shape) != 3:
        if sort:
            raise PmsflError(f"cut_sort = {sort} is for maps [C, H, W]; at this cut there are {tuple(shape)}: take 0")
        if pool > 1:
            raise PmsflError(f"cut_pool = {pool} is for maps [C, H, W]; at this cut there are {tuple(shape)}: take 1")
        return nn.Linear(shape[-1], channels, bias=False)
    c, h, w = shape
    if pool > min(h, w):
        raise PmsflError(f"cut_pool = {pool} is more than the {h} × {w} pixels at this cut: take at most {min(h, w)}")
    # Where it does not divide them, the pixels left over at the edge are a mean of their own.
    pooling = [nn.AvgPool2d(pool, ceil_mode=True)] if pool > 1 else []
    sorting = [SortWindows(sort)] if sort else []
    return nn.Sequential(*pooling, nn.Conv2d(c, channels, 1, bias=False), StaticBN(channels), *sorting)


def _with_neighbours(channels: int, out: int, size: Sequence[int]) -> nn.Conv2d:
    """A convolution of each pixel with those around it, on maps of `size`.

    A single pixel has none: zeros around it would be eight ninths of the work, and compiled steps (torch 2.11, CUDA)
    get the layout of such a gradient wrong.
    """
    kernel = 1 if max(size) == 1 else 3
    return nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)


def widen_stage(shape: Sequence[int], channels: int, pool: int) -> nn.Module:
    """The server's half: back to `shape`."""
    if len(shape) != 3:
        return nn.Linear(channels, shape[-1])
    wide = _with_neighbours(channels, shape[0], (-(-shape[1] // pool), -(-shape[2] // pool)))
    enlarging = [Enlarge(pool, shape[1:])] if pool > 1 else []
    return nn.Sequential(wide, StaticBN(shape[0]), nn.ReLU(), *enlarging)


def guard_stage(shape: Sequence[int], image: Sequence[int], width: int) -> nn.Module:
    """A decoder that a client attacks itself with: smashed data [C, h, w] → images [c, H, W]."""
    if len(shape) != 3 or len(image) != 3 or image[1] % shape[1] or image[2] % shape[2]:
        raise PmsflError(f"guard needs maps that divide the images; smashed data are {tuple(shape)} of {tuple(image)}")
    factor = image[1] // shape[1]
    if image[2] // shape[2] != factor:
        raise PmsflError(f"guard: smashed data {tuple(shape)} of images {tuple(image)} are not of one scale")
    return nn.Sequential(
        _with_neighbours(shape[0], width, shape[1:]),
        StaticBN(width),
        nn.ReLU(),
        *([Enlarge(factor, image[1:])] if factor > 1 else []),
        Scale(
            1.0 / (3.0 * width**0.5)
        ),  # so that the learning rate of norms suits the layer behind it, whatever its width
        nn.Conv2d(width, image[0], 3, padding=1),
    )


def reversed_gradient(x: Tensor, strength: float) -> Tensor:
    """x; its gradient comes back times −strength: what the decoder behind it gains, the bottom loses."""
    fixed = x.detach()
    return fixed + strength * (fixed - x)


def distance_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Distance correlation in [0, 1] of rows [A, B, ...] with rows [A, B, ...], for each of A batches: [A]."""
    a, b = _centred_distances(x), _centred_distances(y)
    covariance = (a * b).mean((1, 2)).clamp_min(0.0)
    variances = (a * a).mean((1, 2)) * (b * b).mean((1, 2))
    return torch.sqrt(covariance / torch.sqrt(variances + TINY) + TINY)


def _centred_distances(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    squares = (flat * flat).sum(2)
    inner = torch.bmm(flat, flat.transpose(1, 2))
    apart = (squares.unsqueeze(1) + squares.unsqueeze(2) - 2.0 * inner).clamp_min(0.0)
    d = torch.sqrt(apart + TINY)
    return d - d.mean(1, keepdim=True) - d.mean(2, keepdim=True) + d.mean((1, 2), keepdim=True)


def clip_samples(smashed: Tensor, limit: float, order: int = 2) -> Tensor:
    """smashed [A, B, ...], each sample scaled down to an L2 norm (order 1: L1) of at most `limit`."""
    return clip_rows(smashed.flatten(0, 1).flatten(1), limit, order).reshape(smashed.shape)


def reconstruction_loss(images: Tensor, truth: Tensor) -> Tensor:
    """Σ over clients of the mean squared error of images [A, B, ...]."""
    return F.mse_loss(images, truth, reduction="none").flatten(1).mean(1).sum()
