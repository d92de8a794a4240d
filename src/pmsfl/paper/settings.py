"""Tables over one setting of PM-SFL: the same writing for the initial agreement and the personal ratio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pmsfl.paper import figures
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import Row, Variant
from pmsfl.paper.write import embed, heading, sections, write_cells, write_page
from pmsfl.report.interval import summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def values(key: str, amounts: Sequence[float]) -> tuple[Variant, ...]:
    """PM-SFL with each of these values."""
    return tuple(Variant(f"{key}={a:g}", f"{100 * a:g} %", ("method=pm-sfl", f"{key}={a:g}")) for a in amounts)


def write_setting(outcome: Outcome, key: str, axis: str, about: str, best: float, baseline: str) -> list[Path]:
    """Markdown, CSV and a figure per scale. best: the value that the paper found best."""
    top, drawn = {}, []
    for scale in outcome.scales():
        lines = outcome.played(scale)
        file = outcome.out / f"{outcome.table.name}-{scale}.png"
        made = figures.draw(file, partial(_curve, lines, key, axis, best))
        top[scale] = embed(outcome, made)
        drawn += made
    page = write_page(outcome, [*heading(outcome, [about]), *sections(outcome, baseline, top)])
    return [page, write_cells(outcome), *drawn]


def _curve(lines: list[tuple[Row, list[Group]]], key: str, axis: str, best: float) -> Figure:
    figure, axes = figures.panels(len(lines))
    for ax, (row, groups) in zip(axes, lines, strict=True):
        seeds = shared_seeds(groups)
        for figure_, label, colour in (
            ("accuracy", "each client's own model", "#c1272d"),
            ("accuracy_local_global", "global model on the same tests", "#0b5fa5"),
        ):
            by_seed = ((100.0 * float(getattr(g.recipe, key)), g.by_seed(figure_)) for g in groups if g.records)
            found = ((x, summarise([v for seed, v in of.items() if seed in seeds])) for x, of in by_seed)
            points = [(x, s.mean, s.error) for x, s in found if s is not None]
            xs, means = [p[0] for p in points], [p[1] for p in points]
            errors = [p[2] or 0.0 for p in points]
            ax.errorbar(xs, means, yerr=errors, label=label, color=colour, marker="o", markersize=4.0, capsize=3.0)
        ax.axvline(
            100.0 * best, color="#555555", linewidth=1.0, linestyle="--", label=f"best in the paper: {100 * best:g} %"
        )
        ax.set(xlabel=axis, ylabel="accuracy, %")
        figures.entitle(ax, row.label, f"{groups[0].recipe.rounds} rounds, {name_seeds(seeds)}")
    limits = [ax.get_ylim() for ax in axes]
    for ax in axes:  # the panels are there to be compared
        ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    figures.legend_outside(figure, axes, columns=3)
    return figure


def shared_seeds(groups: list[Group]) -> set[int]:
    """The seeds that every point has: a line through means of different seeds would show their differences."""
    each = [{r.seed for r in g.records} for g in groups if g.records]
    return set.intersection(*each) or set.union(*each)


def name_seeds(seeds: set[int]) -> str:
    """'seeds 0, 1'."""
    numbers = ", ".join(str(s) for s in sorted(seeds))
    return f"seed{'s' if len(seeds) > 1 else ''} {numbers}"
