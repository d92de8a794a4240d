"""What each method trains, uploads, merges and keeps."""

from __future__ import annotations

import pytest
import torch

from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, fold, normal, root, uniform
from pmsfl.methods import METHODS, Method, make_method
from pmsfl.recipe import Recipe

from ..conftest import BASIC, distinct, play, tiny_world

P = 400
FROZEN, SCORES = (normal(root(s, Stream.NOISE), P) for s in (0, 1))
U = uniform(root(2, Stream.NOISE), P, torch.float64)
ONE, EQUAL = torch.ones(3, P, dtype=torch.bool), torch.ones(3, dtype=torch.float64)


def method(name: str, **changes: object) -> Method:
    return make_method(Recipe(method=name, **changes))  # type: ignore[arg-type]


def test_every_method_is_known_by_its_name_and_says_what_it_is() -> None:
    assert set(BASIC) <= set(METHODS)
    for name in METHODS:
        assert method(name).name == name
        assert method(name).summary


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(PmsflError, match="'splitfed'"):
        make_method(Recipe(method="spltfed"))


@pytest.mark.parametrize("name", METHODS)
def test_rows_do_not_mix(name: str) -> None:
    m = method(name)
    start = m.start(m.initial(FROZEN, SCORES, U))
    rows = start.repeat(3, 1) + normal(root(9, Stream.NOISE), 3 * P).reshape(3, P)
    u = uniform(fold(root(3, Stream.NOISE), torch.arange(3)), P, torch.float64)
    together, uploads = m.effective(rows, FROZEN, u), m.upload(rows, u)
    for i in range(3):
        assert torch.equal(together[i], m.effective(rows[i], FROZEN, u[i]))
        assert torch.equal(uploads[i], m.upload(rows[i], u[i]))


@pytest.mark.parametrize("name", METHODS)
def test_starting_never_hands_out_the_shared_vector_itself(name: str) -> None:
    m = method(name)
    shared = m.initial(FROZEN, SCORES, U)
    kept = shared.clone()
    m.start(shared).zero_()
    assert torch.equal(shared, kept)


def test_several_masks_are_drawn_evenly_and_run_as_their_mean() -> None:
    one, several = method("pm-sfl"), method("pm-sfl", forward_masks=5, upload_masks=3)
    theta = torch.sigmoid(SCORES)
    each = torch.stack([(U + i) / 5 < theta for i in range(5)]).to(U.dtype)  # draws that lie a fifth apart
    torch.testing.assert_close(several.effective(SCORES, FROZEN, U), FROZEN * each.mean(0))
    uploads = torch.stack([(U + i) / 3 < theta for i in range(3)]).to(U.dtype)
    torch.testing.assert_close(several.upload(SCORES, U), uploads.mean(0))
    assert (one.shows, several.shows, method("splitfed", upload_masks=3).shows) == ("bits", "theta", "weights")
    for other in ("threshold-mask", "splitfed-pm", "splitfed"):  # no draw, exact, no masks
        assert method(other, upload_masks=3).upload_masks == 1


def test_a_flipping_mask_turns_signs_and_drops_nothing() -> None:
    drop, flip = method("pm-sfl"), method("pm-sfl", mask_act="flip")
    kept = drop.effective(SCORES, FROZEN, U) != 0
    torch.testing.assert_close(flip.effective(SCORES, FROZEN, U), torch.where(kept, FROZEN, -FROZEN))
    expected = flip.evaluation_weights(SCORES, FROZEN, U, "expected")
    torch.testing.assert_close(expected, FROZEN * (2 * torch.sigmoid(SCORES) - 1))
    threshold = flip.evaluation_weights(SCORES, FROZEN, U, "threshold")
    torch.testing.assert_close(threshold, FROZEN * torch.sign(SCORES))
    for name in ("frozen-mask", "dense-frozen", "splitfed"):  # controls and weights know nothing of it
        plain, other = method(name), method(name, mask_act="flip")
        start = plain.start(plain.initial(FROZEN, SCORES, U))
        assert torch.equal(plain.effective(start, FROZEN, None), other.effective(start, FROZEN, None))


def test_sharp_masks_are_drawn_with_steeper_probabilities_and_uploads_with_theta() -> None:
    soft, sharp = method("pm-sfl"), method("pm-sfl", mask_sharpness=10.0)
    masks = [(m.effective(SCORES, FROZEN, U) / FROZEN).round() for m in (soft, sharp)]
    assert torch.equal(masks[0], (torch.sigmoid(SCORES) > U).to(U.dtype))
    assert torch.equal(masks[1], (torch.sigmoid(10.0 * SCORES) > U).to(U.dtype))
    against = [int((mask != (SCORES > 0)).sum()) for mask in masks]
    assert against[1] < against[0] / 4
    assert torch.equal(soft.upload(SCORES, U), sharp.upload(SCORES, U))
    expected = sharp.evaluation_weights(SCORES, FROZEN, U, "expected")
    torch.testing.assert_close(expected, FROZEN * torch.sigmoid(10.0 * SCORES))
    same = [m.evaluation_weights(SCORES, FROZEN, U, "threshold") for m in (soft, sharp)]
    assert torch.equal(*same)


