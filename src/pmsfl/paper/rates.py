"""Learning rates: a grid of equal size for the methods of Table 1, the rate that they have there and its neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmsfl.methods import make_method
from pmsfl.paper import figures, rows, table1
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import Planned, Row, Table, Variant
from pmsfl.paper.settings import name_seeds
from pmsfl.paper.write import (
    NOTHING,
    embed,
    markdown,
    row_heading,
    scale_heading,
    spread,
    time_spent,
    write_cells,
    write_page,
)
from pmsfl.report.interval import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIENTS_RATE, SCORES_RATE = "lr_client", "lr_score"
WHAT = {"weights": "weights, norms", "scores": "scores", "nothing": "norms"}  # by what a method's clients train


@dataclass(frozen=True)
class Grid:
    """One method's values of the rate that its clients learn at; Table 1's is in the middle, but for radar-whole."""

    method: Variant
    key: str
    low: str
    middle: str
    high: str

    @property
    def values(self) -> tuple[str, str, str]:
        """From the lowest to the highest."""
        return self.low, self.middle, self.high

    @property
    def variants(self) -> tuple[Variant, ...]:
        """A variant per value, with everything else that the row has for the method."""
        m, settings = self.method, [f"{self.key}={v}" for v in self.values]
        return tuple(Variant(f"{m.name}:{s}", f"{m.label}, {s}", (*m.changes, s), m.name) for s in settings)


def _weights(method: Variant, low: str, middle: str, high: str) -> Grid:
    return Grid(method, CLIENTS_RATE, low, middle, high)


def _scores(method: Variant, low: str, middle: str, high: str) -> Grid:
    return Grid(method, SCORES_RATE, low, middle, high)


_FROZEN = table1.CONTROLS[0]


_BY_PERSON = (
    _weights(table1.standalone, "0.0003", "0.001", "0.003"),
    _weights(table1.splitfed, "0.001", "0.003", "0.01"),
    _scores(table1.splitfed_pm, "0.03", "0.1", "0.3"),
    _scores(table1.lg_fedavg, "0.01", "0.03", "0.1"),
    _scores(table1.pm_sfl, "0.03", "0.1", "0.3"),
    _weights(_FROZEN, "0.0003", "0.001", "0.003"),
)
_SONICHAR = (_weights(table1.standalone, "0.0001", "0.0003", "0.001"), *_BY_PERSON[1:])
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
# A fourth, higher value of each but SplitFed-PM was worse (benchmarks/records/2026-11-19_rates-cifar-radar_h200).
_RADAR_WHOLE = (
    _weights(table1.standalone, "3e-05", "0.0001", "0.0003"),
    _weights(table1.splitfed, "0.0001", "0.0003", "0.001"),
    _scores(table1.splitfed_pm, "0.01", "0.03", "0.1"),
    _scores(table1.lg_fedavg, "0.003", "0.01", "0.03"),
    _scores(table1.pm_sfl, "0.01", "0.03", "0.1"),
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


def _short(row: Row, scale: str, *changes: str) -> Row:
    """A row of scale full in fewer rounds, which tell rates apart, under the name of another scale."""
    rates = {(scale, name): settings for (of, name), settings in row.rates.items() if of == "full"}
    rounds = next(c for c in reversed(row.scales["full"]) if c.startswith("rounds=")).removeprefix("rounds=")
    scales = {scale: (*row.scales["full"], *changes)}
    return replace(row, scales=scales, rates=rates, note=f"in Table 1 every method has {rounds} rounds")


def _only(row: Row, scale: str) -> Row:
    return replace(row, scales={scale: row.scales[scale]}, note="")


_SHORT_CIFAR = ("rounds=60", "eval_every=60")
_WHOLE = replace(
    _short(rows.radar, "half", "rounds=40"),
    name="radar-whole",
    label="UWB radar by person (real), the paper's whole Transformer",
)
GRIDS: tuple[tuple[Row, tuple[Grid, ...]], ...] = (
    (rows.demo, _DIGITS),
    (_short(rows.cifar100, "reduced", *_SHORT_CIFAR), _CIFAR),
    (_only(rows.unipen_every_own, "reduced"), _BY_WRITER),
    (_only(rows.mmhar, "reduced"), _BY_PERSON),
    (_only(rows.sonichar, "reduced"), _SONICHAR),
    (_only(rows.radar, "reduced"), _BY_PERSON),
    (_WHOLE, _RADAR_WHOLE),
    (_short(rows.cifar100_depths, "reduced", *_SHORT_CIFAR), _CIFAR_MIXED),
    (_only(rows.unipen_every_depths_own, "reduced"), _BY_WRITER_MIXED),
)
GRIDS_BY_ROW = {row.name: grids for row, grids in GRIDS}
LINES = tuple((row, tuple(v for g in grids for v in g.variants)) for row, grids in GRIDS)
ABOUT = (
    "Table 1's methods with three values of the rate that their clients learn at, as many for one as for another: the "
    "one that it has there, at this scale, and its neighbours, a factor of two or three away; for radar's whole "
    "Transformer Table 1 has what was best here, and a fourth, higher value was worse for all but SplitFed-PM, which "
    "has three (benchmarks/records/2026-11-19_rates-cifar-radar_h200). Everything else is Table 1's: the server's "
    "rate, too, and for masks the rate of norms and biases. Not here are SplitFed-DP, the threshold mask, frozen "
    "weights, and PM-SFL with single masks or the paper's preset; the frozen mask is where a row has it."
)
LEGEND = (
    "Made by `pmsfl paper rates --scale quick|reduced|half`. Accuracies in percent, of Table 1's tests and by the "
    "figure that its row goes by, ± standard error over the seeds that all values of a grid have. **Bold** is the "
    "best; where that is the lowest or the highest value, a better one may lie outside, and with one seed less than a "
    "point says little. An empty cell was not run, or broke off."
)


# --- the page


@dataclass(frozen=True)
class Line:
    """A grid and what its values reached, over the seeds that all played ones have."""

    grid: Grid
    groups: Sequence[Group]

    @cached_property
    def seeds(self) -> set[int]:
        """The seeds that count; none where the values have none in common."""
        each = [set(found) for g in self.groups if (found := g.by_seed(g.measure))]
        return set.intersection(*each) if each else set()

    def reached(self, seeds: set[int]) -> list[Summary | None]:
        """The figure that counts per value over these seeds; None where it was not played."""
        found = (g.by_seed(g.measure) for g in self.groups)
        return [summarise([figure for seed, figure in of.items() if seed in seeds]) for of in found]

    @cached_property
    def played(self) -> int:
        """How many values have a finished cell."""
        return sum(bool(g.records) for g in self.groups)

    @cached_property
    def best(self) -> set[int]:
        """The places of the best values, as printed; none before all of them are played with a seed in common."""
        found = [round(s.mean, 2) for s in self.reached(self.seeds) if s is not None]
        return (
            {i for i, figure in enumerate(found) if figure == max(found)} if len(found) == len(self.groups) else set()
        )

    @cached_property
    def in_table(self) -> int:
        """The place of the rate that Table 1 has."""
        g = self.groups[0]
        recipe = Planned(g.row, self.grid.method, g.scale, 0).recipe(Path("data"))
        return [float(v) for v in self.grid.values].index(getattr(recipe, self.grid.key))

    @property
    def label(self) -> str:
        """The method, marked where its figure is not the row's."""
        return f"{table1.SHORT[self.grid.method.name]}{self.groups[0].mark}"


