"""Which coordinates become personal: monotone, bounded by ρ, in the stated order (conformance 5)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.masks.personal import Growth, Order, disagree, grow, rank_candidates, target_count
from pmsfl.masks.random import Stream, fold, root, uniform
from pmsfl.methods.pm_sfl import PMSFL
from pmsfl.models.split import Slot
from pmsfl.recipe import Recipe

GROWTHS: list[Growth] = ["linear", "geometric", "one-shot", "count"]
LAYERS = [Slot("a", (7,), 0, 7, 0), Slot("b", (1,), 7, 1, 0), Slot("c", (12, 2), 8, 24, 1)]
SIZE = 32


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("order", ["disagree", "magnitude", "random"])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 1.0])
def test_the_personal_set_only_grows_and_never_beyond_its_ratio(
    growth: str, scope: str, order: str, ratio: float
) -> None:
    recipe = Recipe(
        growth=growth, personal_scope=scope, personal_order=order, personal_ratio=ratio, growth_count=3, growth_steps=4
    )
    method = PMSFL(recipe)
    personal = torch.zeros(2, SIZE, dtype=torch.bool)
    clients = torch.arange(2)
    for p in range(1, 13):
        before, after, noise = (
            uniform(fold(fold(root(0, Stream.NOISE), i + 3 * p), clients), SIZE, torch.float64) for i in range(3)
        )
        counts = torch.tensor([p, max(p - 3, 0)])  # the second client joins later
        grown = method.grow_personal(before, after, personal, counts, LAYERS, noise)
        assert (grown | ~personal).all()
        spans = [(0, SIZE)] if scope == "global" else [(s.offset, s.offset + s.size) for s in LAYERS]
        for a, b in spans:
            assert int(grown[:, a:b].sum(1).max()) <= ratio * (b - a)
        personal = grown
    spans = [(0, SIZE)] if scope == "global" else [(s.offset, s.offset + s.size) for s in LAYERS]
    full = [int(ratio * (b - a)) for a, b in spans]
    assert [int(personal[0, a:b].sum()) for a, b in spans] == full


@pytest.mark.parametrize("growth", GROWTHS)
@given(st.integers(0, 5000), st.floats(0, 1), st.integers(1, 20), st.integers(1, 500))
@settings(deadline=None, max_examples=40)
def test_targets_never_fall_and_end_at_the_ratio(
    growth: Growth, size: int, ratio: float, steps: int, count: int
) -> None:
    targets = [target_count(p, size, ratio, steps, growth, count) for p in range(steps + 2)]
    assert targets == sorted(targets)
    assert targets[0] == 0
    assert max(targets) <= ratio * size
    if growth != "count":
        assert targets[steps] == int(ratio * size)


def test_growth_follows_its_name() -> None:
    def first(growth: Growth) -> list[int]:
        return [target_count(p, 100, 0.5, 5, growth, 7) for p in range(6)]

    assert first("linear") == [0, 10, 20, 30, 40, 50]
    assert first("geometric") == [0, 25, 37, 43, 46, 50]
    assert first("one-shot") == [0, 50, 50, 50, 50, 50]
    assert first("count") == [0, 7, 14, 21, 28, 35]


def test_only_a_strict_crossing_of_a_half_is_disagreement() -> None:
    before = torch.tensor([0.4, 0.6, 0.5, 0.4, 0.4, 0.6])
    after = torch.tensor([0.6, 0.4, 0.9, 0.5, 0.49, 0.9])
    assert disagree(before, after).tolist() == [True, True, False, False, False, False]


def test_the_disagree_group_goes_first_then_the_largest_change() -> None:
    before = torch.tensor([[0.1, 0.45, 0.6, 0.55]])
    after = torch.tensor([[0.49, 0.55, 0.9, 0.4]])  # changes .39, .10 crossed, .30, .15 crossed
    none = torch.zeros(1, 4, dtype=torch.bool)

    def taken(count: int, order: Order) -> list[int]:
        return grow(before, after, none, torch.tensor([count]), order)[0].nonzero().flatten().tolist()

    assert [taken(n, "disagree") for n in range(1, 5)] == [[3], [1, 3], [0, 1, 3], [0, 1, 2, 3]]
    assert [taken(n, "magnitude") for n in range(1, 4)] == [[0], [0, 2], [0, 2, 3]]


@pytest.mark.parametrize("order", ["disagree", "magnitude"])
def test_ties_go_to_the_lower_index(order: Order) -> None:
    before, after = torch.full((1, 6), 0.25), torch.full((1, 6), 0.375)
    personal = torch.tensor([[False, True, False, False, False, False]])
    grown = grow(before, after, personal, torch.tensor([3]), order)
    assert grown.tolist() == [[True, True, True, False, False, False]]


@pytest.mark.parametrize("size", [0, 1])
def test_nothing_and_one_coordinate_are_fine(size: int) -> None:
    before, after = torch.full((2, size), 0.4), torch.full((2, size), 0.6)
    none = torch.zeros(2, size, dtype=torch.bool)
    grown = grow(before, after, none, torch.tensor([0, 5]), "disagree")
    assert grown.shape == (2, size)
    assert int(grown.sum()) == size  # the second client takes what there is, the first nothing


def by_loop(
    before: list[float], after: list[float], personal: list[bool], noise: list[float], target: int, order: Order
) -> list[bool]:
    """The obvious way: queue the candidates, take them one by one."""

    def place(i: int) -> tuple[bool, float, int]:
        crossed = (before[i] < 0.5 < after[i]) or (after[i] < 0.5 < before[i])
        size = noise[i] if order == "random" else abs(after[i] - before[i])
        return (order == "disagree" and not crossed, -size, i)

    grown = list(personal)
    for i in sorted((i for i, p in enumerate(personal) if not p), key=place):
        if sum(grown) >= target:
            break
        grown[i] = True
    return grown


@st.composite
def clients(draw: Any) -> tuple[list[Any], int, Order]:
    size = draw(st.integers(0, 9))
    grid = st.integers(0, 16).map(lambda n: n / 16)  # exact in binary: ties are frequent and differences exact

    def row(values: Any) -> Any:
        return draw(st.lists(values, min_size=size, max_size=size))

    rows = [row(grid), row(grid), row(st.booleans()), row(grid)]
    return rows, draw(st.integers(0, size + 1)), draw(st.sampled_from(["disagree", "magnitude", "random"]))


@given(clients())
@settings(deadline=None, max_examples=150)
def test_growing_equals_the_obvious_loop(case: tuple[list[Any], int, Order]) -> None:
    (before, after, personal, noise), target, order = case
    b, a, n = (torch.tensor([v], dtype=torch.float64).reshape(1, -1) for v in (before, after, noise))
    p = torch.tensor([personal], dtype=torch.bool).reshape(1, -1)
    grown = grow(b, a, p, torch.tensor([target]), order, n)
    assert grown[0].tolist() == by_loop(before, after, personal, noise, target, order)


def test_ranks_are_a_permutation_with_personal_coordinates_last() -> None:
    before, after = (uniform(root(s, Stream.NOISE), 40).reshape(2, 20) for s in (0, 1))
    personal = uniform(root(2, Stream.NOISE), 40).reshape(2, 20) < 0.4
    rank = rank_candidates(before, after, personal, "disagree")
    assert torch.equal(rank.sort(1).values, torch.arange(20).expand(2, 20))
    for r, p in zip(rank, personal, strict=True):
        assert r[p].min() > r[~p].max()
