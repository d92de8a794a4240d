"""The commands of `pmsfl paper`: `list`, and one per table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pmsfl.commands import Arg, Command
from pmsfl.paper import command
from pmsfl.paper.plan import Table
from pmsfl.paper.play import Options
from pmsfl.paper.tables import TABLES
from pmsfl.report.console import UsageError

SCALE = Arg(
    "How much of it: quick is minutes on two CPU cores, reduced hours; full, our budget, and half of it want a GPU.",
    choices=("quick", "reduced", "half", "full"),
)
SEEDS = Arg("Seeds 0 to N-1; 1, 2, 2 and 3 at quick, reduced, half and full unless told.", metavar="N")
ONLY = Arg("Only these cells: row/method, globs allowed; several with commas or one by one.", metavar="ROW/METHOD")
DATA = Arg("Where the datasets lie.", metavar="DIR")
OUT = Arg("Where tables, figures, logs and runs go.", metavar="DIR")
JOBS = Arg("Cells at once, each a process with one CPU thread.", metavar="N")
DEVICE = Arg("Where to compute.", choices=("auto", "cpu", "cuda"))


def _patterns(only: list[str] | None) -> tuple[str, ...]:
    found = tuple(p.strip() for words in only or () for p in words.split(",") if p.strip())
    if only and not found:  # an unset variable of a shell, say: not the same as everything
        raise UsageError(f"--only {only[0]!r}: name a cell, row/method; leave --only out for all of them")
    return found


def list_tables(
    *,
    scale: Annotated[str, SCALE] = "quick",
    seeds: Annotated[int | None, SEEDS] = None,
    only: Annotated[list[str] | None, ONLY] = None,
    data: Annotated[Path, DATA] = Path("data"),
    out: Annotated[Path, OUT] = Path("papers/pm-sfl"),
) -> None:
    """List every table and its cells: which are done, what each cost or would cost."""
    command.show(Options(scale, seeds, _patterns(only), data, out))


def player(table: Table) -> Command:
    """The command that plays a table."""

    def play(
        *,
        scale: Annotated[str, SCALE] = "quick",
        seeds: Annotated[int | None, SEEDS] = None,
        only: Annotated[list[str] | None, ONLY] = None,
        data: Annotated[Path, DATA] = Path("data"),
        out: Annotated[Path, OUT] = Path("papers/pm-sfl"),
        jobs: Annotated[int, JOBS] = 1,
        device: Annotated[str, DEVICE] = "auto",
    ) -> None:
        command.play(table, Options(scale, seeds, _patterns(only), data, out, jobs, device))

    play.__doc__ = table.about
    return play


PAPER: dict[str, Command] = {"list": list_tables, **{name: player(table) for name, table in TABLES.items()}}
