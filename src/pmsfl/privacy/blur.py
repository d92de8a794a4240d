"""What a client hides about single samples on their way out, by chance of its own: which place of a window a vector
stands in, and noise. Neither has a guarantee; `pmsfl attack` says what they are worth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.masks.random import fold, words
from pmsfl.privacy.mechanisms import gaussian

# What the keys of a sample are for; 0 to 2 of a client's noise keys belong to the mechanisms with a guarantee.
SAMPLE, ORDER, NOISE = 3, 4, 5


def sample_keys(keys: Tensor, samples: int) -> Tensor:
    """A key for each of a client's samples: [A] → [A, samples]."""
    return fold(fold(keys, SAMPLE).unsqueeze(1), torch.arange(samples, device=keys.device))


def window_of(places: Tensor, width: int, window: int) -> Tensor:
    """The number of the window each place, row by row, of maps so wide is in; same shape. Windows at the edge may be
    smaller."""
    return places // (width * window) * -(-width // window) + places % width // window


def orders(keys: Tensor, height: int, width: int, window: int) -> Tensor:
    """For each place the one whose vector it gets, of the same window: int64 [*keys.shape, height · width]."""
    number = window_of(torch.arange(height * width, device=keys.device), width, window)
    drawn = (words(fold(keys, ORDER), len(number)) >> 20) & ((1 << 44) - 1)
    by_window = torch.argsort(drawn + (number << 44), -1)  # window by window, each in an order of its own
    slots = torch.argsort(number, stable=True)
    return by_window.index_select(-1, torch.argsort(slots))


def shuffled(maps: Tensor, window: int, keys: Tensor) -> Tensor:
    """Maps [A, B, C, H, W], the vectors of each window of window × window places in a random order; keys: [A, B].

    Gradients go back to where the vectors came from.
    """
    a, b, c, h, w = maps.shape
    source = orders(keys, h, w, window).unsqueeze(2).expand(a, b, c, h * w)
    return maps.flatten(3).gather(3, source).reshape(maps.shape)


def noised(smashed: Tensor, deviation: float, keys: Tensor) -> Tensor:
    """smashed [A, B, ...] with Gaussian noise of a fixed deviation; keys: [A, B]."""
    size = smashed[0, 0].numel()
    noise = gaussian(fold(keys, NOISE), size).reshape(smashed.shape)
    return smashed + (deviation * noise).to(smashed.dtype)
