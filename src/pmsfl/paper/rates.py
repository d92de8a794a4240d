"""Learning rates: an equal grid for every method, the rate that it has in Table 1 and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pmsfl.paper import figures, rows, table1
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import Planned, Row, Table, Variant
from pmsfl.paper.settings import name_seeds, shared_seeds
from pmsfl.paper.write import (
    NOTHING,
    embed,
    heading,
    markdown,
    row_heading,
    scale_heading,
    time_spent,
    write_cells,
    write_page,
)
from pmsfl.report.interval import mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 3  # of every grid
CLIENTS_RATE, SCORES_RATE = "lr_client", "lr_score"
WHAT = {CLIENTS_RATE: "clients' weights and norms", SCORES_RATE: "scores"}


@dataclass(frozen=True)
class Grid:
    """One method's values of the rate that its clients learn at."""

    method: Variant
    key: str
    values: tuple[str, str, str]

    @property
    def variants(self) -> tuple[Variant, ...]:
        """A variant per value, with everything else that the row has for the method."""
        m, settings = self.method, [f"{self.key}={v}" for v in self.values]
        return tuple(Variant(f"{m.name}:{s}", f"{m.label}, {s}", (*m.changes, s), m.name) for s in settings)


def _weights(method: Variant, *values: str) -> Grid:
    low, middle, high = values
    return Grid(method, CLIENTS_RATE, (low, middle, high))


def _scores(method: Variant, *values: str) -> Grid:
    low, middle, high = values
    return Grid(method, SCORES_RATE, (low, middle, high))


_FROZEN = table1.CONTROLS[0]
_BY_PERSON = (
    _weights(table1.standalone, "3e-4", "1e-3", "3e-3"),
    _weights(table1.splitfed, "3e-4", "1e-3", "3e-3"),
    _scores(table1.splitfed_pm, "0.03", "0.1", "0.3"),
    _scores(table1.lg_fedavg, "0.01", "0.03", "0.1"),
    _scores(table1.pm_sfl, "0.03", "0.1", "0.3"),
    _weights(_FROZEN, "3e-4", "1e-3", "3e-3"),
)
_FASTER_SPLITFED = (_BY_PERSON[0], _weights(table1.splitfed, "1e-3", "3e-3", "1e-2"), *_BY_PERSON[2:])
_BY_WRITER = (
    _weights(table1.standalone, "0.05", "0.1", "0.2"),
    _weights(table1.splitfed, "0.1", "0.2", "0.4"),
    _weights(table1.own_norms, "0.1", "0.2", "0.4"),
    _scores(table1.splitfed_pm, "0.03", "0.1", "0.3"),
    _scores(table1.lg_fedavg, "0.01", "0.03", "0.1"),
    _scores(table1.pm_sfl, "0.03", "0.1", "0.3"),
    _weights(table1.frozen_own_norms, "0.05", "0.1", "0.2"),
)
_BY_WRITER_MIXED = (
    _weights(table1.standalone, "0.05", "0.1", "0.2"),
    _weights(table1.splitfed, "0.2", "0.4", "0.8"),
    _scores(table1.depthfl, "0.03", "0.1", "0.3"),
    _scores(table1.pm_sfl, "0.03", "0.1", "0.3"),
    _scores(table1.uncompensated, "0.03", "0.1", "0.3"),
    _scores(table1.lg_fedavg, "0.03", "0.1", "0.3"),
)
_CIFAR = (
    _weights(table1.standalone, "0.05", "0.1", "0.2"),
    _weights(table1.splitfed, "0.025", "0.05", "0.1"),
    _scores(table1.splitfed_pm, "0.005", "0.01", "0.02"),
    _scores(table1.pm_sfl, "0.005", "0.01", "0.02"),
    _weights(_FROZEN, "0.05", "0.1", "0.2"),
)
_CIFAR_MIXED = (
    _weights(table1.splitfed, "0.05", "0.1", "0.2"),
    _scores(table1.depthfl, "0.01", "0.02", "0.04"),
    _scores(table1.pm_sfl, "0.01", "0.02", "0.04"),
    _scores(table1.uncompensated, "0.01", "0.02", "0.04"),
)
_DIGITS = (
    _weights(table1.splitfed, "0.05", "0.1", "0.2"),
    _scores(table1.pm_sfl, "0.03", "0.1", "0.3"),
)


def _short(row: Row) -> Row:
    """CIFAR-100 in a fifth of its rounds, which tells rates apart; in Table 1 what is best here has all rounds."""
    changes = {"reduced": (*row.scales["full"], "rounds=60", "eval_every=60")}
    rates = {("reduced", name): settings for (scale, name), settings in row.rates.items() if scale == "full"}
    return replace(row, scales=changes, rates=rates)


def _only(row: Row, scale: str) -> Row:
    return replace(row, scales={scale: row.scales[scale]})


GRIDS: tuple[tuple[Row, tuple[Grid, ...]], ...] = (
    (rows.demo, _DIGITS),
    (_short(rows.cifar100), _CIFAR),
    (rows.unipen_every_own, _BY_WRITER),
    (_only(rows.mmhar, "reduced"), _BY_PERSON),
    (_only(rows.sonichar, "reduced"), _FASTER_SPLITFED),
    (_only(rows.radar, "reduced"), _FASTER_SPLITFED),
    (_short(rows.cifar100_depths), _CIFAR_MIXED),
    (rows.unipen_every_depths_own, _BY_WRITER_MIXED),
)
LINES = tuple((row, tuple(v for g in grids for v in g.variants)) for row, grids in GRIDS)
ABOUT = (
    f"Each method with {POINTS} values of the rate that its clients learn at, as many for one as for another: the one "
    "that it has in Table 1 and its neighbours. Everything else is Table 1's, the server's rate, too; CIFAR-100 is "
    "played for 60 rounds here. **Bold** is the best of a grid, over the seeds that all of its values have; where that "
    "is the lowest or the highest, a better one may lie outside. Accuracies are those of Table 1's tests."
)