def lines(row: Row, groups: Sequence[Group]) -> list[Line]:
    """The grids of a row of which two values or more were played."""
    by_name = {g.variant.name: g for g in groups}
    found = [Line(grid, [by_name[v.name] for v in grid.variants]) for grid in GRIDS_BY_ROW[row.name]]
    return [line for line in found if line.played > 1]


def _not_played(outcome: Outcome, scale: str, shown: Sequence[Row]) -> list[str]:
    """A line that names the rows of this scale without a grid."""
    names = [f"`{row.name}`" for row, _ in outcome.lines(scale) if row not in shown]
    return [f"No grid was played at this scale for {', '.join(names)}.", ""] if names else []


def _single(row: Row, found: Sequence[Line]) -> list[str]:
    """A line that names a row's methods without a grid."""
    there = {line.grid.method.name for line in found}
    names = [table1.SHORT[g.method.name] for g in GRIDS_BY_ROW[row.name] if g.method.name not in there]
    return [f"Not tried with other rates: {', '.join(names)}.", ""] if names else []


def write(outcome: Outcome) -> list[Path]:
    """rates.md, rates.csv and a figure per scale."""
    text, drawn = [f"# {outcome.table.title}", "", ABOUT, "", LEGEND, ""], []
    nothing = True
    for scale in outcome.scales():
        each = [(row, groups, lines(row, groups)) for row, groups in outcome.played(scale)]
        each = [entry for entry in each if entry[2]]
        if not each:
            continue
        made = figures.draw(outcome.out / f"rates-{scale}.png", partial(_curves, each))
        text += [*scale_heading(scale), *embed(outcome, made)]
        for row, groups, found in each:
            text += [*row_heading(row, groups), *markdown(HEADERS, [_cells(line) for line in found]), ""]
            text += _single(row, found)
        text += [*_not_played(outcome, scale, [row for row, _, _ in each]), *time_spent(outcome, scale)]
        drawn += made
        nothing = False
    page = write_page(outcome, [*text, *(NOTHING if nothing else ())])
    return [page, write_cells(outcome), *drawn]


