"""`pmsfl sweep`: one progress display over all cells, then a table with confidence intervals."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from pmsfl.engine.processes import launched
from pmsfl.errors import PmsflError
from pmsfl.report.console import MISSING, UsageError, emit_json, fancy, human_bytes, note, number, percent, say, table
from pmsfl.report.interval import Interval, interval
from pmsfl.report.progress import clock
from pmsfl.run import Listener, Progress
from pmsfl.sweep import Outcome, Watch, grouped, play, rows
from pmsfl.sweep_plan import Cell, Sweep, plan

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

FIGURES = ("accuracy", "accuracy_global", "mask_entropy", "bytes_total")


def sweep(
    recipe: str,
    methods: str | None,
    changes: Sequence[str],
    seeds: int | None,
    out: Path | None,
    executor: str,
    device: str,
    jobs: int,
    as_json: bool,
) -> None:
    """Train every cell that is missing, and show what all of them reached."""
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: take at least 1")
    if launched() > 1:
        raise UsageError("a sweep plays each cell in one process; start it without torchrun, with --jobs for more")
    stream = sys.stderr if as_json else sys.stdout
    wanted = plan(recipe, methods, changes, seeds, out)
    say(f"{len(wanted.cells)} cells in {wanted.out}", stream)
    with Display(wanted.cells, stream) as display:
        outcome = play(wanted, display.watch(), executor, device, jobs)
    show(wanted, stream)
    if as_json:
        emit_json(as_dict(wanted, outcome))
    if outcome.failed:
        where = wanted.out / "failures.json"
        raise PmsflError(f"{len(outcome.failed)} of {len(wanted.cells)} cells failed; see {where}")


# --- what came of it


def figures(found: Sequence[dict[str, Any]]) -> dict[str, Interval | None]:
    """Mean and confidence interval of every figure over the seeds of a group."""
    out = {}
    for key in FIGURES:
        values = [row[key] for row in found if row[key] is not None and math.isfinite(row[key])]
        out[key] = interval(values)
    return out


def show(done: Sweep, stream: TextIO | None) -> None:
    """A line per group of seeds."""
    lines = []
    for label, found in grouped(done):
        f = figures(found)
        accuracies = (_cell(f[k], lambda v: number(v, 1)) for k in ("accuracy", "accuracy_global"))
        sent = _cell(f["bytes_total"], human_bytes)
        lines.append((*label.values(), len(found), *accuracies, _cell(f["mask_entropy"], number), sent))
    if not lines:
        return say("no cell is finished", stream)
    headers = ("method", *done.swept, "seeds", "accuracy", "global model", "entropy", "bytes")
    say("", stream)
    table("mean ± 95 % confidence interval over seeds (Student's t); accuracy in percent", headers, lines, stream)
    if all(len(found) < 2 for _, found in grouped(done)):
        say("an interval takes at least 2 seeds: --seeds 5", stream)
    return say(f"results: {done.out / 'results.csv'}    side by side: pmsfl compare {done.out}", stream)


def _cell(found: Interval | None, write: Any) -> str:
    if found is None:
        return MISSING
    # No ± where it would be nothing but zeros: bytes rarely depend on the seed.
    return f"{write(found.mean)} ± {write(found.half)}" if found.half else str(write(found.mean))


def as_dict(done: Sweep, outcome: Outcome) -> dict[str, Any]:
    """The outcome in plain types."""
    groups = []
    for label, found in grouped(done):
        values = {k: None if f is None else asdict(f) for k, f in figures(found).items()}
        groups.append({**label, "seeds": [row["seed"] for row in found], "figures": values})
    failed = [{"cell": name, "error": why} for name, why in outcome.failed.items()]
    return {"out": done.out, "cells": rows(done), "groups": groups, "failed": failed}


# --- progress


class Display:
    """A bar on a terminal, a line per cell elsewhere."""

    def __init__(self, cells: Sequence[Cell], stream: TextIO | None) -> None:
        self.total, self.stream = len(cells), stream
        self.place = {cell.name: i + 1 for i, cell in enumerate(cells)}
        self.began, self.ended, self.trained = time.perf_counter(), 0, 0
        self.active: dict[str, str] = {}  # cells under way: how far
        self.bar: Bar | None = None
        self.task: TaskID | None = None
        self.drawn = 0.0
        self.notes: set[str] = set()

    def watch(self) -> Watch:
        """The callbacks for `play`."""
        return Watch(self.on_start, self.on_end, self.listener, self._draw)

    def __enter__(self) -> Display:
        if fancy(self.stream):
            self._start_bar()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self.bar.stop()

    def on_start(self, cell: Cell) -> None:
        """A cell begins."""
        self.active[cell.name] = "resumed" if cell.begun else ""
        self._draw(at_once=True)

    def on_end(self, cell: Cell, error: str | None, skipped: bool) -> None:
        """A cell is through: trained, failed, or there already."""
        self.active.pop(cell.name, None)
        self.ended, self.trained = self.ended + 1, self.trained + (not skipped)
        result = cell.result or {}
        what = "failed" if error is not None else f"accuracy {percent(result.get('accuracy'))}"
        left = "there already" if skipped else f"{clock(self._left())} left"
        self.say_line(f"cell {self.place[cell.name]} of {self.total}  {cell.name}  {what}  {left}")
        if error is not None:
            note(f"{cell.name} failed: {error}")
        self._draw(at_once=True)

    def pass_over(self, cell: Cell) -> None:
        """A cell that another process is training."""
        self.active.pop(cell.name, None)
        self.ended += 1
        self.say_line(f"cell {self.place[cell.name]} of {self.total}  {cell.name}  another process is at it")
        self._draw(at_once=True)

    def say_line(self, line: str) -> None:
        """A line of its own, above the bar where there is one."""
        if self.bar is not None:
            self.bar.console.print(line, soft_wrap=True)
        else:
            say(line, self.stream)

    def listener(self, cell: Cell) -> Listener:
        """Rounds of a cell that is trained in this process."""

        def on_round(p: Progress) -> None:
            self.active[cell.name] = f"round {p.round}/{p.rounds}"
            self._draw()

        return Listener(on_round=on_round, on_note=self.on_note)

    def on_note(self, line: str) -> None:
        """Say a run's note; most cells have the same, so each is said once."""
        if line not in self.notes:
            self.notes.add(line)
            note(line)

    def _left(self) -> float:
        """Seconds to go, if the cells to come take as long as those behind."""
        return (time.perf_counter() - self.began) / max(self.trained, 1) * (self.total - self.ended)

    # --- the bar

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(file=self.stream, highlight=False, markup=False, emoji=False)
        status = TextColumn("{task.fields[status]}", markup=False)
        count = TextColumn("cell {task.completed}/{task.total}", markup=False)
        # Drawn from here, at most twice a second: a thread of its own would compete with training.
        self.bar = Bar(count, BarColumn(16), status, console=console, auto_refresh=False)
        self.task = self.bar.add_task("", total=self.total, status="")
        self.bar.start()

    def _draw(self, at_once: bool = False) -> None:
        if self.bar is None or self.task is None or not (at_once or time.perf_counter() - self.drawn > 0.5):
            return
        self.drawn = time.perf_counter()
        now = ", ".join(f"{name} {how}".strip() for name, how in self.active.items())
        left = f"  {clock(self._left())} left" if self.trained else ""
        self.bar.update(self.task, completed=self.ended, status=now + left)
        try:
            self.bar.refresh()
        except (OSError, ValueError):  # the terminal went away; the training goes on
            self.bar, self.task = None, None
