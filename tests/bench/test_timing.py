"""Medians, spread, turns."""

from __future__ import annotations

import time

import pytest
import torch

from pmsfl.bench.timing import Times, peak_memory, ratio, seconds_of, take_turns


def test_warm_up_is_kept_apart_and_candidates_take_turns() -> None:
    calls = []

    def block(name: str, seconds: float) -> float:
        calls.append(name)
        return 100.0 if calls.count(name) == 1 else seconds

    times = take_turns({"a": lambda: block("a", 0.2), "b": lambda: block("b", 0.4)}, repeats=3, units=10)
    assert "".join(calls) == "abababab"
    assert times["a"].ms == (20.0,) * 3
    assert times["a"].seconds_warmup < 1.0
    assert ratio(times["b"], times["a"]) == {"ratio": 2.0, "ratio_p10": 2.0, "ratio_p90": 2.0}


def test_a_median_does_not_mind_an_outlier_and_the_spread_shows_it() -> None:
    times = Times((1.0, 2.0, 3.0, 4.0, 1000.0), 0.0)
    found = times.as_dict("ms")
    assert found["ms"] == 3.0
    assert found["ms_p10"] == pytest.approx(1.4)
    assert found["ms_p90"] > 600.0


def test_seconds_are_those_of_the_work() -> None:
    assert seconds_of(lambda: time.sleep(0.02), torch.device("cpu")) >= 0.02


def test_memory_is_counted() -> None:
    peak = peak_memory(torch.device("cpu"))
    assert peak is None or peak > 10_000_000
