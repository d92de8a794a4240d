"""Who takes part, where they are cut, and which samples form their batches."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.engine.plan import (
    Keys,
    RoundPlan,
    assign_depths,
    batch_positions,
    local_steps,
    longest_turn,
    plan_round,
    round_steps,
)
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, root, turned, uniform
from pmsfl.recipe import Recipe

KEYS = Keys.of_seed(0)
relaxed = settings(deadline=None, max_examples=60)


# --- batches


@relaxed
@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 9), st.integers(0, 99))
def test_every_batch_is_full_and_no_sample_comes_twice_before_all_came_once(
    samples: int, steps: int, batch: int, seed: int
) -> None:
    positions = batch_positions(root(seed, Stream.BATCHES), samples, steps, batch)
    assert positions.shape == (steps, batch)
    stream = positions.flatten().tolist()
    for i in range(0, len(stream), samples):
        part = stream[i : i + samples]
        assert len(set(part)) == len(part)
        assert set(part) <= set(range(samples))


def test_each_pass_has_an_order_of_its_own() -> None:
    stream = batch_positions(root(0, Stream.BATCHES), 20, 4, 10).reshape(2, 20)
    assert not torch.equal(stream[0], stream[1])
    other = batch_positions(root(1, Stream.BATCHES), 20, 4, 10).reshape(2, 20)
    assert not torch.equal(stream[0], other[0])


def test_more_steps_begin_with_the_same_batches() -> None:
    key = root(0, Stream.BATCHES)
    assert torch.equal(batch_positions(key, 7, 2, 3), batch_positions(key, 7, 9, 3)[:2])


# --- depths


def test_depths_are_read_in_all_three_ways() -> None:
    assert assign_depths("2", 3, 4) == (2, 2, 2)
    assert assign_depths("1,4,2", 3, 4) == (1, 4, 2)
    assert assign_depths("1:1:1:1", 8, 4) == (1, 2, 3, 4, 1, 2, 3, 4)
    assert assign_depths("0:1:0:3", 4, 4) == (2, 4, 4, 4)


@relaxed
@given(st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any), st.integers(1, 60))
def test_ratios_are_kept_to_within_one_client(shares: list[int], clients: int) -> None:
    counts = Counter(assign_depths(":".join(map(str, shares)), clients, 4))
    assert counts.total() == clients
    for depth, share in enumerate(shares, start=1):
        assert abs(counts[depth] - clients * share / sum(shares)) <= 1
        assert share or not counts[depth]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("5", "take 1 to 4"),
        ("0", "take 1 to 4"),
        ("-1", "take 1 to 4"),
        ("1,2", "2 numbers for 3 clients"),
        ("1,2,9", "9 is no cut"),
        ("1:1:1:1:1", "at most 4 parts"),
        ("0:0", "not all 0"),
        ("1:-1", "none negative"),
        ("two", "one number per client"),
        ("1:x", "one number per client"),
        ("", "one number per client"),
        ("nan:1", "depths = 'nan:1'"),
        ("inf:1", "depths = 'inf:1'"),
    ],
)
def test_depths_that_cannot_be_are_refused(spec: str, message: str) -> None:
    with pytest.raises(PmsflError, match=message):
        assign_depths(spec, 3, 4)


# --- cohorts


def test_a_cohort_larger_than_the_federation_is_refused() -> None:
    sizes = [3, 0, 4]
    with pytest.raises(PmsflError, match="cohort = 3: only 2 clients have training data"):
        plan_round(Recipe(cohort=3), KEYS, 0, sizes, (1, 1, 1))


def test_a_federation_without_training_data_is_refused() -> None:
    with pytest.raises(PmsflError, match="no client has any training data"):
        plan_round(Recipe(), KEYS, 0, [0, 0, 0], (1, 1, 1))


def test_clients_without_data_are_never_sampled_and_all_others_are() -> None:
    sizes = [3, 0, 4, 5, 0, 9]
    plans = [plan_round(Recipe(cohort=2), KEYS, t, sizes, (1,) * 6) for t in range(60)]
    counts = Counter(c for p in plans for c in p.clients)
    assert counts.keys() == {0, 2, 3, 5}
    assert all(len(set(p.clients)) == 2 for p in plans)
    assert min(counts.values()) > 15  # 30 expected


@pytest.mark.parametrize(
    ("share", "clients", "size"), [(0.1, 20, 2), (0.1, 3, 1), (0.0, 9, 1), (1.0, 5, 5), (0.29, 100, 29)]
)
def test_participation_is_a_share_of_the_clients(share: float, clients: int, size: int) -> None:
    plan = plan_round(Recipe(participation=share), KEYS, 0, [8] * clients, (1,) * clients)
    assert len(plan.clients) == size


@relaxed
@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(1, 3), st.integers(2, 8), st.integers(0, 9))
def test_the_clients_still_at_work_are_always_the_first(sizes: list[int], epochs: int, batch: int, round_: int) -> None:
    depths = tuple(1 + i % 3 for i in range(len(sizes)))
    recipe = Recipe(epochs=epochs, batch=batch, participation=1.0)
    plan = plan_round(recipe, KEYS, round_, sizes, depths)
    assert list(plan.steps) == sorted(plan.steps, reverse=True)
    assert sorted(plan.clients) == list(range(len(sizes)))
    for c, d, r in zip(plan.clients, plan.depths, plan.steps, strict=True):
        assert (r - 1) * batch < epochs * sizes[c] <= r * batch
        assert d == depths[c]
    for d, places in plan.groups.items():
        assert [plan.depths[i] for i in places] == [d] * len(places)
        assert places == sorted(places)
    assert list(plan.groups) == sorted(set(plan.depths))


@relaxed
@given(st.integers(1, 400), st.integers(1, 5), st.integers(1, 32), st.integers(1, 12))
def test_a_rounds_steps_are_dealt_evenly_over_its_turns(samples: int, epochs: int, batch: int, merges: int) -> None:
    recipe = Recipe(epochs=epochs, batch=batch, merges=merges)
    whole = local_steps(recipe.replace(merges=1), samples, 0)
    turns = [local_steps(recipe, samples, 2 * merges + part) for part in range(merges)]
    assert sum(turns) == round_steps(recipe, samples) == max(whole, merges)
    assert max(turns) - min(turns) <= 1
    assert min(turns) >= 1
    assert max(turns) == longest_turn(recipe, samples)


def test_a_client_without_samples_has_no_steps() -> None:
    assert round_steps(Recipe(merges=10), 0) == round_steps(Recipe(), 0) == 0


def test_a_cohort_stays_for_all_turns_of_its_round() -> None:
    recipe = Recipe(cohort=4, merges=3, failures=0.3)
    plans = [plan_round(recipe, KEYS, t, [80] * 40, (1,) * 40) for t in range(12)]
    once = recipe.replace(merges=1)
    drawn = [plan_round(once, KEYS, t, [80] * 40, (1,) * 40) for t in range(4)]
    assert [set(p.clients) for p in plans] == [set(p.clients) for p in drawn for _ in range(3)]
    assert [p.failed for p in plans] == [p.failed for p in drawn for _ in range(3)]
    assert [p.round for p in plans] == list(range(12))
    assert len({p.clients for p in drawn}) == 4
    for t, p in enumerate(drawn):
        assert sum(sum(turn.steps) for turn in plans[3 * t : 3 * t + 3]) == sum(p.steps)


def test_a_plan_is_a_function_of_seed_and_round() -> None:
    def clients(seed: int, round_: int) -> tuple[int, ...]:
        return plan_round(Recipe(cohort=5), Keys.of_seed(seed), round_, [8] * 40, (1,) * 40).clients

    assert clients(0, 3) == clients(0, 3)
    assert len({clients(s, r) for s in range(3) for r in range(3)}) == 9


# --- faults


def test_failed_clients_stay_away_late_ones_stop_half_way_and_somebody_is_always_left() -> None:
    sizes, depths = [40] * 12, (1,) * 12
    calm = Recipe(cohort=6, batch=4, epochs=1)
    bad = calm.replace(failures=0.3, stragglers=0.3)
    failed = late = 0
    for t in range(100):
        before, after = (plan_round(r, KEYS, t, sizes, depths) for r in (calm, bad))
        assert set(after.clients) | set(after.failed) == set(before.clients)
        assert not set(after.clients) & set(after.failed)
        assert any(after.on_time)
        for steps, on_time in zip(after.steps, after.on_time, strict=True):
            assert steps == (10 if on_time else 5)
        failed += len(after.failed)
        late += after.on_time.count(False)
    for count in (failed, late):
        assert 130 < count < 230  # 180 expected, a little less for the one that is spared


def test_when_everything_fails_one_client_still_answers() -> None:
    plan = plan_round(Recipe(cohort=5, failures=1.0), KEYS, 0, [8] * 9, (1,) * 9)
    assert (len(plan.clients), len(plan.failed), plan.on_time) == (1, 4, (True,))


# --- chance that is spread evenly over a cohort


def test_even_turns_leave_each_mask_as_random_and_their_mean_with_less_noise() -> None:
    theta = torch.linspace(0.02, 0.98, 20_000)
    plan = RoundPlan(1, (5, 3, 9, 1), (2, 2, 2, 2), (1, 1, 1, 1))
    turns = torch.tensor([plan.even_turns[c] for c in plan.clients])
    bits = (turned(uniform(root(0, Stream.UPLOAD), len(theta)), turns) < theta).double()
    assert turns.sort().values.tolist() == [0.0, 0.25, 0.5, 0.75]
    for own in bits:
        assert float(own.mean()) == pytest.approx(0.5, abs=0.01)
    count = bits.sum(0)  # four θ are at least the whole turns that are sure, at most one more
    assert bool(((count >= (4 * theta).floor()) & (count <= (4 * theta).ceil())).all())
    assert float((count / 4 - theta).square().mean()) < 0.3 * float((theta * (1 - theta) / 4).mean())


def test_the_deepest_clients_are_spread_among_themselves() -> None:
    plan = RoundPlan(1, (0, 1, 2, 3, 4, 5), (1, 4, 2, 4, 1, 4), (1,) * 6)
    deepest = sorted(plan.even_turns[c] for c in (1, 3, 5))
    gaps = [b - a for a, b in zip(deepest, [*deepest[1:], deepest[0] + 1.0], strict=True)]
    assert min(gaps) > 0.2
