"""Clips really bound, noise is really there, and every executor draws the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pmsfl.engine.channels import channels
from pmsfl.engine.client import Bottoms
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, root
from pmsfl.methods import make_method
from pmsfl.models.split import SplitModel
from pmsfl.privacy.mechanisms import clip_rows, laplace
from pmsfl.report.privacy import paper_claims
from pmsfl.wire.ledger import Ledger

from ..conftest import bottoms_of, play, tiny_recipe, tiny_world
from ..engine.test_agreement import assert_agree, both

FROZEN: dict[str, Any] = {"norm": "group", "norms": "frozen"}
SCORES: dict[str, Any] = {**FROZEN, "score_gradient_noise": 0.5, "score_gradient_clip": 0.1}
MIXED = "1,2,3,4,2"
PROTECTED: dict[str, dict[str, Any]] = {
    "score-clip": {"score_clip": 0.5},
    "score-clip-mixed": {"score_clip": 0.5, "depths": MIXED},
    "theta-noise": {"theta_noise": 0.2, "score_clip": 0.5},
    "theta-noise-floats": {"theta_noise": 0.2, "method": "splitfed-pm"},
    "smashed-gaussian": {"dp_smashed": "gaussian", **FROZEN},
    "smashed-laplace-mixed": {"dp_smashed": "laplace", "norm": "group", "depths": MIXED},
    "score-gradients": SCORES,
    "score-gradients-mixed": {**SCORES, "depths": MIXED, "dp_smashed": "gaussian", "mask_per": "round"},
    "score-gradients-threshold": {**SCORES, "method": "threshold-mask"},
}


@pytest.mark.parametrize("name", PROTECTED)
def test_executors_agree_on_clips_and_noise(name: str) -> None:
    both(tiny_world(**PROTECTED[name]), rounds=2)


@pytest.mark.parametrize("name", PROTECTED)
def test_every_protection_changes_what_is_learned(name: str) -> None:
    off = {"score_clip": 0.0, "theta_noise": 0.0, "dp_smashed": "off", "score_gradient_noise": 0.0}
    with_it, _, _ = play(tiny_world(**PROTECTED[name]), rounds=1)
    without, _, _ = play(tiny_world(**(PROTECTED[name] | off)), rounds=1)
    assert not torch.equal(with_it.shared, without.shared)


# --- change of scores


def trained_cohort(world: World, steps: int = 4) -> Bottoms:
    """Three clients a few steps into their first round, each pushed by gradients of ones."""
    clients = bottoms_of(world, State.initial(world), [0, 1, 2], [steps] * 3)
    for _ in range(steps):
        smashed, _ = clients.forward()
        clients.backward(torch.ones_like(smashed))
        clients.clock.step += 1
    return clients


@pytest.mark.parametrize("limit", [0.05, 1.0])
def test_what_goes_up_moved_by_no_more_than_the_clip(limit: float) -> None:
    clients = trained_cohort(tiny_world(method="splitfed-pm", score_clip=limit))
    uploaded = torch.logit(clients.finish().values)
    moved = torch.linalg.vector_norm(uploaded - clients.start, dim=1)
    assert torch.linalg.vector_norm(clients.rows.trained - clients.start, dim=1).min() > limit
    torch.testing.assert_close(moved, torch.full_like(moved, limit))


def test_coordinates_that_stay_do_not_use_up_the_clip() -> None:
    method = make_method(tiny_recipe(score_clip=1.0))
    start = torch.zeros(1, 4, dtype=torch.float64)
    trained = torch.tensor([[30.0, 40.0, 0.3, 0.4]], dtype=torch.float64)
    uploaded = torch.tensor([[False, False, True, True]])
    out = method.protect_update(start, trained, uploaded, torch.zeros(1, dtype=torch.int64))
    torch.testing.assert_close(out[uploaded], trained[uploaded])


def test_noise_on_theta_comes_before_the_clip() -> None:
    method = make_method(tiny_recipe(theta_noise=0.3, clip=0.05))
    scores = torch.zeros(1, 40_000, dtype=torch.float64)
    keys = torch.zeros(1, dtype=torch.int64)
    theta = torch.sigmoid(method.protect_update(scores, scores, scores == 0, keys))
    assert theta.min() == pytest.approx(0.05)
    assert theta.max() == pytest.approx(0.95)
    inside = (theta > 0.051) & (theta < 0.949)
    # P(|z| < 0.45) of a deviation of 0.3: the rest is at the clip, on both sides
    assert inside.double().mean().item() == pytest.approx(0.8664, abs=0.01)


# --- smashed data


@pytest.mark.parametrize(("mechanism", "order"), [("gaussian", 2), ("laplace", 1)])
@pytest.mark.parametrize("name", ["pm-sfl", "splitfed", "frozen-mask"])
def test_each_samples_smashed_data_is_clipped_before_noise(name: str, mechanism: str, order: int) -> None:
    recipe = tiny_recipe(method=name, dp_smashed=mechanism, dp_epsilon_smashed=1e9, dp_clip_smashed=0.5, norm="group")
    smashed = 100.0 * torch.ones(2, 3, 4, dtype=torch.float64)  # so little noise that only the clip shows
    out = make_method(recipe).smash(smashed, torch.arange(2))
    norms = torch.linalg.vector_norm(out, order, dim=2)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.5), rtol=1e-2, atol=0)


def test_noise_is_of_the_scale_that_was_calibrated() -> None:
    recipe = tiny_recipe(dp_smashed="laplace", dp_epsilon_smashed=0.5, dp_clip_smashed=2.0, norm="group")
    noise = make_method(recipe).smash(torch.zeros(1, 100, 1000, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    assert noise.abs().mean().item() == pytest.approx(2.0 * 2.0 / 0.5, rel=0.02)  # the mean of |Laplace| is its scale


def test_laplace_noise_is_finite_at_the_ends_of_its_uniforms(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([0, -1, 1 << 62, -(1 << 63)])
    monkeypatch.setattr("pmsfl.privacy.mechanisms.words", lambda key, n: ends[:n])
    noise = laplace(root(0, Stream.NOISE), 4)
    assert torch.isfinite(noise).all()
    assert noise.abs().max() > 30.0  # the far tail is there, as far as 53 bits reach


# --- score gradients


def test_gradients_without_a_limit_and_without_noise_are_the_ordinary_ones() -> None:
    changes = {**FROZEN, "score_gradient_clip": 1e6}
    apart, _, _ = play(tiny_world(**changes, score_gradient_noise=1e-20))
    ordinary, _, _ = play(tiny_world(**changes))
    assert_agree(apart, ordinary)


def test_each_samples_gradient_is_clipped_and_their_sum_noised() -> None:
    world = tiny_world(**SCORES)
    clients = bottoms_of(world, State.initial(world), [0, 1], [1, 1])
    batch, size = world.recipe.batch, clients.rows.trained.shape[1]
    gradients = torch.linspace(-3, 5, 2 * batch * size, dtype=torch.float64).reshape(2 * batch, size)
    noise = clients._private(torch.zeros_like(gradients))
    found = clients._private(gradients) - noise
    expected = torch.stack([_mean_of_clipped(g * batch, 0.1) for g in gradients.reshape(2, batch, size)])
    torch.testing.assert_close(found, expected)
    assert noise.std().item() == pytest.approx(0.5 * 0.1 / batch, rel=0.1)
    assert not torch.equal(noise[0], noise[1])


def _mean_of_clipped(rows: Tensor, limit: float) -> Tensor:
    return torch.stack([row * min(1.0, limit / float(row.norm())) for row in rows]).mean(0)


def test_a_samples_gradient_does_not_depend_on_the_others() -> None:
    """The reason for group norm: one row of scores per sample, one sample per row."""
    world = tiny_world(**SCORES)
    clients = bottoms_of(world, State.initial(world), [0], [1])
    smashed, _ = clients.forward()
    direction = torch.zeros_like(smashed)
    direction[0, 2] = 1.0
    (rows,) = torch.autograd.grad(clients._smashed, [clients._masked], direction)
    assert rows[2].abs().max() > 0
    assert rows[[i for i in range(world.recipe.batch) if i != 2]].abs().max() == 0


def test_a_step_with_gradients_of_its_own_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    world, notes = tiny_world(**SCORES), list[str]()
    monkeypatch.setattr(world, "device", torch.device("cuda"))
    assert CohortExecutor(world, Ledger(), notes.append).recorder is None
    assert any("score_gradient_noise" in line for line in notes)


# --- claims that are refused

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "poisson": ({"dp_amplification": "poisson"}, "Poisson samples"),
    "smashed-batch-norm": ({"dp_smashed": "gaussian"}, "batch statistics"),
    "gradients-batch-norm": ({"score_gradient_noise": 1.0, "norms": "frozen"}, "batch statistics"),
    "gradients-norms": ({"score_gradient_noise": 1.0, "norm": "group", "norms": "local"}, "norms = 'frozen'"),
    "gradients-head": ({**SCORES, "labels": "u-shape"}, "u-shape"),
    "gradients-exits": ({**SCORES, "method": "depthfl"}, "depthfl"),
    "clip-of-weights": ({"score_clip": 0.3, "method": "splitfed"}, "trains no scores"),
    "clip-of-even-draws": ({"score_clip": 0.3, "upload_draw": "even"}, "upload_draw = 'independent'"),
    "clip-of-several": ({"score_clip": 0.3, "upload_masks": 3}, "upload_masks = 1"),
    "several-for-a-round": ({"forward_masks": 3, "mask_per": "round"}, "forward_masks = 1"),
    "several-steered": ({"forward_masks": 3, "entropy_target": 0.5}, "forward_masks = 1"),
    "several-coded": ({"upload_masks": 3, "mask_codec": "entropy"}, "mask_codec = 'packed'"),
    "theta-of-weights": ({"theta_noise": 0.3, "method": "splitfed-dp"}, "trains no scores"),
    "twice-noised": ({"dp_smashed": "laplace", "method": "splitfed-dp"}, "dp_calibration"),
    "sound-batch-norm": ({"method": "splitfed-dp", "dp_calibration": "sound"}, "batch statistics"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_claim_that_cannot_hold_is_refused_with_the_reason(name: str) -> None:
    changes, reason = REFUSED[name]
    with pytest.raises(PmsflError, match=reason):
        tiny_world(**changes)


def test_means_of_masks_are_told_as_rounded_probabilities() -> None:
    told = {c.name: c for c in channels(tiny_world(upload_masks=15))}["masks"]
    assert told.events is None
    assert "rounded probabilities" in told.why
    assert "score_clip" in {c.name: c for c in channels(tiny_world())}["masks"].why
    world = tiny_world(upload_masks=15, theta_noise=0.3, score_clip=0.3)  # noise on θ itself covers whatever is drawn
    assert {c.name: c for c in channels(world)}["masks"].events is not None
    tiny_world(upload_masks=15, method="splitfed-pm", mask_codec="packed", score_clip=0.3)  # it never draws any
    notes = [claim.verdict for claim in paper_claims(tiny_world(upload_masks=15))]
    assert any("no such bound holds" in note for note in notes)
    assert not any("what does hold" in note for note in notes)


def test_a_clip_of_scores_needs_no_group_norm() -> None:
    tiny_world(score_clip=0.3)  # it bounds what a whole client did, batch statistics or not


def test_clipping_to_the_limit_keeps_directions() -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(clip_rows(x, 1.0, 2), x / 5.0)


def test_the_batch_norm_of_a_narrow_cut_counts_as_one() -> None:
    plain: dict[str, Any] = {"model": "tests.privacy.test_protection:without_norms", "personal_ratio": 0.0}
    tiny_world(dp_smashed="gaussian", **plain)
    with pytest.raises(PmsflError, match=r"dp_smashed.*norm = 'batch'"):
        tiny_world(dp_smashed="gaussian", cut_channels=2, **plain)
    told = {c.name: c.events for c in channels(tiny_world(cut_channels=2, **plain))}
    assert told["statistics"] is None
    assert {c.name: c.events for c in channels(tiny_world(**plain))}["statistics"] is not None


def without_norms(classes: int) -> SplitModel:
    """Two blocks of maps without a norm, for images [1, 8, 8]."""
    blocks = [nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()), nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())]
    return SplitModel([*blocks, nn.Conv2d(4, 4, 3)], nn.Sequential(nn.Flatten(), nn.Linear(64, classes)))
