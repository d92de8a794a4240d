"""Scores, probabilities and masks, and the gradient that Eq. 4 asks for (conformance 1)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.masks.bernoulli import Estimator, bound, entropy_bits, sample, straight_through, to_scores
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
