"""The statistics of `pmsfl compare`, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pmsfl.report.compare import Record, group, paired, verdict
from pmsfl.report.interval import Summary, summarise


def record(method: str, seed: int, accuracy: float, **settings: Any) -> Record:
    return Record("demo", method, "best", seed, {"lr_score": 0.1, "rounds": 40} | settings, {"accuracy": accuracy})


def test_mean_and_standard_error() -> None:
    # deviations -1, 0, 1: variance 2 / 2 = 1, error sqrt(1 / 3)
    found = summarise([70.0, 71.0, 72.0])
    assert found is not None
    assert (found.mean, found.n) == (71.0, 3)
    assert found.error == pytest.approx(0.5773502691896258)


def test_one_value_has_no_error_and_none_has_no_mean() -> None:
    assert summarise([80.0]) == Summary(80.0, None, 1)
    assert summarise([]) is None


def test_pairs_use_common_seeds_only() -> None:
    # seeds 1, 2, 3 are common: differences 2, 4, 6, mean 4, deviation 2, error 2 / sqrt(3)
    found = paired({0: 10.0, 1: 50.0, 2: 60.0, 3: 70.0}, {1: 52.0, 2: 64.0, 3: 76.0, 9: 0.0})
    assert found.seeds == (1, 2, 3)
    assert found.mean == 4.0
    assert found.error == pytest.approx(2.0 / math.sqrt(3.0))
    assert found.verdict == "not separable"  # 4 < 4.303 * 1.1547


def test_no_common_seed_is_no_verdict() -> None:
    found = paired({0: 1.0}, {1: 2.0})
    assert (found.seeds, found.mean, found.error, found.verdict) == ((), None, None, "not separable")


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (Summary(4.0, 0.9, 3), "better"),  # 4.303 errors at three pairs
        (Summary(-4.0, 0.9, 3), "worse"),
        (Summary(4.0, 1.0, 3), "not separable"),
        (Summary(4.0, 1.4, 5), "better"),  # 2.776 errors at five
        (Summary(4.0, 0.1, 2), "not separable"),  # two pairs never do
        (Summary(4.0, None, 1), "not separable"),
        (Summary(0.0, 0.0, 5), "not separable"),  # identical runs
        (Summary(0.5, 0.0, 3), "better"),
        (None, "not separable"),
    ],
)
def test_verdict(difference: Summary | None, expected: str) -> None:
    assert verdict(difference) == expected


def test_runs_that_differ_by_seed_alone_form_a_group() -> None:
    groups = group([record("pm-sfl", 0, 70.0), record("splitfed", 0, 80.0), record("pm-sfl", 1, 72.0)])
    assert [g.label[1] for g in groups] == ["pm-sfl", "splitfed"]
    assert groups[0].by_seed("accuracy") == {0: 70.0, 1: 72.0}
    assert [g.extra for g in groups] == ["", ""]


def test_other_settings_make_another_group_and_are_named() -> None:
    groups = group([record("pm-sfl", 0, 70.0), record("pm-sfl", 0, 60.0, lr_score=0.01)])
    assert [g.extra for g in groups] == ["lr_score=0.1", "lr_score=0.01"]


def test_a_seed_run_twice_counts_once() -> None:
    [found] = group([record("pm-sfl", 0, 70.0), record("pm-sfl", 0, 72.0), record("pm-sfl", 1, 75.0)])
    assert found.by_seed("accuracy") == {0: 71.0, 1: 75.0}


def test_missing_figures_are_left_out() -> None:
    [found] = group([record("pm-sfl", 0, math.nan), record("pm-sfl", 1, 75.0)])
    assert found.by_seed("accuracy") == {1: 75.0}
    assert found.by_seed("mask_entropy") == {}
