"""The benchmarks themselves, small, through both command lines; and the bar that a step must not fall below."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pmsfl.bench.rounds import measure_rounds
from pmsfl.bench.scale import measure_scale, parse_cohorts
from pmsfl.bench.setting import Setting
from pmsfl.bench.step import measure_step
from pmsfl.errors import PmsflError

from ..conftest import Pmsfl

# Times faster than the eager loop, on a CPU that other tests share. A ratio: seconds would say who owns the machine.
LEAST_RATIO = 0.9
SMALL = ("width=4", "cohort=3", "batch=4")
WORDS = [word for change in SMALL for word in ("-c", change)] + ["--device", "cpu"]


def small(repeats: int = 2, *changes: str) -> Setting:
    return Setting.of("demo", (*SMALL, *changes), "cpu", repeats)


def test_a_step_of_the_demo_is_no_slower_than_the_bar() -> None:
    found = measure_step(Setting.of("demo", (), "cpu", repeats=4), steps=3)
    assert found["clients"] == 8
    assert found["ratio"] >= LEAST_RATIO, {k: v for k, v in found.items() if k.startswith(("ratio", "ms_"))}


def test_step_says_what_was_measured(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "here" / "step"
    assert pmsfl("bench", "step", "demo", *WORDS, "--repeats", 2, "--json", "--record", out) == 0
    text = capsys.readouterr()
    result: dict[str, Any] = json.loads(text.out)
    assert result["ratio"] == pytest.approx(result["ms_baseline"] / result["ms_step"])
    assert result["ratio_union"] == pytest.approx(result["ms_baseline_union"] / result["ms_step"])
    for name in ("ms_step", "ms_baseline", "ms_baseline_union", "ratio", "ratio_union"):
        assert 0 < result[f"{name}_p10"] <= result[f"{name}_p90"]
    assert result["tflops"] == pytest.approx(result["tflop"] / result["ms_step"] * 1000)
    assert set(result["seconds_warmup"]) == {"ours", "sequential", "union"}
    assert "eager loop, client by client" in text.err
    record = json.loads((out / "record.json").read_text(encoding="utf-8"))
    assert result.items() <= record.items()
    assert record["command"] == f"pmsfl bench step demo {' '.join(WORDS)} --repeats 2"
    assert record["versions"]["torch"]
    assert "cores" in record["hardware"]
    assert "A step takes" in (out / "log").read_text(encoding="utf-8")


def test_a_step_does_not_hang_on_how_often_a_round_merges(pmsfl: Pmsfl) -> None:
    assert pmsfl("bench", "step", "demo", *WORDS, "--repeats", 1, "-c", "merges=10") == 0


def test_step_takes_itself_apart(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("bench", "step", "demo", *WORDS, "--repeats", 1, "--profile") == 0
    text = capsys.readouterr().out
    assert "where the time goes" in text
    assert "convolution backward" in text
    assert text.strip().splitlines()[-1].startswith("A step takes")


def test_round_compares_methods_and_depths(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        pmsfl("bench", "round", "demo", *WORDS, "-c", "epochs=1", "-c", "max_samples=12", "--rounds", 2, "--json") == 0
    )
    result = json.loads(capsys.readouterr().out)
    ms = {(v["method"], v["depths"]): v["ms_round"] for v in result["variants"]}
    assert result["pm_over_splitfed"] == pytest.approx(ms["pm-sfl", "equal"] / ms["splitfed", "equal"])
    assert result["mixed_over_equal"] == pytest.approx(ms["pm-sfl", "mixed"] / ms["pm-sfl", "equal"])
    assert result["depths_mixed"] == "1:1:1:1"
    assert result["cohort"] == 3
    assert {v["client_steps"] for v in result["variants"]} == {9.0}  # 12 samples in batches of 4, three clients


def test_round_takes_the_recipes_own_clients_where_asked() -> None:
    ragged = measure_rounds(small(1, "epochs=1", "clients=5"), own_data=True)
    assert ragged["clients"] == 5


def test_round_wants_one_cut_to_begin_with() -> None:
    with pytest.raises(PmsflError, match="depths"):
        measure_rounds(small(1, "depths=1:1"))


def test_scale_compares_the_largest_cohort_with_the_smallest(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("bench", "scale", "demo", *WORDS, "--clients", "4,2", "--repeats", 1, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    two, four = result["cohorts"]
    assert (two["clients"], four["clients"]) == (2, 4)
    assert result["ratio_4_over_2"] == pytest.approx(four["ms_step"] / two["ms_step"])
    assert four["memory_peak"] >= two["memory_peak"]


def test_scale_plays_methods_that_the_loop_does_not_know() -> None:
    found = measure_scale(small(1, "method=splitfed", "depths=1:1"), (2, 3), steps=2)
    assert found["method"] == "splitfed"


@pytest.mark.parametrize("text", ["10", "a,b", "0,2", "3,3", ""])
def test_cohorts_that_cannot_be_compared_are_refused(text: str) -> None:
    with pytest.raises(PmsflError, match="10,20"):
        parse_cohorts(text)


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["bench", "stp"], 2, "step"),
        (["bench", "step", "--jsn"], 2, "--json"),
        (["bench", "step", "--device", "gpu"], 2, "allowed: auto, cpu, cuda"),
        (["bench", "step", "--repeats", "0"], 1, "at least 1"),
        (["bench", "step", "dmo", "--device", "cpu"], 1, "'demo'"),
        (["bench", "step", *WORDS, "-c", "method=splitfed"], 1, "baseline loop knows method = 'pm-sfl' only"),
        (["bench", "step", *WORDS, "-c", "cut_channels=2"], 1, "baseline loop knows cut_channels = 0 only"),
        (["bench", "step", *WORDS, "-c", "guard=0.1"], 1, "baseline loop knows guard = 0.0 only"),
    ],
)
def test_mistakes_get_a_hint(
    pmsfl: Pmsfl, words: list[str], code: int, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pmsfl(*words) == code
    text = capsys.readouterr()
    assert hint in text.err
    assert "Traceback" not in text.err


def test_help_of_the_group(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("bench") == pmsfl("bench", "--help") == 0
    assert capsys.readouterr().out.count("growing cohorts") == 2
    assert pmsfl("bench", "scale", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "pmsfl bench scale" in text
    assert "[default: 10,20,50,100]" in text
