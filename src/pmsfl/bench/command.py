"""What the commands `pmsfl bench step`, `round` and `scale` do: measure, show, record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from pmsfl.bench.record import write_record
from pmsfl.bench.rounds import measure_rounds
from pmsfl.bench.scale import measure_scale, parse_cohorts
from pmsfl.bench.setting import Setting
from pmsfl.bench.show import show_rounds, show_scale, show_step
from pmsfl.bench.step import measure_step
from pmsfl.report.console import emit_json, say

Show = Callable[[dict[str, Any], TextIO], None]


def bench_step(setting: Setting, profiled: bool, record: Path | None, as_json: bool) -> None:
    """One step against the eager loop."""
    result = measure_step(setting, profiled)
    words = ["bench", "step", *setting.words, "--repeats", str(setting.repeats), *(["--profile"] if profiled else [])]
    _hand_over(result, setting, words, show_step, record, as_json)


def bench_rounds(setting: Setting, own_data: bool, record: Path | None, as_json: bool) -> None:
    """Whole rounds of two methods."""
    result = measure_rounds(setting, own_data)
    words = ["bench", "round", *setting.words, "--rounds", str(setting.repeats), *(["--own-data"] if own_data else [])]
    _hand_over(result, setting, words, show_rounds, record, as_json)


def bench_scale(setting: Setting, cohorts: str, record: Path | None, as_json: bool) -> None:
    """Steps of growing cohorts."""
    result = measure_scale(setting, parse_cohorts(cohorts))
    words = ["bench", "scale", *setting.words, "--repeats", str(setting.repeats), "--clients", cohorts]
    _hand_over(result, setting, words, show_scale, record, as_json)


def _hand_over(
    result: dict[str, Any], setting: Setting, words: Sequence[str], show: Show, record: Path | None, as_json: bool
) -> None:
    """Text for people; with as_json it goes to stderr, and the object to stdout."""
    stream = sys.stderr if as_json else sys.stdout
    show(result, stream)
    if record is not None:
        say(f"record: {write_record(record, result, words, setting.device, show)}", stream)
    if as_json:
        emit_json(result)
