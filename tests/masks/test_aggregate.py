"""Many uploads become one vector: unbiased, bounded, and never 0/0 (conformance 2, 3 and 4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmsfl.masks.aggregate import Aggregator, Rule, merge, steer_entropy, weighted_sums
from pmsfl.masks.bernoulli import entropy_bits
from pmsfl.masks.random import Stream, fold, root, uniform
from pmsfl.methods.pm_sfl import PMSFL
from pmsfl.recipe import Recipe

KEY = root(0, Stream.UPLOAD)
relaxed = settings(deadline=None, max_examples=60)
RULES: list[Rule] = ["sampled", "damped", "beta", "settled"]


def bits_of(theta: Tensor, clients: int, round_: int = 0) -> Tensor:
    """Uploads [K, P] of clients that all hold θ."""
    keys = fold(fold(KEY, round_), torch.arange(clients))
    return (uniform(keys, len(theta), theta.dtype) < theta).to(theta.dtype)


def drift(method: PMSFL, rounds: int, size: int, clients: int = 10) -> Tensor:
    """θ after rounds without any learning signal, checked after each."""
    theta, c = torch.full((size,), 0.5), method.recipe.clip
    everyone, equal = torch.ones(clients, size, dtype=torch.bool), torch.ones(clients)
    for t in range(rounds):
        theta, _ = method.merge(theta, bits_of(theta, clients, t), everyone, equal, None)
        assert torch.isfinite(theta).all()
        assert float(theta.min()) >= c - 1e-7
        assert float(theta.max()) <= 1 - c + 1e-7
    return theta


@pytest.mark.parametrize("rule", RULES)
def test_theta_stays_clipped_and_finite_for_a_thousand_rounds(rule: str) -> None:
    theta = drift(PMSFL(Recipe(aggregate=rule)), 1000, 64)
    assert torch.isfinite(PMSFL(Recipe()).start(theta)).all()


def test_the_plain_mean_polarises_without_signal_and_damping_slows_it() -> None:
    plain = entropy_bits(drift(PMSFL(Recipe(aggregate="sampled")), 30, 2000)).mean()
    damped = entropy_bits(drift(PMSFL(Recipe(aggregate="damped", damping=0.1)), 30, 2000)).mean()
    assert float(plain) < 0.4
    assert float(damped) > 0.8


def test_the_mean_of_sampled_bits_is_unbiased_with_error_below_a_quarter_over_k() -> None:
    k, d, repeats = 10, 200, 400
    theta_k = uniform(fold(root(1, Stream.NOISE), torch.arange(k)), d, torch.float64)
    everyone = torch.ones(k, d, dtype=torch.bool)
    error, total = 0.0, torch.zeros(d, dtype=torch.float64)
    for t in range(repeats):
        keys = fold(fold(KEY, t), torch.arange(k))
        bits = (uniform(keys, d, torch.float64) < theta_k).double()
        merged, _ = merge(torch.zeros(d, dtype=torch.float64), bits, everyone, Aggregator("sampled"))
        total += merged
        error += float(((merged - theta_k.mean(0)) ** 2).sum())
    variance = (theta_k * (1 - theta_k)).sum(0) / k**2
    off = (total / repeats - theta_k.mean(0)) / (variance / repeats).sqrt()
    assert float(off.abs().max()) < 4.5  # 200 normal deviates
    assert abs(float((off**2).mean()) - 1.0) < 0.4
    assert error / repeats <= d / (4 * k)


# --- 0/0 and contributors


@pytest.mark.parametrize("rule", RULES)
def test_a_coordinate_nobody_contributes_keeps_its_value(rule: Rule) -> None:
    previous = torch.tensor([0.3, 0.7])
    uploads = torch.tensor([[1.0, float("nan")], [1.0, float("inf")]])
    contributes = torch.tensor([[True, False], [True, False]])
    merged, _ = merge(previous, uploads, contributes, Aggregator(rule))
    assert float(merged[1]) == pytest.approx(0.7)
    assert float(merged[0]) > 0.3


def test_too_few_contributors_keep_the_value() -> None:
    contributes = torch.tensor([[True, True, False], [True, False, False], [True, True, False]])
    merged, _ = merge(torch.full((3,), 0.25), torch.ones(3, 3), contributes, Aggregator(min_contributors=3))
    assert merged.tolist() == [1.0, 0.25, 0.25]


def test_what_a_client_does_not_contribute_is_never_looked_at() -> None:
    uploads = torch.tensor([[1.0, float("nan")], [0.0, 1.0]])
    contributes = torch.tensor([[True, False], [True, True]])
    total, share, heads = weighted_sums(uploads, contributes, torch.tensor([3.0, 2.0]))
    assert total.tolist() == [3.0, 2.0]
    assert share.tolist() == [5.0, 2.0]
    assert heads.tolist() == [2, 1]


def test_clients_weigh_by_their_weights() -> None:
    everyone = torch.ones(2, 1, dtype=torch.bool)
    uploads = torch.tensor([[1.0], [0.0]])
    merged, _ = merge(torch.zeros(1), uploads, everyone, Aggregator(), torch.tensor([3.0, 1.0]))
    assert float(merged) == pytest.approx(0.75)


def test_weights_that_are_all_zero_change_nothing() -> None:
    everyone = torch.ones(2, 1, dtype=torch.bool)
    merged, _ = merge(torch.full((1,), 0.4), torch.ones(2, 1), everyone, Aggregator(), torch.zeros(2))
    assert float(merged) == pytest.approx(0.4)


# --- damped and beta


def test_damping_moves_a_share_of_the_way() -> None:
    previous, uploads = torch.tensor([0.2]), torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    merged, _ = merge(previous, uploads, torch.ones(4, 1, dtype=torch.bool), Aggregator("damped", damping=0.1))
    assert float(merged) == pytest.approx(0.2 + 0.1 * (0.75 - 0.2))


@relaxed
@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 2**32))
def test_beta_with_a_flat_prior_is_the_mean(clients: int, size: int, seed: int) -> None:
    keys = fold(root(seed, Stream.NOISE), torch.arange(clients))
    uploads = uniform(keys, size, torch.float64).round()
    contributes = uniform(fold(keys, 1), size) < 0.7
    previous = torch.full((size,), 0.5, dtype=torch.float64)
    mean, _ = merge(previous, uploads, contributes, Aggregator("sampled"))
    mode, _ = merge(previous, uploads, contributes, Aggregator("beta", prior=1.0))
    torch.testing.assert_close(mode, mean, rtol=0, atol=1e-12)


def test_beta_counts_accumulate_until_they_are_reset() -> None:
    rule, everyone = Aggregator("beta", prior=2.0), torch.ones(2, 1, dtype=torch.bool)
    theta, counts = merge(torch.tensor([0.5]), torch.ones(2, 1), everyone, rule)
    assert counts is not None
    assert [float(c) for c in counts] == [4.0, 2.0]
    assert float(theta) == pytest.approx(3 / 4)
    theta, counts = merge(theta, torch.tensor([[1.0], [0.0]]), everyone, rule, counts=counts)
    assert counts is not None
    assert [float(c) for c in counts] == [5.0, 3.0]
    assert float(theta) == pytest.approx(4 / 6)


def test_merging_leaves_its_arguments_alone() -> None:
    previous, uploads = torch.tensor([0.2]), torch.ones(2, 1)
    counts = (torch.ones(1), torch.ones(1))
    merge(previous, uploads, torch.ones(2, 1, dtype=torch.bool), Aggregator("beta"), counts=counts)
    assert (float(previous), uploads.sum().item(), float(counts[0]), float(counts[1])) == pytest.approx((0.2, 2, 1, 1))


# --- every rule against a loop


def by_loop(previous: list[float], ups: list[list[float]], on: list[list[bool]], rule: Aggregator) -> list[float]:
    out = []
    for j, before in enumerate(previous):
        mine = [u[j] for u, c in zip(ups, on, strict=True) if c[j]]
        if len(mine) < max(1, rule.min_contributors):
            out.append(before)
            continue
        mean = sum(mine) / len(mine)
        if rule.rule in ("damped", "settled"):
            mean = (1 - rule.damping) * before + rule.damping * mean
        if rule.rule == "beta":
            a, b = rule.prior + sum(mine), rule.prior + len(mine) - sum(mine)
            mean = (a - 1) / (a + b - 2)
        out.append(mean)
    return out


def test_only_a_settled_rule_is_told_how_settled_it_is() -> None:
    assert Aggregator("settled").at(0.25).damping == 0.25
    for rule in ("sampled", "damped", "beta"):
        assert Aggregator(rule, 0.7).at(0.25) == Aggregator(rule, 0.7)


@st.composite
def cases(draw: Any) -> tuple[list[float], list[list[float]], list[list[bool]], Aggregator]:
    k, p = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    unit = st.floats(0, 1, width=32)

    def row(values: Any) -> Any:
        return st.lists(values, min_size=p, max_size=p)

    rule = Aggregator(
        draw(st.sampled_from(RULES)),
        draw(st.floats(0.05, 1.0)),
        draw(st.floats(1.0, 5.0)),
        draw(st.integers(1, 3)),
    )
    ups = [draw(row(unit)) for _ in range(k)]
    return draw(row(unit)), ups, [draw(row(st.booleans())) for _ in range(k)], rule


@relaxed
@given(cases())
def test_merging_equals_a_loop_over_coordinates(
    case: tuple[list[float], list[list[float]], list[list[bool]], Aggregator],
) -> None:
    previous, ups, on, rule = case
    merged, _ = merge(
        torch.tensor(previous, dtype=torch.float64),
        torch.tensor(ups, dtype=torch.float64).reshape(len(ups), -1),
        torch.tensor(on, dtype=torch.bool).reshape(len(ups), -1),
        rule,
    )
    assert merged.tolist() == pytest.approx(by_loop(previous, ups, on, rule), abs=1e-9)


@pytest.mark.parametrize("target", [0.2, 0.5, 0.9])
def test_entropy_is_steered_to_its_target_from_both_sides(target: float) -> None:
    for spread in (0.1, 4.0):
        theta = torch.sigmoid(spread * torch.randn(5000, generator=torch.Generator().manual_seed(0)).double())
        for _ in range(200):
            theta = steer_entropy(theta, target, 0.05, 0.001)
        assert float(entropy_bits(theta).mean()) == pytest.approx(target, abs=0.03)


def test_steering_never_moves_a_coordinate_across_a_half() -> None:
    theta = torch.rand(1000, generator=torch.Generator().manual_seed(1)).double()
    for target in (0.01, 0.99):
        assert torch.equal(steer_entropy(theta, target, 0.3, 0.01) > 0.5, theta > 0.5)
