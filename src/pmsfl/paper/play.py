"""Play the cells of a table that are missing, and write the table.

A finished cell is one whose log is there: it is never played again, whoever played it. Unfinished ones lie under
runs/ and go on from their checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pmsfl.errors import PmsflError
from pmsfl.paper.logs import Logs, alone, identity
from pmsfl.paper.outcome import Outcome
from pmsfl.paper.plan import SEEDS, Planned, Table, cells, missing_rows
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
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)  # cells that another call is at

    def missing(self) -> list[Planned]:
        """Cells to play: of available rows, without a log, each recipe once."""
        o = self.options
        chosen = cells(self.table, o.scale, o.seed_count, o.only)
        if self.table.borrows and not o.only:
            return []
        without = dict(missing_rows(chosen, o.data))
        self.skipped = list(without.values())
        found: dict[Recipe, Planned] = {}
        for cell in (c for c in chosen if c.row.name not in without):
            recipe = cell.recipe(o.data)
            if not self.logs.has(recipe):
                found.setdefault(recipe, cell)
        return list(found.values())

    def place(self, planned: Planned, there: dict[tuple[Recipe, int], Path]) -> Cell:
        """Where a cell is played: where it was begun, or a free folder under runs/."""
        runs, o = self.options.out / "runs", self.options
        overrides = planned.overrides(o.data)
        recipe = planned.recipe(o.data)
        wanted = name = cell_name(f"{recipe.name}-{planned.variant.name}", {}, planned.seed)
        path, n = there.get((identity(recipe), recipe.seed)), 1
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
            shipped_path = Recipe.load(cell.source).data_path
            self.logs.publish(cell.path, self.table.home, cell.path.name, shipped_path)
            self.write(pages=False)
        elif _busy(cell.path):
            self.elsewhere.append(cell.name)
            return False
        else:
            self.failed.append(cell.name)
        return True

    def write(self, pages: bool = True) -> list[Path]:
        """The table's files from all logs there are; without pages only the CSV."""
        from pmsfl.paper.write import write_cells

        outcome = Outcome(self.table, self.options.out, self.options.data, Logs(self.options.out), self.skipped)
        with alone(self.options.out):
            if pages:
                return self.table.write(outcome)
            return [] if self.table.borrows else [write_cells(outcome)]


def play(table: Table, options: Options, stream: TextIO | None) -> None:
    """Play what is missing and write the table; cells that fail leave the others alone, Ctrl-C keeps what is done."""
    call = _Call(table, options, Logs(options.out))
    missing = call.missing()
    _say_plan(call, missing, stream)
    try:
        _play(call, missing, stream)
    except (KeyboardInterrupt, Interrupted):
        call.write()
        raise Interrupted(
            "interrupted; finished cells are kept, the one under way has its checkpoint. Go on with the same command"
        ) from None
    for file in call.write():
        say(f"wrote {file}", stream)
    if call.elsewhere:
        note(f"another call is playing {', '.join(call.elsewhere)}: it will write the table again")
    if call.failed:
        raise PmsflError(f"{len(call.failed)} cells failed: {', '.join(call.failed)}; the notes above say why")


def _play(call: _Call, missing: Sequence[Planned], stream: TextIO | None) -> None:
    o = call.options
    begun = {(identity(r), r.seed): path for r, path in recipes_below(o.out / "runs").items()}
    found = [call.place(planned, begun) for planned in missing]
    for cell in found:
        _prepare(cell)
    with Display(found, stream) as display:
        watch = display.watch()

        def ended(cell: Cell, error: str | None) -> None:
            if call.ended(cell, error):
                watch.on_end(cell, error, False)
            else:
                display.pass_over(cell)

        play_cells(found, watch, ended, "cohort", o.device, o.jobs)


def _say_plan(call: _Call, missing: Sequence[Planned], stream: TextIO | None) -> None:
    o = call.options
    everything = cells(call.table, o.scale, o.seed_count, o.only)
    for line in call.skipped:
        note(f"left out: {line} (looked in {o.data}; another folder: --data DIR)")
    there = sum(call.logs.has(c.recipe(o.data)) for c in everything if _has_recipe(c))
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
