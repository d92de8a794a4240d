"""Partitioners: disjoint, covering, deterministic, and honest about what cannot be met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.data.partition import (
    by_owner,
    dirichlet_by_class,
    dirichlet_by_client,
    iid,
    pathological,
    shards,
)
from pmsfl.errors import PmsflError

Partitioner = Callable[..., tuple[Any, ...]]
COVERING: list[tuple[Partitioner, dict[str, Any]]] = [
    (iid, {}),
    (dirichlet_by_class, {"alpha": 0.1}),
    (dirichlet_by_client, {"alpha": 0.1}),
    (shards, {"shards_per_client": 1}),
]
names = [function.__name__ for function, _ in COVERING]
label_lists = st.lists(st.integers(0, 5), max_size=80)


def digits(per_class: int = 60, classes: int = 10) -> Any:
    return np.repeat(np.arange(classes), per_class)


@pytest.mark.parametrize(("function", "options"), COVERING, ids=names)
@settings(max_examples=40, deadline=None)
@given(labels=label_lists, clients=st.integers(1, 8), seed=st.integers(0, 1000), least=st.integers(0, 4))
def test_every_row_goes_to_exactly_one_client_and_all_have_the_minimum(
    function: Partitioner, options: dict[str, Any], labels: list[int], clients: int, seed: int, least: int
) -> None:
    y = np.array(labels, np.int64)
    possible = len(y) >= clients * least and (function is not shards or len(y) >= clients)
    if not possible:
        with pytest.raises(PmsflError, match=r"min_samples|shards_per_client"):
            function(y, clients, seed, min_samples=least, **options)
        return
    parts = function(y, clients, seed, min_samples=least, **options)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    assert min(len(part) for part in parts) >= least
    assert all(part.dtype == np.int64 for part in parts)
    again = function(y, clients, seed, min_samples=least, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize(
    ("function", "options"),
    [*COVERING, (pathological, {"classes_per_client": 2})],
    ids=[*names, "pathological"],
)
def test_another_seed_gives_another_partition(function: Partitioner, options: dict[str, Any]) -> None:
    a, b = (function(digits(), 5, seed, **options) for seed in (0, 1))
    assert any(not np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize(("function", "options"), COVERING, ids=names)
def test_one_row_goes_to_one_client(function: Partitioner, options: dict[str, Any]) -> None:
    (part,) = function(np.array([3]), 1, 0, **options)
    assert part.tolist() == [0]


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=80),
    clients=st.integers(1, 8),
    k=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_pathological_clients_hold_exactly_k_classes(labels: list[int], clients: int, k: int, seed: int) -> None:
    y = np.array(labels)
    present, counts = np.unique(y, return_counts=True)
    # a (client, class) pair needs a row of its own
    if k > len(present) or np.minimum(counts, clients).sum() < clients * k:
        with pytest.raises(PmsflError, match=r"classes_per_client|min_samples"):
            pathological(y, clients, seed, classes_per_client=k)
        return
    parts = pathological(y, clients, seed, classes_per_client=k)
    assert [len(np.unique(y[part])) for part in parts] == [k] * clients
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    # a class that has a holder is given out whole
    assert np.isin(y, y[rows]).sum() == len(rows)


def test_pathological_with_few_clients_leaves_classes_to_nobody() -> None:
    parts = pathological(digits(), 3, 0, classes_per_client=2)
    assert len(np.unique(digits()[np.concatenate(parts)])) == 6


def test_pathological_minimum_is_met_without_giving_a_client_another_class() -> None:
    y = np.repeat([0, 1, 2], [30, 30, 300])
    plain = pathological(y, 6, 3, classes_per_client=2)
    repaired = pathological(y, 6, 3, classes_per_client=2, min_samples=18)
    assert min(len(part) for part in plain) < 18 <= min(len(part) for part in repaired)
    for before, after in zip(plain, repaired, strict=True):
        assert np.array_equal(np.unique(y[before]), np.unique(y[after]))


def test_pathological_minimum_that_cannot_be_met_is_an_error() -> None:
    y = np.array([0] * 2 + [1] * 50)
    with pytest.raises(PmsflError, match="min_samples = 10 cannot be met"):
        pathological(y, 2, 0, classes_per_client=1, min_samples=10)


def test_dirichlet_clients_have_equal_sizes_and_skewed_mixtures() -> None:
    y = digits(100)
    parts = dirichlet_by_client(y, 20, 0, alpha=0.1)
    assert {len(part) for part in parts} == {50}
    first_choice = [np.bincount(y[part], minlength=10).max() / 50 for part in parts]
    even = [np.bincount(y[part], minlength=10).max() / 50 for part in iid(y, 20, 0)]
    assert np.mean(first_choice) > 2 * np.mean(even)


@pytest.mark.parametrize("function", [dirichlet_by_class, dirichlet_by_client])
def test_large_alpha_gives_even_mixtures_and_small_alpha_skewed_ones(function: Partitioner) -> None:
    def classes_held(alpha: float) -> float:
        parts = function(digits(100), 10, 0, alpha=alpha)
        return float(np.mean([len(np.unique(digits(100)[part])) for part in parts]))

    assert classes_held(1e9) == 10
    assert classes_held(0.05) < 7


@pytest.mark.parametrize("alpha", [1e-320, 1e-12, 1e300])
@pytest.mark.parametrize("function", [dirichlet_by_class, dirichlet_by_client])
def test_extreme_alpha_still_deals_every_row(function: Partitioner, alpha: float) -> None:
    parts = function(digits(20), 7, 0, alpha=alpha)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(200))


def test_shards_hold_few_classes() -> None:
    parts = shards(digits(), 10, 0, shards_per_client=2)
    assert max(len(np.unique(digits()[part])) for part in parts) <= 2
    assert {len(part) for part in parts} == {60}


@settings(max_examples=40, deadline=None)
@given(owner=st.lists(st.integers(0, 9), min_size=1, max_size=60), least=st.integers(1, 5))
def test_owners_keep_exactly_their_rows(owner: list[int], least: int) -> None:
    ids = np.array(owner)
    expected = [np.flatnonzero(ids == i) for i in np.unique(ids) if (ids == i).sum() >= least]
    if not expected:
        with pytest.raises(PmsflError, match="lower min_samples"):
            by_owner(ids, min_samples=least)
        return
    parts = by_owner(ids, min_samples=least)
    assert [part.tolist() for part in parts] == [rows.tolist() for rows in expected]


def test_the_largest_owners_are_kept_and_ties_go_to_the_smaller_id() -> None:
    owner = np.array([5, 5, 1, 1, 9, 9, 9, 2])
    assert [owner[part[0]] for part in by_owner(owner, clients=2)] == [1, 9]


def test_string_owners_are_accepted() -> None:
    assert [part.tolist() for part in by_owner(np.array(["b", "a", "b"]))] == [[1], [0, 2]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(digits(), 0, 0), "clients = 0"),
        (lambda: iid(digits(), 2, -1), "seed = -1"),
        (lambda: iid(np.arange(9), 5, 0, min_samples=2), "needs 10 rows, but there are 9"),
        (lambda: iid(np.arange(9), 5, 0, min_samples=-2), "min_samples = -2"),
        (lambda: dirichlet_by_class(digits(), 2, 0, alpha=0.0), "alpha = 0.0"),
        (lambda: dirichlet_by_client(digits(), 2, 0, alpha=float("nan")), "alpha = nan"),
        (lambda: pathological(digits(), 2, 0, classes_per_client=11), "choose 1 to 10"),
        (lambda: pathological(np.array([0, 0, 1]), 3, 0, classes_per_client=2), "lower classes_per_client"),
        (lambda: shards(np.zeros(5), 2, 0, shards_per_client=3), "6 shards of 5 rows; allowed are 1 to 2"),
        (lambda: by_owner(np.array([1, 1, 2]), clients=3), "clients = 3, but 2 of 2 owners"),
    ],
)
def test_impossible_requests_name_the_key_and_what_is_allowed(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(PmsflError, match=message):
        call()
