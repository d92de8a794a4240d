"""What a run says while it goes: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from pmsfl.engine.memory_plan import MemoryPlan, plan_memory
from pmsfl.engine.plan import round_of
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.report.console import count, fancy, hang_up, human_bytes, note, number, pairs, percent, say
from pmsfl.report.listing import aggregation
from pmsfl.run import Listener, Progress
from pmsfl.rundir import RunDirectory

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

LINES = 10  # of progress over a whole run, besides those of evaluations


class Watcher:
    """A listener that prints to `stream`; leave it as a context so that the bar is put away."""

    def __init__(self, stream: TextIO | None, executor: str) -> None:
        self.stream, self.executor = stream, executor
        self.accuracy: float | None = None
        self.notes: set[str] = set()
        self.began = time.perf_counter()
        self.first = 0  # rounds done before this call
        self.narrow = False  # no room for everything
        self.drawn = 0.0  # when the bar last was
        self.bar: Bar | None = None
        self.task: TaskID | None = None

    def listener(self) -> Listener:
        """The callbacks for `pmsfl.run`."""
        return Listener(self.on_start, self.on_round, self.on_note)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self._drawing(self.bar.stop)
            self.bar = None

    # --- callbacks

    def on_start(self, world: World, state: State, directory: RunDirectory) -> None:
        """Say what is about to be trained."""
        pairs("", _heading(world, state, directory, self.executor), self.stream)
        say("", self.stream)
        self.began, self.first = time.perf_counter(), round_of(world.recipe, state.round)
        if fancy(self.stream):
            self._start_bar(world.recipe.rounds, self.first)

    def on_note(self, line: str) -> None:
        """Say a note, once."""
        if line not in self.notes:
            self.notes.add(line)
            note(line)

    def on_round(self, p: Progress) -> None:
        """Move the bar, or print a line where one is due."""
        if p.evaluation is not None:
            self.accuracy = p.evaluation.accuracy
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=p.round, status=self._status(p))
            if p.round == p.rounds or time.perf_counter() - self.drawn > 0.5:
                self.drawn = time.perf_counter()
                self._drawing(self.bar.refresh)
        elif p.evaluation is not None or p.round % max(p.rounds // LINES, 1) == 0 or p.round == p.rounds:
            say(f"round {p.round:>{len(str(p.rounds))}}/{p.rounds}  {self._status(p)}", self.stream)

    def _status(self, p: Progress) -> str:
        done = p.round - self.first
        left = (time.perf_counter() - self.began) / max(done, 1) * (p.rounds - p.round)
        parts = [
            f"loss {number(p.metrics.loss, 3)}" if self.accuracy is None else f"accuracy {percent(self.accuracy)}",
            "" if p.metrics.mask_entropy is None else f"entropy {number(p.metrics.mask_entropy)} bit",
            human_bytes(p.bytes_total),
            "" if self.narrow else f"{count(round(p.samples_per_second))} samples/s",
            f"{clock(left)} left" if p.round < p.rounds else f"{clock(p.seconds)} in all",
        ]
        return "  ".join(part for part in parts if part)

    # --- the bar

    def _start_bar(self, rounds: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        console = Console(file=self.stream, highlight=False, markup=False, emoji=False)
        status = TextColumn("{task.fields[status]}", markup=False, table_column=Column(no_wrap=True))
        counter = Column(no_wrap=True, min_width=2 * len(str(rounds)) + 1, justify="right")
        self.narrow = console.width < 95
        # Drawn from here, at most twice a second: a thread of its own would compete with training, and fail out of
        # reach when the terminal goes away. A stderr that goes to a file stays there.
        self.bar = Bar(
            TextColumn("round"),
            TextColumn("{task.completed}/{task.total}", markup=False, table_column=counter),
            BarColumn(20 if console.width >= 110 else 6),
            status,
            console=console,
            auto_refresh=False,
            redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        )
        self.task = self.bar.add_task("", total=rounds, completed=done, status="first round ...")
        self._drawing(self.bar.start)

    def _drawing(self, action: Callable[[], None]) -> None:
        """A terminal that went away ends the drawing, not the training."""
        try:
            action()
        except (OSError, ValueError):
            bar, self.bar = self.bar, None
            if self.stream is not None:
                hang_up(self.stream)
            if bar is not None:  # gives stdout and stderr back
                with contextlib.suppress(OSError, ValueError):
                    bar.stop()


def clock(seconds: float) -> str:
    """75 → '1:15', 3700 → '1:01:40'."""
    minutes, s = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"


def _heading(world: World, state: State, directory: RunDirectory, executor: str) -> list[tuple[str, str]]:
    r = world.recipe
    cohort = len(world.plan(state.round % r.turns).clients)
    at = f", resumed after round {round_of(r, state.round)}" if state.round else ""
    return [
        ("recipe", f"{r.name}, {r.rounds} rounds, seed {r.seed}{at}"),
        ("method", f"{r.method}: {world.method.summary}"),
        ("preset", r.preset),
        ("aggregate", aggregation(r)),
        ("data", world.federation.name),
        ("clients", f"{world.federation.clients}, {cohort} per round"),
        ("depth", depth_line(world.depths)),
        ("device", f"{world.device.type}, {executor} executor"),
        ("memory", memory_line(plan_memory(world), world.device.type)),
        ("directory", str(directory.path)),
    ]


def memory_line(plan: MemoryPlan, device: str) -> str:
    """The planned peak: '809 MB at the peak, 67.1 kB of it the bank' on the CPU."""
    peak = f"{human_bytes(plan.host)} at the peak"
    if not plan.on_host:
        peak = f"{human_bytes(plan.device)} on {device} at the peak, {human_bytes(plan.host)} on the host"
    if not plan.fits and plan.free is not None:
        peak += f" (only {human_bytes(plan.free)} are free: take a smaller batch, cohort or width)"
    if plan.bank_in_file:
        return f"{peak}; the bank, {human_bytes(plan.bank)}, in a file of at most {human_bytes(plan.bank_file)}"
    return f"{peak}, {human_bytes(plan.bank)} of it the bank" if plan.bank else peak


def depth_line(depths: tuple[int, ...]) -> str:
    """'2', or with mixed cuts '1 (6 clients), 2 (6 clients)'."""
    used = sorted(set(depths))
    if len(used) == 1:
        return str(used[0])
    return ", ".join(f"{d} ({depths.count(d)} clients)" for d in used)
