"""Compositions agree with dp-accounting, the masks' bound with exact likelihoods; more releases never cost less."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, root
from pmsfl.privacy.accounting import Event, bound, pld_epsilon, tight
from pmsfl.privacy.mechanisms import (
    clip_and_noise,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_ratio,
    mask_rho,
    signal_to_noise_db,
    zcdp_epsilon,
)

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
DELTA = 1e-5
CELL = 2e-3  # of a distribution: coarse is fast, and errs on the safe side


# --- against dp-accounting


@pytest.mark.parametrize(("mu", "times"), [(0.1, 1), (0.05, 500), (0.5, 40), (2.0, 3)])
def test_gaussian_releases_compose_as_dp_accounting_says(mu: float, times: int) -> None:
    events = [Event("gaussian", mu, times)]
    assert bound(events, DELTA) == pytest.approx(pld_epsilon(events, DELTA, CELL), rel=1e-3, abs=2 * CELL)


def test_gaussian_releases_of_two_kinds_compose_exactly() -> None:
    events = [Event("gaussian", 0.3, 20), Event("gaussian", 0.7, 2)]
    assert bound(events, DELTA) == pytest.approx(pld_epsilon(events, DELTA, CELL), rel=1e-3)


@pytest.mark.parametrize(("epsilon", "times"), [(0.1, 500), (1.0, 20), (0.5, 1)])
def test_laplace_releases_are_bounded_in_closed_form_and_tight_by_distribution(epsilon: float, times: int) -> None:
    events = [Event("laplace", epsilon, times)]
    fine = pld_epsilon(events, DELTA, 2e-4)
    assert tight(events, DELTA) == pytest.approx(fine, rel=1e-2)
    assert tight(events, DELTA) <= bound(events, DELTA)


def test_five_hundred_laplace_releases_at_a_tenth_come_to_eleven() -> None:
    assert tight([Event("laplace", 0.1, 500)], DELTA) == pytest.approx(11.2, abs=0.05)


def test_noise_of_two_kinds_is_tighter_together_than_as_a_sum() -> None:
    events = [Event("laplace", 0.1, 50), Event("gaussian", 0.3, 10)]
    together = tight(events, DELTA)
    assert together < 0.8 * bound(events, DELTA)
    assert together > max(pld_epsilon([e], DELTA, CELL) for e in events)


@pytest.mark.parametrize("coordinates", [2, 5])
def test_laplace_noise_on_a_vector_is_no_worse_than_on_its_one_norm(coordinates: int) -> None:
    """What lets one event stand for a vector: a shift spread over coordinates is harder to see."""
    spread = [Event("laplace", 1.0 / coordinates, coordinates)]
    for delta in (1e-5, 0.01, 0.2):
        assert pld_epsilon(spread, delta, CELL) <= pld_epsilon([Event("laplace", 1.0, 1)], delta, CELL) + 5 * CELL


@pytest.mark.parametrize("rho", [1e-3, 0.125, 3.0])
def test_zcdp_converts_as_dp_accountings_renyi_accountant_does(rho: float) -> None:
    import dp_accounting

    orders = (1.0 + np.logspace(-3, 5, 4000)).tolist()
    theirs, _ = dp_accounting.rdp.compute_epsilon(orders, rho * np.array(orders), DELTA)
    assert zcdp_epsilon(rho, DELTA) == pytest.approx(theirs, rel=1e-4)


def test_without_dp_accounting_figures_are_looser_and_asking_for_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [Event("laplace", 0.1, 500)]
    with_it = tight(events, DELTA)
    monkeypatch.setattr("pmsfl.privacy.accounting.has_library", lambda: False)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert tight(events, DELTA) == bound(events, DELTA) > with_it
    with pytest.raises(PmsflError, match="pip install"):
        pld_epsilon(events, DELTA)


def test_a_distribution_of_masks_is_refused() -> None:
    with pytest.raises(PmsflError, match="zcdp"):
        pld_epsilon([Event("zcdp", 0.1, 1)], DELTA)


# --- masks


@pytest.mark.parametrize(
    ("clip", "figures"), [(0.1, (0.18, 0.62, 2.2)), (0.3, (0.58, 2.0, 7.6)), (1.0, (2.2, 8.1, 35.0))]
)
def test_masks_of_clipped_scores_cost_what_the_table_says(clip: float, figures: tuple[float, ...]) -> None:
    found = [bound([Event("zcdp", mask_rho(clip), rounds)], DELTA) for rounds in (1, 10, 100)]
    assert [float(f"{e:.2g}") for e in found] == list(figures)


def _log_likelihoods(scores: Vector) -> Vector:
    """Of every mask of so many coordinates: [2^d]."""
    bits = np.array(list(itertools.product((0.0, 1.0), repeat=len(scores))))
    found: Vector = bits @ scores - np.logaddexp(0.0, scores).sum()
    return found


def _hockey_stick(p: Vector, q: Vector, epsilon: float) -> float:
    return float(np.maximum(np.exp(p) - np.exp(epsilon + q), 0.0).sum())


@st.composite
def score_pairs(draw: st.DrawFn) -> tuple[Vector, Vector, float]:
    d = draw(st.integers(1, 7))
    numbers = st.floats(-4.0, 4.0)
    start = np.array(draw(st.lists(numbers, min_size=d, max_size=d)))
    step = np.array(draw(st.lists(st.floats(-1.0, 1.0), min_size=d, max_size=d)))
    norm = float(np.linalg.norm(step))
    size = draw(st.floats(0.05, 4.0))
    moved = start + (step / norm if norm > 1e-3 else np.eye(d)[0]) * size
    return start, moved, size


@settings(max_examples=60, deadline=None)
@given(score_pairs(), st.floats(0.0, 3.0))
def test_exact_likelihoods_of_masks_stay_within_the_bound(pair: tuple[Vector, Vector, float], epsilon: float) -> None:
    start, moved, size = pair
    p, q = _log_likelihoods(start), _log_likelihoods(moved)
    for a, b in ((p, q), (q, p)):
        delta = _hockey_stick(a, b, epsilon)
        if delta > 1e-12:  # at the δ the masks really have, the bound must not promise a smaller ε
            assert zcdp_epsilon(mask_rho(size), delta) >= epsilon - 1e-9
        for order in (1.01, 2.0, 8.0):
            renyi = math.log(float(np.exp(order * a - (order - 1.0) * b).sum())) / (order - 1.0)
            assert renyi <= order * mask_rho(size) + 1e-9


def test_the_gaussian_curve_is_no_bound_for_a_mask() -> None:
    p, q = _log_likelihoods(np.array([-0.25])), _log_likelihoods(np.array([0.25]))
    assert _hockey_stick(p, q, 0.0) > gaussian_delta(0.5 / 2.0, 0.0) * 1.2


# --- what calibrated noise leaves of a signal


def test_eight_over_five_hundred_releases_leaves_a_signal_74_decibels_down() -> None:
    each = gaussian_epsilon(gaussian_ratio(8.0, DELTA) / math.sqrt(500), DELTA)
    assert signal_to_noise_db("gaussian", each, DELTA, 32_768) == pytest.approx(-74.0, abs=0.5)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_signal_is_as_weak_as_said(mechanism: str) -> None:
    rows, size = 50, 2000
    x = torch.zeros(rows, size, dtype=torch.float64)
    x[:, 0] = 7.0  # all in one coordinate: clipped to the limit in both norms
    keys = root(5, Stream.NOISE).reshape(1)
    noise = clip_and_noise(x, mechanism, 2.0, 0.5, DELTA, keys, rows * size)
    noise[:, 0] -= 2.0
    ratio = 10.0 * math.log10(4.0 / float((noise**2).sum(1).mean()))
    assert ratio == pytest.approx(signal_to_noise_db(mechanism, 0.5, DELTA, size), abs=0.1)


# --- properties

EVENTS = st.builds(Event, st.sampled_from(["gaussian", "laplace", "zcdp"]), st.floats(0.01, 2.0), st.integers(1, 400))


@settings(deadline=None)
@given(EVENTS, st.integers(1, 400), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_more_rounds_never_cost_less(event: Event, more: int, delta: float) -> None:
    later = Event(event.kind, event.size, event.times + more)
    assert bound([later], delta) >= bound([event], delta) - 1e-9


@settings(deadline=None)
@given(st.floats(0.02, 3.0), st.floats(0.1, 0.95), st.integers(1, 200))
def test_a_smaller_clip_costs_less(clip: float, share: float, rounds: int) -> None:
    small, large = (bound([Event("zcdp", mask_rho(c), rounds)], DELTA) for c in (clip * share, clip))
    assert small < large


@settings(deadline=None)
@given(EVENTS, EVENTS)
def test_another_channel_never_costs_less(one: Event, other: Event) -> None:
    assert bound([one, other], DELTA) >= max(bound([one], DELTA), bound([other], DELTA)) - 1e-6


def test_nothing_released_costs_nothing() -> None:
    assert bound([], DELTA) == tight([], DELTA) == bound([Event("gaussian", 1.0, 0)], DELTA) == 0.0


def test_a_release_costs_the_epsilon_it_was_calibrated_to() -> None:
    assert bound([Event("gaussian", gaussian_ratio(2.0, DELTA), 1)], DELTA) == pytest.approx(2.0, rel=1e-6)
