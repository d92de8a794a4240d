"""Text for people, JSON for programs."""

from __future__ import annotations

import io
import json
import math
import sys

import numpy as np
import pytest

from pmsfl.report import console
from pmsfl.report.progress import clock, depth_line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_999, "1.00 MB"),
        (4_909_844, "4.91 MB"),
        (123_456_789, "123 MB"),
        (2.5e12, "2.50 TB"),
        (None, "-"),
        (math.nan, "-"),
    ],
)
def test_human_bytes(value: float | None, text: str) -> None:
    assert console.human_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0188, "19 ms"),
        (12.34, "12.3 s"),
        (75, "1 min 15 s"),
        (59.97, "1 min 00 s"),
        (7300, "2 h 01 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_human_seconds(value: float, text: str) -> None:
    assert console.human_seconds(value) == text


def test_percent_shows_a_spread_only_where_there_is_one() -> None:
    assert console.percent(81.25, 0.44) == "81.2 ± 0.4 %"
    assert console.percent(81.25, 0.0) == console.percent(81.25) == "81.2 %"
    assert console.percent(math.nan) == "-"


def test_clock_and_depths() -> None:
    assert [clock(s) for s in (0, 75, 3700)] == ["0:00", "1:15", "1:01:40"]
    assert depth_line((2, 2)) == "2"
    assert depth_line((1, 2, 1)) == "1 (2 clients), 2 (1 clients)"


def test_a_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    console.table("title", ("name", "bytes"), [("a", "5 B"), ("longer", "12.5 kB")])
    lines = ["title", "name      bytes", "------  -------", "a           5 B", "longer  12.5 kB", "", ""]
    assert capsys.readouterr().out.split("\n") == lines


def test_json_has_no_nan_and_no_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    console.emit_json({"a": math.nan, "b": [np.float32(0.5), np.int64(3)], "c": np.array([1.0, np.inf])})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [0.5, 3], "c": [1.0, None]}


def test_a_stream_without_greek_gets_something_readable() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console.say("η = 0.5", stream)
    assert raw.getvalue() == b"? = 0.5\n"


def test_closed_and_missing_streams_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    console.say("nobody reads this", closed)
    console.table("", ("a",), [("1",)], closed)
    monkeypatch.setattr(sys, "stdout", None)
    console.say("nor this")
    console.table("", ("a",), [("1",)])


def test_bytes_by_kind_add_up() -> None:
    rows = console.byte_rows({"mask.up": 10, "theta.down": 1000, "norms.up": 1, "norms.down": 2, "total": 1013})
    assert rows[0] == ("theta", "-", "1.00 kB", "1.00 kB")
    assert rows[2] == ("norms", "1 B", "2 B", "3 B")
    assert rows[-1] == ("total", "11 B", "1.00 kB", "1.01 kB")