# --- the page


@dataclass(frozen=True)
class Line:
    """A grid and what its values reached, over the seeds that all played ones share."""

    grid: Grid
    groups: Sequence[Group]

    @property
    def seeds(self) -> set[int]:
        """The seeds that count."""
        return shared_seeds(self.groups)

    @property
    def reached(self) -> list[float | None]:
        """The figure that counts per value; None where it was not played."""
        return [self._mean(g) for g in self.groups]

    def _mean(self, group: Group) -> float | None:
        found = [figure for seed, figure in group.by_seed(group.measure).items() if seed in self.seeds]
        return mean(found) if found else None

    @property
    def played(self) -> list[tuple[int, float]]:
        """(place in the grid, figure) of the values that were played."""
        return [(i, r) for i, r in enumerate(self.reached) if r is not None]

    @property
    def best(self) -> int | None:
        """The place of the best value; None before all of them are played."""
        return max(self.played, key=lambda p: p[1])[0] if len(self.played) == POINTS else None

    @property
    def in_table(self) -> str:
        """The rate that Table 1 has."""
        g = self.groups[0]
        recipe = Planned(g.row, self.grid.method, g.scale, 0).recipe(Path("data"))
        return _number(getattr(recipe, self.grid.key))


def lines(groups: Sequence[Group], grids: Sequence[Grid]) -> list[Line]:
    """The groups of a row by their grids, those with a finished cell."""
    found = [Line(g, groups[i * POINTS : (i + 1) * POINTS]) for i, g in enumerate(grids)]
    return [line for line in found if any(g.records for g in line.groups)]


def write(outcome: Outcome) -> list[Path]:
    """rates.md, rates.csv and a figure per scale."""
    text, drawn = [], []
    for scale in outcome.scales():
        played = [(row, groups, lines(groups, _grids(row))) for row, groups in outcome.played(scale)]
        made = figures.draw(outcome.out / f"rates-{scale}.png", partial(_curves, played))
        text += [*scale_heading(scale), *embed(outcome, made)]
        for row, groups, found in played:
            text += [*row_heading(row, groups), *_table(found), ""]
        text += time_spent(outcome, scale)
        drawn += made
    page = write_page(outcome, [*heading(outcome, [ABOUT]), *(text or NOTHING)])
    return [page, write_cells(outcome), *drawn]


def _grids(row: Row) -> tuple[Grid, ...]:
    return next(grids for r, grids in GRIDS if r.name == row.name)


def _table(found: Sequence[Line]) -> list[str]:
    """A line per method."""
    headers = ["", "rate of", "low", "middle", "high", "in Table 1", "seeds"]
    return markdown(headers, [_cells(line) for line in found])


def _cells(line: Line) -> tuple[str, ...]:
    points = []
    for place, (value, reached) in enumerate(zip(line.grid.values, line.reached, strict=True)):
        text = f"{_number(value)}: {'' if reached is None else f'{reached:.2f}'}"
        points.append(f"**{text}**" if place == line.best else text)
    seeds = ", ".join(str(s) for s in sorted(line.seeds))
    return (f"{line.grid.method.label}{line.groups[0].mark}", WHAT[line.grid.key], *points, line.in_table, seeds)


def _curves(played: list[tuple[Row, list[Group], list[Line]]]) -> Figure | None:
    """A panel per row: accuracy over a rate's place in its grid, since scores and weights have rates of two kinds.

    Grids of which one value was played are left out: a dot says nothing of its neighbours.
    """
    drawn = [(row, groups, [line for line in found if len(line.played) > 1]) for row, groups, found in played]
    drawn = [entry for entry in drawn if entry[2]]
    if not drawn:
        return None
    figure, axes = figures.panels(len(drawn))
    for ax, (row, groups, found) in zip(axes, drawn, strict=True):
        for line in found:
            points = [(float(i), r, None) for i, r in line.played]
            figures.band(ax, points, line.grid.method.label, figures.style(line.grid.method.name))
            _mark(ax, line)
        ax.set_xticks(range(POINTS), ["low", "middle", "high"])
        ax.set(xlim=(-0.2, POINTS - 0.8), ylabel=row.measured)
        seeds = {seed for line in found for seed in line.seeds}
        figures.entitle(ax, row.label, f"{groups[0].recipe.rounds} rounds, {name_seeds(seeds)}")
    axes[0].plot([], [], "o", markerfacecolor="none", color="#222222", markersize=8.0, label="in Table 1")
    figure.suptitle("Accuracy over the clients' learning rate, each method on its own grid")
    figures.legend_outside(figure, axes, columns=4)
    return figure


def _mark(ax: Axes, line: Line) -> None:
    """A ring around what Table 1 has."""
    for i, reached in line.played:
        if _number(line.grid.values[i]) == line.in_table:
            ax.plot([i], [reached], "o", markerfacecolor="none", color="#222222", markersize=8.0)


def _number(value: str | float) -> str:
    """'0.001' of 1e-3."""
    return f"{float(value):g}"


TABLE = Table(
    "rates",
    "Learning rates",
    "Every method with three learning rates of its clients: the one of Table 1 and its neighbours.",
    LINES,
    write,
)
