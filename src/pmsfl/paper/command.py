"""`pmsfl paper`: play a table, or list what there is of all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from pmsfl.engine.processes import launched
from pmsfl.paper import play as playing
from pmsfl.paper.logs import Logs
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import SCALES, Planned, Table, cells, scales_with, unavailable
from pmsfl.paper.play import Options
from pmsfl.paper.tables import TABLES
from pmsfl.report.console import UsageError, human_seconds, say, table
from pmsfl.report.interval import mean


def play(wanted: Table, options: Options) -> None:
    """One table: what is missing is played, then it is written."""
    if options.jobs < 1:
        raise UsageError(f"--jobs {options.jobs}: take at least 1")
    if launched() > 1:
        raise UsageError("a table plays each cell in one process; start it without torchrun, with --jobs for more")
    _check_seeds(options)
    if not wanted.at(options.scale):
        has = ", ".join(s for s in SCALES if wanted.at(s))
        raise UsageError(f"{wanted.name} has no rows at scale {options.scale}; take one of {has}")
    playing.play(wanted, options, sys.stdout)


def show(options: Options) -> None:
    """Every table: its cells, how many seeds of each are done, what they cost and what the rest would."""
    _check_seeds(options)
    logs = Logs(options.out)
    any_cell = False
    for name, wanted in TABLES.items():
        outcome = Outcome(wanted, options.out, options.data, logs)
        lines = _lines(outcome, options)
        if not lines:
            continue
        any_cell = True
        of = f", the cells of {wanted.borrows}" if wanted.borrows else ""
        table(f"{name}: {wanted.title}{of}", ("cell", "seeds", "seconds each", "to go", ""), lines)
    if not any_cell:
        others = {s for t in TABLES.values() for pattern in options.only for s in scales_with(t, pattern)}
        hint = f"; there is one at {' and '.join(s for s in SCALES if s in others)}" if others else ""
        raise UsageError(f"--only {','.join(options.only)}: no table has such a cell at scale {options.scale}{hint}")
    logs.warn()
    say(
        f"scale {options.scale}; 'to go' is an estimate from finished cells of the same row. "
        "Play a table with: pmsfl paper TABLE"
    )


def _lines(outcome: Outcome, options: Options) -> list[tuple[str, ...]]:
    chosen = {c.address for c in _matching(outcome, options)}
    by_name = {row.name: groups for row, groups in outcome.lines(options.scale)}
    found: list[tuple[str, ...]] = []
    for row, variants in outcome.table.at(options.scale):
        why = unavailable(row, options.data)
        remark = "" if why is None else why.partition(": ")[2].partition(";")[0]
        groups = by_name.get(row.name, [])
        for place, variant in enumerate(variants):
            address = f"{row.name}/{variant.name}"
            if address in chosen:
                group = groups[place] if groups else None
                found.append((address, *_state(group, groups, options.seed_count), remark))
    return found


def _matching(outcome: Outcome, options: Options) -> Sequence[Planned]:
    if not options.only:
        return cells(outcome.table, options.scale, 1)
    found: list[Planned] = []
    for pattern in options.only:
        with suppress(UsageError):  # this table has none of them; another may
            found += cells(outcome.table, options.scale, 1, [pattern])
    return found


def _state(group: Group | None, groups: Sequence[Group], seeds: int) -> tuple[str, str, str]:
    """(seeds done of those wanted, seconds each cost, seconds the missing ones would)."""
    if group is None:
        return f"0/{seeds}", "", "unknown"
    done = [r for r in group.records if r.seed < seeds]
    own = [s for r in group.records if (s := r.value("seconds")) is not None]
    alike = own or [s for g in groups for r in g.records if (s := r.value("seconds")) is not None]
    left = seeds - len(done)
    known = f"about {human_seconds(left * mean(alike))}" if alike else "unknown"
    estimate = known if left else ""
    return f"{len(done)}/{seeds}", f"{mean(own):.1f}" if own else "", estimate


def _check_seeds(options: Options) -> None:
    if options.seed_count < 1:
        raise UsageError(f"--seeds {options.seeds}: take at least 1")
