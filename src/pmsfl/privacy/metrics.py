"""How much of an image a reconstruction shows: SSIM and PSNR of images [n, C, H, W] with values in [0, 1]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pmsfl.errors import PmsflError

WINDOW, SIGMA = 11, 1.5  # Wang et al. 2004
K1, K2 = 0.01, 0.03


class MetricError(PmsflError):
    """Images that no reconstruction can be judged by."""


def check_images(shape: tuple[int, ...]) -> None:
    """MetricError unless `shape` ends in the [C, H, W] of images that SSIM's window fits into."""
    if len(shape) < 3 or min(shape[-2:]) < WINDOW:
        raise MetricError(
            f"shape {tuple(shape)}: SSIM compares images [C, H, W] of at least {WINDOW}x{WINDOW} pixels; attacks on "
            "other data are not measured"
        )


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of each pair, mean over channels and the valid region: [n], 1 for equal images."""
    check_images(tuple(a.shape))
    if a.shape != b.shape:
        raise MetricError(f"images of shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be compared")
    mean_a, mean_b = _blur(a), _blur(b)
    var_a = _blur(a * a) - mean_a * mean_a
    var_b = _blur(b * b) - mean_b * mean_b
    covariance = _blur(a * b) - mean_a * mean_b
    c1, c2 = K1**2, K2**2  # of a data range of 1
    luminance = (2 * mean_a * mean_b + c1) / (mean_a * mean_a + mean_b * mean_b + c1)
    structure = (2 * covariance + c2) / (var_a + var_b + c2)
    return (luminance * structure).flatten(1).mean(1)


def _blur(x: Tensor) -> Tensor:
    """Gaussian-weighted means of every window that lies inside the image; rows, then columns."""
    at = torch.arange(WINDOW, dtype=x.dtype, device=x.device) - WINDOW // 2
    kernel = torch.exp(-0.5 * (at / SIGMA) ** 2)
    kernel = kernel / kernel.sum()
    n, c, h, w = x.shape
    flat = x.reshape(n * c, 1, h, w)
    out = F.conv2d(F.conv2d(flat, kernel.reshape(1, 1, 1, -1)), kernel.reshape(1, 1, -1, 1))
    return out.reshape(n, c, *out.shape[-2:])


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each pair in dB: [n], infinite for equal images."""
    return -10.0 * torch.log10((a - b).square().flatten(1).mean(1))


def matched(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images with each one's channel mean and deviation set to the public ones [C], cut to [0, 1].

    Batch norm hides brightness and contrast; what everybody knows of them costs an attacker nothing.
    """
    axes = (-2, -1)
    own = images.std(axes, correction=0, keepdim=True).clamp_min(1e-6)
    centred = (images - images.mean(axes, keepdim=True)) / own
    return (centred * std.reshape(-1, 1, 1) + mean.reshape(-1, 1, 1)).clamp(0.0, 1.0)
