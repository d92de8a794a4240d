"""Random crop and flip of a cohort's images, on the device, keyed per client and step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pmsfl.masks.random import fold, integers

PADDING = 4


def augment(x: Tensor, keys: Tensor, flip: bool) -> Tensor:
    """x [K, B, C, H, W] padded by 4, cropped back at a random place, flipped half of the time; same shape.

    keys: [K]. Written as one gather, so that it is the same on every device and fits in a captured graph.
    """
    k, b, c, h, w = x.shape
    shifts = integers(fold(keys, 0), b, 2 * PADDING + 1)
    slides = integers(fold(keys, 1), b, 2 * PADDING + 1)
    rows = torch.arange(h, device=x.device) + shifts.unsqueeze(-1)
    columns = torch.arange(w, device=x.device).expand(k, b, w)
    if flip:
        turned = integers(fold(keys, 2), b, 2).bool().unsqueeze(-1)
        columns = torch.where(turned, columns.flip(-1), columns)
    columns = columns + slides.unsqueeze(-1)
    padded = F.pad(x.reshape(k * b, c, h, w), (PADDING,) * 4).reshape(k, b, c, -1)
    places = rows.unsqueeze(-1) * (w + 2 * PADDING) + columns.unsqueeze(-2)
    flat = places.reshape(k, b, 1, h * w).expand(k, b, c, h * w)
    return padded.gather(-1, flat).reshape(k, b, c, h, w)