HEADERS = ("", "rate of", "low", "middle", "high", "in Table 1", "seeds")


def _cells(line: Line) -> tuple[str, ...]:
    points = []
    for place, (value, found) in enumerate(zip(line.grid.values, line.reached(line.seeds), strict=True)):
        text = f"{value}: {spread(found)}"
        points.append(f"**{text}**" if place in line.best else text.rstrip())
    what = WHAT[make_method(line.groups[0].recipe).trains]
    seeds = ", ".join(str(s) for s in sorted(line.seeds)) or "none in common"
    return (line.label, what, *points, line.grid.values[line.in_table], seeds)


def _curves(each: list[tuple[Row, list[Group], list[Line]]]) -> Figure:
    """A panel per row: accuracy over a rate's place in its grid, since scores and weights have rates of two kinds.

    Methods with another figure than their row's are in the table alone.
    """
    figure, axes = figures.panels(len(each))
    for ax, (row, groups, all_of_row) in zip(axes, each, strict=True):
        found = [line for line in all_of_row if not line.groups[0].mark] or all_of_row
        seeds = set.intersection(*(line.seeds for line in found))
        for line in found:
            _curve(ax, line, seeds)
        ax.set_xticks(range(3), ["low", "middle", "high"])
        ax.set(xlim=(-0.2, 2.2), ylabel=row.measured)
        figures.entitle(ax, row.label, f"{groups[0].recipe.rounds} rounds, {name_seeds(seeds)}")
    axes[0].plot([], [], **RING, label="in Table 1")
    figure.suptitle("Accuracy over the clients' learning rate, each method on its own grid")
    figures.legend_outside(figure, axes, columns=5)
    return figure


RING: dict[str, Any] = {
    "marker": "o",
    "linestyle": "",
    "markerfacecolor": "none",
    "color": "#222222",
    "markersize": 8.0,
}


def _curve(ax: Axes, line: Line, seeds: set[int]) -> None:
    """A method's line, with a gap where a value was not played and a ring around what Table 1 has."""
    means = [math.nan if s is None else s.mean for s in line.reached(seeds)]
    points = [(float(i), m, None) for i, m in enumerate(means)]
    figures.band(ax, points, line.label, figures.style(line.grid.method.name))
    ax.plot([line.in_table], [means[line.in_table]], **RING)


TABLE = Table(
    "rates",
    "Learning rates",
    "Table 1's methods with three learning rates of their clients: the one that it has and its neighbours.",
    LINES,
    write,
)
