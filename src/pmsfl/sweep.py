"""Sweeps: every combination of methods, values and seeds, each a run directory.

A sweep keeps no state of its own. A cell is finished, begun or missing as its directory says, and it is recognised
by its recipe; so a sweep that was stopped, or asked for again with more values, trains only what is missing.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from pmsfl import lifeline
from pmsfl.errors import PmsflError
from pmsfl.run import Interrupted, Listener, train
from pmsfl.sweep_plan import Cell, Sweep

FIGURES = ("accuracy", "accuracy_global", "accuracy_best", "accuracy_weighted", "mask_entropy")


@dataclass
class Outcome:
    """What came of a sweep."""

    done: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # a cell's name: why


@dataclass
class Watch:
    """What a sweep tells while it goes; the default says nothing. listener: for runs in this process."""

    on_start: Callable[[Cell], None] = lambda cell: None
    on_end: Callable[[Cell, str | None, bool], None] = lambda cell, error, skipped: None
    listener: Callable[[Cell], Listener] = lambda cell: Listener()
    on_tick: Callable[[], None] = lambda: None


# --- training


def play(sweep: Sweep, watch: Watch, executor: str = "cohort", device: str = "auto", jobs: int = 1) -> Outcome:
    """Train what is missing. A cell that fails is noted and the others go on; Ctrl-C raises Interrupted."""
    outcome = Outcome()
    missing = []
    for cell in sweep.cells:
        if cell.result is None:
            missing.append(cell)
        else:
            outcome.done.append(cell)
            watch.on_end(cell, None, True)

    def ended(cell: Cell, error: str | None) -> None:
        if error is None:
            outcome.done.append(cell)
        else:
            outcome.failed[cell.name] = error
        write_results(sweep, outcome)
        watch.on_end(cell, error, False)

    try:
        play_cells(missing, watch, ended, executor, device, jobs)
    except (KeyboardInterrupt, Interrupted):
        kept = f"{len(outcome.done)} of {len(sweep.cells)} cells are finished, the others keep their checkpoints"
        raise Interrupted(f"interrupted; {kept}. Go on with the same command") from None
    finally:
        write_results(sweep, outcome)
    return outcome


def play_cells(
    cells: Sequence[Cell],
    watch: Watch,
    ended: Callable[[Cell, str | None], None],
    executor: str = "cohort",
    device: str = "auto",
    jobs: int = 1,
) -> None:
    """Train cells one after another here, or `jobs` at a time in processes; `ended` hears what went wrong, or None.

    A cell that somebody else finishes before its turn counts as ended. Ctrl-C passes through, checkpoints written.
    """
    if jobs > 1:
        _Pool(executor, device, jobs, watch, ended).play(cells)
        return
    for cell in cells:
        watch.on_start(cell)
        there = cell.result is not None
        ended(cell, None if there else _play_here(cell, executor, device, watch.listener(cell)))


def _play_here(cell: Cell, executor: str, device: str, listener: Listener) -> str | None:
    """Train a cell in this process; returns what went wrong."""
    from pmsfl.report.page import write_page

    try:
        begun = cell.begun
        done = train(cell.recipe, out=cell.path, resume=begun, executor=executor, device=device, listener=listener)
    except Interrupted:
        raise
    except PmsflError as e:
        return str(e)
    except Exception as e:  # memory, a model of one's own: no reason to lose the other cells
        return f"{type(e).__name__}: {e}"
    with contextlib.suppress(OSError, PmsflError):  # trained is trained; `pmsfl report` says what is wrong
        write_page(done)
    return None


@dataclass
class _Pool:
    """Cells in processes of their own, some at a time."""

    executor: str
    device: str
    jobs: int
    watch: Watch
    ended: Callable[[Cell, str | None], None]
    active: dict[subprocess.Popen[bytes], tuple[Cell, IO[bytes]]] = field(default_factory=dict)

    def play(self, cells: Sequence[Cell]) -> None:
        """Keep `jobs` of them busy until all are through."""
        waiting = list(cells)
        try:
            while waiting or self.active:
                while waiting and len(self.active) < self.jobs:
                    self._start(waiting.pop(0))
                self._collect()
                self.watch.on_tick()
                time.sleep(0.05)
        finally:
            self._stop()

    def command(self, cell: Cell) -> list[str]:
        """The cell as a command line."""
        words = [sys.executable, "-m", "pmsfl", "run"]
        if cell.begun:
            words.append("--resume")
        else:
            words += [cell.source, *(w for o in cell.overrides for w in ("-c", o))]
        words += ["--out", str(cell.path), "--executor", self.executor, "--device", self.device]
        return [*words, "--threads", "1", "--json"]

    def _start(self, cell: Cell) -> None:
        said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process ends
        child = lifeline.start(self.command(cell), said)  # Ctrl-C does not reach it: it is told once, in `_stop`
        self.active[child] = (cell, said)
        self.watch.on_start(cell)

    def _collect(self) -> None:
        for child in [c for c in self.active if c.poll() is not None]:
            cell, said = self.active.pop(child)
            with said, child:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
            last = lines[-1].removeprefix("error: ") if lines else "it said nothing"
            self.ended(cell, None if child.returncode == 0 else f"{last} (exit code {child.returncode})")

    def _stop(self) -> None:
        """Let what still runs save its last complete round."""
        for child in self.active:
            child.terminate()  # as Ctrl-C, which they would not hear if we ourselves were started not to hear it
        for child, (_, said) in self.active.items():
            with said, child:
                child.wait()
        self.active.clear()


# --- results


def columns(sweep: Sweep) -> list[str]:
    """The columns of results.csv."""
    fixed = ["recipe", "method", "preset", "seed", "rounds"]
    swept = [k for k in sweep.swept if k not in fixed]
    return [*fixed, *swept, *FIGURES, "bytes_total", "seconds", "run"]


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """A row per finished cell, in the order of the cells."""
    found = []
    for cell in sweep.cells:
        result, r = cell.result, cell.recipe
        if result is None:
            continue
        row: dict[str, Any] = {"recipe": r.name, "method": r.method, "preset": r.preset, "seed": r.seed}
        row |= {"rounds": r.rounds} | {k: getattr(r, k) for k in sweep.swept} | {k: result[k] for k in FIGURES}
        found.append(
            row | {"bytes_total": result["bytes"]["total"], "seconds": result["seconds"], "run": str(cell.path)}
        )
    return found


def write_results(sweep: Sweep, outcome: Outcome) -> None:
    """results.csv, and failures.json where there are any; both are up to date after every cell."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns(sweep), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(sweep))
    sweep.out.mkdir(parents=True, exist_ok=True)
    (sweep.out / "results.csv").write_text(text.getvalue(), encoding="utf-8")
    failures = sweep.out / "failures.json"
    if outcome.failed:
        failures.write_text(json.dumps(outcome.failed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        failures.unlink(missing_ok=True)


def grouped(sweep: Sweep) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Finished cells that differ by nothing but their seed: (method and swept values, rows)."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    keys = ("method", *sweep.swept)
    for row in rows(sweep):
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    return [(dict(zip(keys, key, strict=True)), found) for key, found in groups.items()]
