"""What the commands `pmsfl bench step`, `round`, `scale` and `wire` do: measure, show, record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from pmsfl.bench.record import write_record
from pmsfl.bench.rounds import measure_rounds
from pmsfl.bench.scale import measure_scale, parse_cohorts
from pmsfl.bench.setting import Setting
from pmsfl.bench.show import show_rounds, show_scale, show_step
from pmsfl.bench.show_wire import show_wire
from pmsfl.bench.step import measure_step
from pmsfl.bench.wire import measure_wire
from pmsfl.engine.settings import pick_device
from pmsfl.report.console import emit_json, say

Show = Callable[[dict[str, Any], TextIO], None]


def bench_step(setting: Setting, profiled: bool, record: Path | None, as_json: bool) -> None:
    """One step against the eager loop."""
    result = measure_step(setting, profiled)
    words = ["bench", "step", *setting.words, "--repeats", str(setting.repeats), *(["--profile"] if profiled else [])]
    _hand_over(result, setting.device, words, show_step, record, as_json)


def bench_rounds(setting: Setting, own_data: bool, record: Path | None, as_json: bool) -> None:
    """Whole rounds of two methods."""
    result = measure_rounds(setting, own_data)
    words = ["bench", "round", *setting.words, "--rounds", str(setting.repeats), *(["--own-data"] if own_data else [])]
    _hand_over(result, setting.device, words, show_rounds, record, as_json)


def bench_scale(setting: Setting, cohorts: str, record: Path | None, as_json: bool) -> None:
    """Steps of growing cohorts."""
    result = measure_scale(setting, parse_cohorts(cohorts))
    words = ["bench", "scale", *setting.words, "--repeats", str(setting.repeats), "--clients", cohorts]
    _hand_over(result, setting.device, words, show_scale, record, as_json)


def bench_wire(
    run: Path | None, device: str, repeats: int, record: Path | None, keep: Path | None, as_json: bool
) -> None:
    """Every codec on a run's own messages."""
    if run is None:
        say("no RUN given: training the demo for a few rounds first", sys.stderr)
    result = measure_wire(run, device, repeats, keep)
    words = ["bench", "wire", *([] if run is None else [str(run)]), "--device", device]
    words += ["--repeats", str(repeats)]
    _hand_over(result, pick_device(device), words, show_wire, record, as_json)


def _hand_over(
    result: dict[str, Any], device: torch.device, words: Sequence[str], show: Show, record: Path | None, as_json: bool
) -> None:
    """Text for people; with as_json it goes to stderr, and the object to stdout."""
    stream = sys.stderr if as_json else sys.stdout
    show(result, stream)
    if record is not None:
        say(f"record: {write_record(record, result, words, device, show)}", stream)
    if as_json:
        emit_json(result)
