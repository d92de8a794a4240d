"""Local tests, caps and draws from an official test keep the label proportions of a client."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.data.split import apportion, cap_rows, draw_matched, split_matched


@settings(max_examples=80, deadline=None)
@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=10), total=st.integers(0, 200))
def test_apportioned_quotas_sum_up_and_stay_within_one_of_the_exact_share(counts: list[int], total: int) -> None:
    c = np.array(counts, np.int64)
    quotas = apportion(c, total, np.random.default_rng(0))
    assert quotas.sum() == (total if c.sum() else 0)
    if c.sum():
        assert (np.abs(quotas - total * c / c.sum()) < 1).all()
        assert (quotas[c == 0] == 0).all()


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), max_size=60),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 100),
)
def test_a_split_is_disjoint_complete_and_leaves_training_rows(labels: list[int], fraction: float, seed: int) -> None:
    y = np.array(labels, np.int64)
    rows = np.arange(len(y))
    (train,), (test,) = split_matched((rows,), y, fraction, seed)
    assert np.array_equal(np.sort(np.concatenate([train, test])), rows)
    if len(y) < 2:
        assert len(test) == 0
    else:
        assert len(train) >= 1
        assert len(test) == min(max(1, round(fraction * len(y))), len(y) - 1)
    (same,), _ = split_matched((rows,), y, fraction, seed)
    assert np.array_equal(train, same)


def test_local_tests_have_the_label_proportions_of_the_client() -> None:
    y = np.repeat([0, 1, 2], [50, 30, 20])
    _, (test,) = split_matched((np.arange(100),), y, 0.2, 0)
    assert np.bincount(y[test]).tolist() == [10, 6, 4]


def test_a_class_with_one_row_stays_in_training_while_others_can_give() -> None:
    y = np.array([0] * 10 + [1, 2, 3, 4])
    for seed in range(20):
        _, (test,) = split_matched((np.arange(14),), y, 0.5, seed)
        assert set(y[test]) == {0}
        assert len(test) == 7


def test_leftover_test_rows_do_not_always_fall_on_the_first_classes() -> None:
    y = np.tile(np.arange(10), 24 * 11)
    parts = tuple(np.arange(k * 110, (k + 1) * 110) for k in range(24))
    _, tests = split_matched(parts, y, 0.2, 0)
    counts = np.bincount(y[np.concatenate(tests)], minlength=10)
    # 22 of 110 rows: two classes per client give a third row; in a fixed order 0 and 1 would have 72
    assert counts.sum() == 24 * 22
    assert counts.max() < 65


def test_with_a_time_order_the_last_rows_are_the_test() -> None:
    y = np.repeat([0, 1], 10)
    window = np.tile(np.arange(10)[::-1], 2)
    _, (test,) = split_matched((np.arange(20),), y, 0.3, 0, order=window)
    assert test.tolist() == [0, 1, 2, 10, 11, 12]


def test_official_tests_match_the_clients_labels_without_repeating_a_row() -> None:
    y = np.concatenate([np.repeat([0, 1, 2], [80, 20, 100]), np.repeat([0, 1, 2], 20)])
    pool = np.arange(200, 260)
    a, b, empty = draw_matched((np.arange(100), np.arange(100, 200), np.empty(0, np.int64)), y, pool, 0.2, 0)
    assert np.bincount(y[a], minlength=3).tolist() == [16, 4, 0]
    assert np.bincount(y[b], minlength=3).tolist() == [0, 0, 20]
    assert len(np.unique(a)) == 20
    assert np.isin(a, pool).all()
    assert len(empty) == 0


def test_a_class_with_too_few_official_rows_gives_what_it_has() -> None:
    y = np.array([0] * 10 + [1] * 10 + [0] * 2 + [1] * 9)
    (drawn,) = draw_matched((np.arange(20),), y, np.arange(20, 31), 0.5, 0)
    assert np.bincount(y[drawn]).tolist() == [2, 5]


def test_a_cap_keeps_label_proportions_and_short_clients_whole() -> None:
    y = np.repeat([0, 1], [60, 40])
    long, short = cap_rows((np.arange(100), np.arange(55, 65)), y, [10, 10], 0)
    assert np.bincount(y[long]).tolist() == [6, 4]
    assert short.tolist() == list(range(55, 65))
