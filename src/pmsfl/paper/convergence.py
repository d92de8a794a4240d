"""Convergence: accuracy over rounds, from the logs of Table 1's cells."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pmsfl.paper import figures, table1
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import Row, Table
from pmsfl.paper.write import embed, heading, markdown, method_of, write_csv, write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("recipe", "method", "preset", "seed", "round", "accuracy", "accuracy_global", "loss", "mask_entropy", "log")
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the rounds: what the Markdown shows


def write(outcome: Outcome) -> list[Path]:
    """convergence.md, convergence.csv (every round that was evaluated) and a figure per scale."""
    text, drawn = heading(outcome, ["Accuracy as training goes on, from the cells of `pmsfl paper table1`."]), []
    for scale in outcome.scales():
        lines = outcome.played(scale)
        made = figures.draw(outcome.out / f"convergence-{scale}.png", partial(_curves, lines))
        text += [f"## Scale: {scale}", "", *embed(outcome, made)]
        for row, groups in lines:
            text += [f"### {row.label} (`{row.name}`)", "", *_shares(groups), ""]
        drawn += made
    text.append("The paper prints this as a drawing without numbers (CIFAR-100, its Figure on convergence).")
    played = [groups for scale in outcome.scales() for _, groups in outcome.played(scale)]
    points = [point for groups in played for point in _points(groups, outcome.out)]
    curves = write_csv(outcome.out / "convergence.csv", COLUMNS, points)
    return [write_page(outcome, text), curves, *drawn]


def _points(groups: list[Group], out: Path) -> list[dict[str, object]]:
    """Every evaluated round of every seed."""
    found: list[dict[str, object]] = []
    for record, group in ((r, g) for g in groups for r in g.records):
        log = record.folder.relative_to(out).as_posix()
        about = {"recipe": record.recipe.name, "method": method_of(record, group), "preset": record.recipe.preset}
        for line in record.metrics:
            if evaluation := line.get("evaluation"):
                reached = {k: evaluation[k] for k in ("accuracy", "accuracy_global")}
                rest = {"round": line["round"], "loss": line["loss"], "mask_entropy": line["mask_entropy"]}
                found.append({**about, "seed": record.seed, **rest, **reached, "log": log})
    return found


def _shares(groups: list[Group]) -> list[str]:
    """Accuracy after a quarter, a half, … of the rounds: the last evaluation by then."""
    lines = []
    for g in groups:
        curve = g.curve(g.measure)
        by_then = ([s.mean for at, s in curve if at <= share * g.recipe.rounds] for share in SHARES)
        lines.append((f"{g.variant.label}{g.mark}", *(f"{seen[-1]:.2f}" if seen else "" for seen in by_then)))
    rounds = groups[0].recipe.rounds
    return markdown(
        [f"{groups[0].row.measured} at the last evaluation by round", *(f"{share * rounds:g}" for share in SHARES)],
        lines,
    )


def _curves(lines: list[tuple[Row, list[Group]]]) -> Figure:
    figure, axes = figures.panels(len(lines))
    for ax, (row, groups) in zip(axes, lines, strict=True):
        for g in groups:
            points = [(float(at), s.mean, s.error) for at, s in g.curve(g.measure)]
            if points:
                figures.band(ax, points, f"{table1.SHORT[g.variant.name]}{g.mark}", figures.style(g.variant.name))
        figures.count_rounds(ax)
        ax.set_ylabel(row.measured)
        figures.entitle(ax, row.label)
    figure.suptitle("Accuracy over rounds, mean over seeds (shaded: standard error)")
    figures.legend_outside(figure, axes, columns=6)
    return figure


TABLE = Table(
    "convergence",
    "Convergence: accuracy over rounds",
    "Accuracy over rounds, from Table 1's logs; with --only, missing cells are played.",
    table1.LINES,
    write,
    borrows="table1",
)