def test_pm_sfl_runs_frozen_weights_under_a_mask_and_uploads_bits() -> None:
    m = method("pm-sfl")
    theta = m.initial(FROZEN, SCORES, U)
    trained = m.start(theta)
    torch.testing.assert_close(torch.sigmoid(trained), theta)
    effective = m.effective(trained, FROZEN, U)
    assert torch.equal(effective, FROZEN * (torch.sigmoid(trained) > U))
    assert distinct(m.upload(trained, U)) == [0.0, 1.0]


def test_splitfed_pm_uploads_probabilities() -> None:
    m = method("splitfed-pm", aggregate="sampled")
    trained = m.start(m.initial(FROZEN, SCORES, U))
    uploads = m.upload(trained, U)
    assert torch.equal(uploads, torch.sigmoid(trained))
    merged, _ = m.merge(torch.full_like(uploads, 0.5), uploads.repeat(3, 1), ONE, EQUAL, None)
    torch.testing.assert_close(merged, uploads)


def test_splitfed_trains_weights_from_the_frozen_start() -> None:
    m = method("splitfed", aggregate="sampled")
    assert torch.equal(m.initial(FROZEN, SCORES, U), FROZEN)
    rows = torch.stack([FROZEN, FROZEN + 3, FROZEN * 0])
    merged, _ = m.merge(FROZEN, rows, ONE, EQUAL, None)
    torch.testing.assert_close(merged, (2 * FROZEN + 3) / 3)
    assert m.theta(FROZEN) is None


@pytest.mark.parametrize("name", ["splitfed", "splitfed-pm", "pm-sfl", "threshold-mask"])
def test_damping_applies_to_every_method_alike(name: str) -> None:
    m = method(name, aggregate="damped", damping=0.25)
    uploads = (uniform(root(4, Stream.NOISE), P, torch.float64) < 0.5).double().repeat(3, 1)
    merged, _ = m.merge(torch.full((P,), 0.5, dtype=torch.float64), uploads, ONE, EQUAL, None)
    torch.testing.assert_close(merged, 0.5 + 0.25 * (uploads[0] - 0.5))


def test_a_beta_posterior_is_for_masks_only() -> None:
    m = method("splitfed", aggregate="beta")
    merged, counts = m.merge(FROZEN, torch.full((3, P), -7.0, dtype=torch.float64), ONE, EQUAL, None)
    assert counts is None
    assert distinct(merged) == [-7.0]


# --- controls


def test_the_frozen_mask_is_drawn_once_and_never_learned() -> None:
    world = tiny_world(method="frozen-mask")
    state, ledger, _ = play(world, rounds=2)
    p = world.masked_size(2)
    mask = state.shared[:p]
    assert distinct(mask) == [0.0, 1.0]
    assert 0.3 < float(mask.mean()) < 0.7
    first, _, _ = play(tiny_world(method="frozen-mask"), rounds=1)
    assert torch.equal(first.shared[:p], mask)
    assert not {"theta.down", "mask.up", "weights.up"} & ledger.as_dict().keys()


def test_dense_frozen_has_no_mask() -> None:
    m = method("dense-frozen")
    assert torch.equal(m.effective(m.start(m.initial(FROZEN, SCORES, U)), FROZEN, None), FROZEN)


def test_the_threshold_mask_is_theta_above_a_half_everywhere() -> None:
    m = method("threshold-mask")
    trained = m.start(m.initial(FROZEN, SCORES, U))
    mask = (SCORES > 0).double()
    assert torch.equal(m.effective(trained, FROZEN, None), FROZEN * mask)
    assert torch.equal(m.upload(trained, None), mask)
    assert torch.equal(m.evaluation_weights(trained, FROZEN, U, "sampled"), FROZEN * mask)


@pytest.mark.parametrize("name", ["splitfed-pm", "threshold-mask", "splitfed", "frozen-mask"])
def test_nothing_is_personal_where_the_method_has_no_personalisation(name: str) -> None:
    state, ledger, metrics = play(tiny_world(method=name, growth="one-shot"), rounds=2)
    assert all(not len(m.indices) for m in state.bank.values())
    assert metrics[-1].personal == 0.0
    assert "personal.up" not in ledger.as_dict()


def test_a_damping_of_zero_is_the_share_of_clients_in_a_round() -> None:
    world = tiny_world(aggregate="damped", damping=0.0, cohort=2)
    assert world.method.mask_aggregator.damping == world.method.float_aggregator.damping == 2 / 5
