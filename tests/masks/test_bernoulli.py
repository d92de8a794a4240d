"""Scores, probabilities and masks, and the gradient that Eq. 4 asks for (conformance 1)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.masks.bernoulli import (
    Act,
    Estimator,
    bound,
    entropy_bits,
    mask_of,
    mean_entropy_bits,
    sample,
    sample_mean,
    stand_in,
    straight_through,
    to_scores,
    under,
)
from pmsfl.masks.random import Stream, normal, root, uniform

KEY = root(0, Stream.NOISE)


@pytest.mark.parametrize("estimator", ["paper", "plain"])
def test_score_gradient_on_a_linear_layer_is_equation_4(estimator: Estimator) -> None:
    w = normal(KEY, 12).reshape(3, 4)
    x = normal(root(1, Stream.NOISE), 20).reshape(5, 4)
    y = torch.tensor([0, 2, 1, 1, 0])
    scores = normal(root(2, Stream.NOISE), 12).reshape(3, 4).requires_grad_()
    theta = torch.sigmoid(scores.detach())
    mask = sample(theta, uniform(KEY, 12, torch.float64).reshape(3, 4))
    loss = torch.nn.functional.cross_entropy(x @ (w * straight_through(scores, mask, estimator)).T, y)
    (found,) = torch.autograd.grad(loss, scores)

    effective = w * mask
    residual = torch.softmax(x @ effective.T, 1) - torch.nn.functional.one_hot(y, 3)
    by_hand = (residual.T @ x / 5) * w * theta * (1 - theta)  # dL/dW by hand, no autograd
    torch.testing.assert_close(found, by_hand * theta if estimator == "paper" else by_hand)


@pytest.mark.parametrize("estimator", ["paper", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_value_is_exactly_the_mask(estimator: Estimator, dtype: torch.dtype) -> None:
    scores = (normal(KEY, 5000) * 5).to(dtype)
    mask = uniform(KEY, 5000, dtype) < 0.5
    assert torch.equal(straight_through(scores, mask, estimator), mask.to(dtype))


@given(st.floats(0.0, 1.0), st.sampled_from([1e-6, 0.01, 0.3, 0.49]))
@settings(deadline=None)
def test_scores_are_finite_and_come_back_as_clipped_theta(theta: float, clip: float) -> None:
    scores = to_scores(torch.tensor([theta, 0.0, 1.0], dtype=torch.float64), clip)
    assert torch.isfinite(scores).all()
    assert scores.abs().max() <= bound(clip) + 1e-9
    back = min(max(theta, clip), 1 - clip)
    torch.testing.assert_close(float(torch.sigmoid(scores[0])), back, rtol=1e-9, atol=1e-12)


def test_scores_of_certain_masks_are_finite_in_single_precision() -> None:
    for clip in (1e-6, 0.01):
        scores = to_scores(torch.tensor([0.0, 1.0]), clip)
        assert torch.isfinite(scores).all()
        assert float(scores[0]) < 0 < float(scores[1])


@pytest.mark.parametrize("clip", [1e-6, 0.01, 0.49])
def test_the_bound_is_the_score_of_the_clip(clip: float) -> None:
    assert 1 / (1 + math.exp(-bound(clip))) == pytest.approx(1 - clip, rel=1e-12)


def test_a_certain_mask_never_changes_and_a_half_one_changes_half_the_time() -> None:
    u = uniform(KEY, 20_000)
    assert not sample(torch.zeros_like(u), u).any()
    assert sample(torch.ones_like(u), u).all()
    for theta in (0.01, 0.5, 0.9):
        share = sample(torch.full_like(u, theta), u).double().mean()
        assert abs(float(share) - theta) < 4 * math.sqrt(theta * (1 - theta) / 20_000)


def test_entropy_is_one_bit_at_a_half_nothing_at_the_ends_and_symmetric() -> None:
    theta = torch.linspace(0, 1, 101, dtype=torch.float64)
    bits = entropy_bits(theta)
    assert float(bits[50]) == pytest.approx(1.0)
    assert float(bits[0]) == pytest.approx(0.0, abs=1e-9)
    assert float(bits[-1]) == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(bits, bits.flip(0))
    assert (bits[:50].diff() > 0).all()
    assert float(bits[10]) == pytest.approx(-(0.1 * math.log2(0.1) + 0.9 * math.log2(0.9)))


def test_entropy_at_the_ends_is_finite_in_single_precision() -> None:
    assert entropy_bits(torch.tensor([0.0, 1.0])).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


@given(st.integers(1, 40), st.integers(0, 2**30))
@settings(deadline=None, max_examples=50)
def test_the_mean_of_several_masks_is_theta_rounded_by_chance(masks: int, seed: int) -> None:
    theta, u = (uniform(root(seed, s), 200, torch.float64) for s in (Stream.NOISE, Stream.UPLOAD))
    mean = sample_mean(theta, u, masks)
    assert float((mean - theta).abs().max()) < 1.0 / masks
    assert torch.allclose(mean * masks, (mean * masks).round(), atol=1e-9)
    assert float(mean.min()) >= 0.0
    assert float(mean.max()) <= 1.0
    assert torch.equal(sample_mean(theta, u, 1), sample(theta, u).to(theta.dtype))
    assert torch.equal(sample_mean(theta, stand_in(theta, mean, masks), masks), mean)


@pytest.mark.parametrize("masks", [1, 3, 15])
def test_the_mean_of_several_masks_is_right_on_average(masks: int) -> None:
    theta = torch.tensor([0.01, 0.2, 0.5, 0.77, 0.99], dtype=torch.float64)
    n = 20_000
    drawn = sample_mean(theta, uniform(KEY, 5 * n, torch.float64).reshape(n, 5), masks)
    error = (drawn.mean(0) - theta).abs()
    assert float(error.max()) < 5 * 0.5 / masks / math.sqrt(n)


def test_certain_masks_stay_certain_however_many() -> None:
    u = torch.tensor([0.0, 0.5, 0.999])
    for masks in (1, 3, 15, 255):
        assert torch.equal(sample_mean(torch.zeros(3), u, masks), torch.zeros(3))
        assert torch.equal(sample_mean(torch.ones(3), u, masks), torch.ones(3))


@pytest.mark.parametrize("act", ["drop", "flip"])
def test_a_mask_is_found_again_from_what_it_did(act: Act) -> None:
    weights, mask = normal(KEY, 100), sample_mean(uniform(KEY, 100, torch.float64), torch.full((100,), 0.5), 7)
    torch.testing.assert_close(mask_of(under(weights, mask, act), weights, act), mask)
    torch.testing.assert_close(under(weights, torch.ones(100), act), weights)
    torch.testing.assert_close(under(weights, torch.zeros(100), act), 0 * weights if act == "drop" else -weights)


def test_the_entropy_of_a_mean_is_that_of_its_rounding() -> None:
    theta = torch.tensor([0.5, 0.25, 0.3], dtype=torch.float64)
    torch.testing.assert_close(mean_entropy_bits(theta, 1), entropy_bits(theta))
    rounding = torch.tensor([0.0, 0.0, 0.2], dtype=torch.float64)  # 4 · 0.3 = 1 + 0.2
    torch.testing.assert_close(mean_entropy_bits(theta, 4), entropy_bits(rounding))
