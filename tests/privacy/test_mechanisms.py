"""Clipping, keyed noise and exact Gaussian composition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmsfl.masks.random import Stream, fold, root
from pmsfl.privacy.mechanisms import (
    clip_rows,
    gaussian,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_ratio,
    laplace,
    laplace_epsilon,
)

KEY = root(3, Stream.NOISE)


@pytest.mark.parametrize("order", [1, 2])
def test_clipping_bounds_the_norm_and_leaves_short_rows_alone(order: int) -> None:
    x = torch.tensor([[3.0, -4.0], [0.1, 0.1], [0.0, 0.0]], dtype=torch.float64)
    clipped = clip_rows(x, 1.0, order)
    assert torch.linalg.vector_norm(clipped, order, dim=1).max() <= 1.0 + 1e-12
    assert torch.equal(clipped[1:], x[1:])


@pytest.mark.parametrize("order", [1, 2])
def test_clipping_a_row_of_zeros_has_a_gradient(order: int) -> None:
    x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(clip_rows(x, 1.0, order).sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))


def test_laplace_has_its_variance_and_is_always_finite() -> None:
    noise = laplace(KEY, 400_000)
    assert torch.isfinite(noise).all()
    assert abs(noise.mean().item()) < 0.01
    assert noise.var().item() == pytest.approx(2.0, rel=0.02)


def test_gaussian_has_its_moments() -> None:
    noise = gaussian(KEY, 400_000)
    assert abs(noise.mean().item()) < 0.01
    assert noise.var().item() == pytest.approx(1.0, rel=0.02)
    assert (noise**4).mean().item() == pytest.approx(3.0, rel=0.05)


def test_noise_of_rows_is_the_noise_of_each_key() -> None:
    keys = fold(KEY, torch.arange(3))
    assert torch.equal(laplace(keys, 5)[2], laplace(keys[2], 5))
    assert torch.equal(gaussian(keys, 5)[1], gaussian(keys[1], 5))


def test_known_point_of_the_gaussian_mechanism() -> None:
    # mu = 1: delta(0) is the total variation distance of two unit normals one apart, 2*Phi(1/2) - 1
    assert gaussian_delta(1.0, 0.0) == pytest.approx(2 * 0.6914624612740131 - 1, abs=1e-12)


@given(st.floats(0.05, 20.0))
def test_ratio_and_epsilon_are_inverse(epsilon: float) -> None:
    assert gaussian_epsilon(gaussian_ratio(epsilon, 1e-5), 1e-5) == pytest.approx(epsilon, rel=1e-6)


@given(st.floats(0.05, 5.0), st.integers(1, 500))
def test_more_releases_never_cost_less(epsilon: float, releases: int) -> None:
    ratio = gaussian_ratio(epsilon, 1e-5)
    assert gaussian_epsilon(ratio * math.sqrt(releases), 1e-5) >= epsilon * (1 - 1e-6)
    assert laplace_epsilon(epsilon, releases, 1e-5) >= min(epsilon, releases * epsilon) * (1 - 1e-9)
    assert laplace_epsilon(epsilon, releases, 1e-5) <= releases * epsilon


def test_tiny_privacy_loss_is_zero_epsilon_not_an_endless_search() -> None:
    assert gaussian_epsilon(1e-7, 1e-5) == 0.0


def test_five_hundred_releases_at_one_tenth_are_far_from_one_tenth() -> None:
    total = gaussian_epsilon(gaussian_ratio(0.1, 1e-5) * math.sqrt(500), 1e-5)
    assert 2.0 < total < 20.0
