"""How much persons differ: the simulated sets with subjects that differ by nothing, as in table1, and twice as much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pmsfl.paper import figures, rows, table1
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import Data, Place, Row, Table
from pmsfl.paper.settings import name_seeds, shared_seeds
from pmsfl.paper.write import embed, heading, markdown, reached, sections, write_cells, write_page
from pmsfl.report.interval import summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Played = tuple[Row, list[list[Group]]]  # a set and, per method, its group at every variance
USUAL = 1.0  # what the rows of table1 are simulated with
AMOUNTS = (0.0, USUAL, 2.0)
SETS = (rows.mmhar, rows.sonichar)
VARIANTS = (table1.standalone, table1.splitfed, table1.lg_fedavg, table1.pm_sfl)
ABOUT = (
    "The simulated sets made anew with subjects that differ in nothing (variance 0), as in Table 1 (1), and twice as "
    "much (2): what it takes for bottoms of one's own to pay. Rates are those of Table 1, chosen at variance 1."
)


def _made_with(row: Row, variance: float) -> Row:
    """The row on a set simulated with that variance; Table 1's own row at the usual one, so that cells are shared."""
    if variance == USUAL:
        return row
    folder = f"variance-{variance:g}"
    bring = f"it with `pmsfl simulate {row.recipe} DIR/{folder} --variance {variance:g}`"
    return replace(
        row,
        name=f"{row.name}-{folder}",
        label=f"{row.label}, subject variance {variance:g}",
        data=Data((Place(f"{folder}/{row.recipe}.npz"),), bring),
        published="",
        remark="simulated, not recorded",
    )


AT = {(row.name, amount): _made_with(row, amount) for row in SETS for amount in AMOUNTS}
LINES = tuple((row, VARIANTS) for row in AT.values())


def write(outcome: Outcome) -> list[Path]:
    """variance.md, variance.csv and a figure per scale."""
    top, drawn = {}, []
    for scale in outcome.scales():
        sets = list(_by_set(outcome, scale))
        if not sets:
            continue
        made = figures.draw(outcome.out / f"variance-{scale}.png", partial(_curves, sets))
        top[scale] = [*_matrix(sets), "", *embed(outcome, made)]
        drawn += made
    page = write_page(outcome, [*heading(outcome, [ABOUT]), *sections(outcome, "pm-sfl", top)])
    return [page, write_cells(outcome), *drawn]


def _by_set(outcome: Outcome, scale: str) -> Iterator[Played]:
    """Each set that was played at several variances and, per method, its group at every one of them."""
    found = {row.name: groups for row, groups in outcome.lines(scale)}
    for row in SETS:
        each = [found[AT[row.name, amount].name] for amount in AMOUNTS]
        if sum(any(g.records for g in groups) for groups in each) > 1:
            yield row, [list(of_one) for of_one in zip(*each, strict=True)]


def _matrix(sets: list[Played]) -> list[str]:
    cells = [
        (f"{row.recipe}: {groups[0].variant.label}", *(reached(g) for g in groups))
        for row, methods in sets
        for groups in methods
    ]
    return markdown(["", *(f"variance {amount:g}" for amount in AMOUNTS)], cells)


def _curves(sets: list[Played]) -> Figure:
    """A panel per set: accuracy over the variance, a line per method."""
    figure, axes = figures.panels(len(sets))
    for ax, (row, methods) in zip(axes, sets, strict=True):
        seeds = shared_seeds([g for groups in methods for g in groups])
        for groups in methods:
            _curve(ax, groups, seeds)
        ax.set_xticks(AMOUNTS)
        ax.set(xlabel="subject variance", ylabel=row.measured)
        figures.entitle(ax, f"{row.recipe} (simulated)", f"{methods[0][0].recipe.rounds} rounds, {name_seeds(seeds)}")
    figure.suptitle("Accuracy over how much persons differ")
    figures.legend_outside(figure, axes)
    return figure


def _curve(ax: Axes, groups: list[Group], seeds: set[int]) -> None:
    """A method's line through the variances at which it was played."""
    of = ((x, g.by_seed(g.measure)) for x, g in zip(AMOUNTS, groups, strict=True))
    found = ((x, summarise([v for seed, v in by_seed.items() if seed in seeds])) for x, by_seed in of)
    points = [(x, s.mean, s.error) for x, s in found if s is not None]
    name = groups[0].variant.name
    figures.band(ax, points, table1.SHORT[name], figures.style(name))


TABLE = Table(
    "variance",
    "How much persons differ",
    "Both simulated sets with subjects that differ by nothing, as in table1, and twice as much.",
    LINES,
    write,
)
