"""What a run says while it goes."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest

import pmsfl
from pmsfl.engine.evaluate import Evaluation
from pmsfl.engine.metrics import RoundMetrics
from pmsfl.recipe import Recipe
from pmsfl.report.listing import aggregation
from pmsfl.report.progress import Watcher


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def heard(round_: int, rounds: int, evaluated: bool) -> pmsfl.Progress:
    metrics = RoundMetrics(round_ - 1, 1.5, 192, 0.77, {}, 0.1, 0.0)
    nobody = np.full(1, 50.0)
    evaluation = Evaluation(nobody, nobody, 50.0, 50.0, 50.0, 0.0) if evaluated else None
    return pmsfl.Progress(round_, rounds, metrics, evaluation, 1000 * round_, 1.0 * round_, 1234.5)


def test_plain_lines_for_evaluations_and_every_tenth() -> None:
    stream = io.StringIO()
    watcher = Watcher(stream, "cohort")
    for t in range(1, 101):
        watcher.on_round(heard(t, 100, evaluated=t in (25, 50, 100)))
    lines = stream.getvalue().splitlines()
    assert [int(line.split("/")[0].removeprefix("round")) for line in lines] == [
        *(10, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100)
    ]
    assert lines[0].startswith("round  10/100  loss 1.500  entropy 0.77 bit  10.0 kB  1,234 samples/s")
    assert "accuracy 50.0 %" in lines[2]


def test_a_note_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Watcher(io.StringIO(), "cohort")
    for _ in range(3):
        watcher.on_note("mind the gap")
    assert capsys.readouterr().err == "note: mind the gap\n"


@pytest.mark.parametrize("columns", ["70", "140"])
def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Watcher(stream, "cohort") as watcher:
        watcher._start_bar(200, 100)
        watcher.on_round(heard(150, 200, evaluated=True))
    text = stream.getvalue()
    assert "150/200" in text
    assert "accuracy 50.0 %" in text
    assert ("samples/s" in text) == (columns == "140")


def test_a_terminal_that_goes_away_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    stream, before = Terminal(), sys.stdout
    with Watcher(stream, "cohort") as watcher:
        watcher._start_bar(200, 0)
        watcher.on_round(heard(1, 200, evaluated=False))
        stream.close()
        watcher.drawn = 0.0
        watcher.on_round(heard(2, 200, evaluated=True))
        assert watcher.bar is None
        watcher.on_round(heard(20, 200, evaluated=True))
    assert sys.stdout is before


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"aggregate": "sampled"}, "sampled; no damping"),
        ({"aggregate": "damped", "damping": 0.0, "merges": 10}, "damped, η = K/N; 10 merges a round"),
    ],
)
def test_how_uploads_are_merged_is_told_and_how_often(changes: dict[str, Any], told: str) -> None:
    assert aggregation(Recipe(**changes)) == told
