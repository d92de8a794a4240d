"""Play the cells of a table that are missing, and write the table.

A finished cell is one whose log is there: it is never played again, whoever played it. Unfinished ones lie under
runs/ and go on from their checkpoint. Where a table attacks its cells, each is attacked as soon as it is trained, and
a cell that was trained without being attacked is only attacked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pmsfl.errors import PmsflError
from pmsfl.paper.attacked import AttackPlan, attack_run, attackable, read_attack
from pmsfl.paper.logs import Logs, alone, identity
from pmsfl.paper.outcome import Outcome, of_different_data
from pmsfl.paper.plan import SEEDS, Planned, Table, cells, missing_rows
from pmsfl.paper.write import DIFFERENT_DATA, write_cells
from pmsfl.recipe import Recipe
from pmsfl.report.console import note, say
from pmsfl.report.sweeping import Display
from pmsfl.run import Interrupted
from pmsfl.rundir import RunDirectory, write_whole
from pmsfl.sweep import play_cells
from pmsfl.sweep_plan import Cell, cell_name, recipes_below


@dataclass(frozen=True)
class Options:
    """What a call asks for. only: globs of row/method; seeds: None for the scale's own number."""

    scale: str
    seeds: int | None = None
    only: tuple[str, ...] = ()
    data: Path = Path("data")
    out: Path = Path("papers/pm-sfl")
    jobs: int = 1
    device: str = "auto"

    @property
    def seed_count(self) -> int:
        """How many seeds."""
        return SEEDS[self.scale] if self.seeds is None else self.seeds


@dataclass
class _Call:
    """One call for one table."""

    table: Table
    options: Options
    logs: Logs
    skipped: dict[str, str] = field(default_factory=dict)  # rows that cannot be played, and why
    failed: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)  # cells that another call is at
    runs: dict[tuple[Recipe, int], Path] = field(default_factory=dict)  # those under runs/, by identity and seed

    @property
    def plan(self) -> AttackPlan | None:
        """How cells are attacked; None: not at all."""
        return self.table.attacks.get(self.options.scale)

    def missing(self) -> list[Planned]:
        """Cells to play: of available rows, not finished, each recipe once."""
        o = self.options
        self.runs = {(identity(r), r.seed): path for r, path in recipes_below(o.out / "runs").items()}
        chosen = cells(self.table, o.scale, o.seed_count, o.only)
        if self.table.borrows and not o.only:
            return []
        self.skipped = dict(missing_rows(chosen, o.data))
        found: dict[Recipe, Planned] = {}
        for cell in (c for c in chosen if c.row.name not in self.skipped):
            recipe = cell.recipe(o.data)
            if not self.logs.has(recipe) or not self.attacked(recipe):
                found.setdefault(recipe, cell)
        return list(found.values())

    def check_something_was_there(self) -> None:
        """Where cells were named, it is an error if all of their rows were left out and none has a result."""
        o = self.options
        chosen = [c for c in cells(self.table, o.scale, o.seed_count, o.only) if _has_recipe(c)]
        rows_ = {c.row.name for c in chosen}
        if o.only and rows_ <= self.skipped.keys() and not any(self.logs.has(c.recipe(o.data)) for c in chosen):
            raise PmsflError(f"nothing was played: {', '.join(sorted(rows_))} had to be left out (see above)")

    def _check_data(self, outcome: Outcome) -> None:
        """Say where a table would mix what was measured on different data under one name."""
        for row, groups in outcome.played(self.options.scale):
            if of_different_data(groups):
                note(f"{row.name}: {DIFFERENT_DATA}; delete the logs of the wrong ones below {self.options.out}/logs")

    def attacked(self, recipe: Recipe) -> bool:
        """Has a trained cell been attacked, where it has to be?"""
        return self.plan is None or read_attack(self.logs.of(recipe)[recipe.seed], self.plan) is not None

    def only_attack(self, planned: Planned) -> Path | None:
        """The run of a cell that needs no training; None where it does, if only because its run was deleted."""
        recipe = planned.recipe(self.options.data)
        run = self.runs.get((identity(recipe), recipe.seed))
        return run if self.logs.has(recipe) and attackable(run) else None

    def attack(self, planned: Planned, run: Path, tell: Callable[[str], None]) -> None:
        """Attack a trained cell and keep what that reached."""
        recipe, o = planned.recipe(self.options.data), self.options
        assert self.plan is not None
        if _busy(run):
            self.elsewhere.append(run.name)
            return
        tell(f"{run.name}: attacking")
        try:
            with RunDirectory(run).locked():
                folder, plain = self.logs.of(recipe)[recipe.seed], planned.plain_recipe(o.data)
                if not self.attacked(recipe):  # another call may just have done it
                    attack_run(run, folder, self.plan, plain, o.device, lambda line: None)
        except Exception as e:  # memory, a model of one's own: no reason to lose the other cells
            self.failed.append(run.name)
            note(f"the attack on {run.name} failed: {e}")
            return
        found = read_attack(folder, self.plan) or {}
        tell(f"{run.name}: SSIM {found['max']:.3f} by {found['max_attack']}, floor {found['floor']:.3f}")
        self.write(pages=False)

    def place(self, planned: Planned) -> Cell:
        """Where a cell is played: where it was begun, or a free folder under runs/."""
        runs, o = self.options.out / "runs", self.options
        overrides = planned.overrides(o.data)
        recipe = planned.recipe(o.data)
        wanted = name = cell_name(f"{recipe.name}-{planned.variant.name}", {}, planned.seed)
        path, n = self.runs.get((identity(recipe), recipe.seed)), 1
        while path is None:
            taken = (runs / name / "recipe.toml", o.out / "logs" / self.table.home / name / "recipe.toml")
            if not any(file.exists() for file in taken):
                path = runs / name
            n += 1
            name = f"{wanted}-{n}"
        return Cell(path.name, planned.row.recipe, overrides, recipe, path)

    def ended(self, cell: Cell, error: str | None) -> bool:
        """Keep the log of a cell that is finished, and the table's CSV up to date; False: another call is at it."""
        if error is None:
            self._keep(cell)
        elif _busy(cell.path):
            self.elsewhere.append(cell.name)
            return False
        else:
            self.failed.append(cell.name)
        return True

    def _keep(self, cell: Cell) -> None:
        """Publish a finished run's log; where that cannot be written, the run stays and the other cells go on."""
        try:
            if not self.logs.has(cell.recipe):  # it has one where it was trained again for an attack
                shipped_path = Recipe.load(cell.source).data_path
                self.logs.publish(cell.path, self.table.home, cell.path.name, shipped_path)
            self.write(pages=False)
        except (PmsflError, OSError) as e:
            self.failed.append(cell.name)
            note(f"{cell.name} is trained, but its log could not be written: {e}")

    def write(self, pages: bool = True, others: bool = True) -> list[Path]:
        """The table's files from all logs there are, and those of other tables; without pages only its own CSV."""
        logs = Logs(self.options.out)
        outcome = Outcome(self.table, self.options.out, self.options.data, logs)
        with alone(self.options.out):
            if pages:
                self._check_data(outcome)
                return [*self.table.write(outcome), *(self._write_others(logs) if others else ())]
            return [] if self.table.borrows else [(self.table.write_csv or write_cells)(outcome)]

    def _write_others(self, logs: Logs) -> list[Path]:
        """The other tables that have a page already: they share cells with this one, and must not contradict it."""
        from pmsfl.paper.tables import TABLES

        others = (t for t in TABLES.values() if t.name != self.table.name)
        there = [t for t in others if (self.options.out / f"{t.name}.md").exists()]
        return [file for t in there for file in t.write(Outcome(t, self.options.out, self.options.data, logs))]


