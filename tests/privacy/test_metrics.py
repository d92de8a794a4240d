"""SSIM and PSNR: equal to scikit-image's, and honest about what they cannot judge."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pmsfl.privacy.metrics import MetricError, check_images, matched, psnr, ssim


def images(seed: int, n: int = 3, c: int = 3, h: int = 17, w: int = 24) -> Tensor:
    return torch.rand(n, c, h, w, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_equals_scikit_image(noise: float, channels: int) -> None:
    metrics = importlib.import_module("skimage.metrics")
    a = images(0, c=channels)
    b = (a + noise * (images(1, c=channels) - 0.5)).clamp(0, 1)
    for x, y, ours in zip(a, b, ssim(a, b).tolist(), strict=True):
        _, whole = metrics.structural_similarity(
            x.numpy(),
            y.numpy(),
            channel_axis=0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            full=True,
        )
        assert ours == pytest.approx(whole[:, 5:-5, 5:-5].mean(), abs=1e-9)


def test_psnr_is_the_logarithm_of_the_mean_square() -> None:
    a, b = images(0), images(1)
    expected = [10 * math.log10(1 / np.mean((x - y) ** 2)) for x, y in zip(a.numpy(), b.numpy(), strict=True)]
    assert psnr(a, b).tolist() == pytest.approx(expected)
    assert torch.isinf(psnr(a, a)).all()


def test_equal_images_are_alike_and_inverted_ones_are_not() -> None:
    a = images(0)
    assert torch.allclose(ssim(a, a), torch.ones(3, dtype=torch.float64))
    assert (ssim(a, 1 - a) < 0).all()


def test_matching_undoes_brightness_and_contrast() -> None:
    a = images(0, n=2)
    mean, std = a[0].mean((1, 2)), a[0].std((1, 2), correction=0)
    washed = 0.3 * a[:1] + 0.5
    assert float(ssim(washed, a[:1])) < 0.9
    assert float(ssim(matched(washed, mean, std), a[:1])) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("shape", [(3, 10, 32), (1, 8, 8), (128, 9)])
def test_what_the_window_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MetricError, match="11x11"):
        check_images(shape)


def test_images_of_different_shapes_are_refused() -> None:
    with pytest.raises(MetricError, match="cannot be compared"):
        ssim(images(0), images(0, c=1))