def play(table: Table, options: Options, stream: TextIO | None) -> None:
    """Play what is missing and write the table; cells that fail leave the others alone, Ctrl-C keeps what is done."""
    call = _Call(table, options, Logs(options.out))
    call.logs.warn()
    missing = call.missing()
    _say_plan(call, missing, stream)
    try:
        _play(call, missing, stream)
    except (KeyboardInterrupt, Interrupted):
        call.write(others=False)
        raise Interrupted(
            "interrupted; finished cells are kept, the one under way has its checkpoint. Go on with the same command"
        ) from None
    for file in call.write():
        say(f"wrote {file}", stream)
    call.check_something_was_there()
    if call.elsewhere:
        at = ", ".join(call.elsewhere)
        note(f"another process is training {at}: run this again when it is done, should its call not write the table")
    if call.failed:
        raise PmsflError(f"{len(call.failed)} cells failed: {', '.join(call.failed)}; the notes above say why")


def _play(call: _Call, missing: Sequence[Planned], stream: TextIO | None) -> None:
    o = call.options
    trained = {i: run for i, planned in enumerate(missing) if (run := call.only_attack(planned)) is not None}
    for i, run in trained.items():
        call.attack(missing[i], run, lambda line: say(line, stream))
    planned_as = {call.place(planned): planned for i, planned in enumerate(missing) if i not in trained}
    for cell in planned_as:
        _prepare(cell)
    with Display(list(planned_as), stream) as display:
        watch = display.watch()

        def ended(cell: Cell, error: str | None) -> None:
            if not call.ended(cell, error):
                return display.pass_over(cell)
            watch.on_end(cell, error, False)
            if call.plan is not None and error is None and cell.name not in call.failed:
                call.attack(planned_as[cell], cell.path, display.say_line)
            return None

        play_cells(list(planned_as), watch, ended, "cohort", o.device, o.jobs)


def _say_plan(call: _Call, missing: Sequence[Planned], stream: TextIO | None) -> None:
    o = call.options
    everything = cells(call.table, o.scale, o.seed_count, o.only)
    for line in call.skipped.values():
        note(f"left out: {line} (looked in {o.data}; another folder: --data DIR)")
    recipes = [c.recipe(o.data) for c in everything if _has_recipe(c)]
    there = sum(call.logs.has(r) and call.attacked(r) for r in recipes)
    say(
        f"{call.table.name}, scale {o.scale}: {len(everything)} cells, {there} there already, "
        f"{len(missing)} to play; results in {o.out}",
        stream,
    )
    if call.table.borrows and not o.only:
        say(f"(shows what is there of {call.table.borrows}; to play missing cells, name them with --only)", stream)


def _has_recipe(cell: Planned) -> bool:
    from pmsfl.recipe_files import shipped

    return cell.row.recipe in shipped()


def _prepare(cell: Cell) -> None:
    """Make a begun cell fit to go on: its data may have moved, or it died before its recipe was written."""
    if _busy(cell.path):
        return
    if cell.begun and RunDirectory(cell.path).recipe() != cell.recipe:
        write_whole(cell.path / "recipe.toml", cell.recipe.to_toml())
    elif cell.path.is_dir() and not cell.begun:
        with contextlib.suppress(OSError):  # what is not empty stays, and the cell says so
            (cell.path / ".lock").unlink(missing_ok=True)
            (cell.path / "checkpoints").rmdir()


def _busy(path: Path) -> bool:
    """Is somebody training there?"""
    if not (path / "recipe.toml").exists():
        return False
    try:
        with RunDirectory(path).locked():
            return False
    except PmsflError:
        return True
