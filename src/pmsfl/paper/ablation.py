"""Ablations: one part of PM-SFL changed at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pmsfl.paper import figures, rows
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import Row, Table, Variant
from pmsfl.paper.table1 import pm_sfl, single_masks, uncompensated
from pmsfl.paper.write import embed, heading, sections, write_cells, write_page
from pmsfl.report.compare import paired

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _changed(label: str, change: str, *more: str) -> Variant:
    return Variant(change, label, ("method=pm-sfl", change, *more))


WHO = (
    _changed("personal set: plain top-r", "personal_order=magnitude"),
    _changed("personal set: random", "personal_order=random"),
    _changed("personal set: none", "personal_ratio=0"),
)
SAMPLED = _changed("aggregate: sampled", "aggregate=sampled")
DAMPED = _changed("aggregate: damped", "aggregate=damped")
HOW = (
    # FedPM's prior is forgotten when all clients had their turn; forgotten every round, `beta` is `sampled`.
    _changed("aggregate: beta, 10 rounds", "aggregate=beta", "beta_reset=10"),
    _changed("estimator: paper's", "estimator=paper"),
)
MASKS = (
    _changed("a mask's 0 drops its weight", "mask_act=drop"),
    _changed("forward passes under one mask", "forward_masks=1"),
    _changed("uploads of one mask", "upload_masks=1"),
    _changed("uploads drawn independently", "upload_draw=independent"),
    _changed("Kaiming's weights under the masks", "frozen=kaiming"),
)


def _rates(*values: str) -> tuple[Variant, ...]:
    return tuple(_changed(f"score learning rate: {lr}", f"lr_score={lr}") for lr in values)


LINES = (
    (rows.demo, (pm_sfl, *WHO, SAMPLED, *HOW, *_rates("0.001", "0.01", "0.03", "0.3"))),
    (rows.demo_depths, (pm_sfl, uncompensated)),
    (rows.cifar100, (pm_sfl, single_masks, DAMPED, *HOW, *MASKS, *_rates("0.001", "0.003", "0.03", "0.1"))),
    (rows.femnist_own, (pm_sfl, *WHO)),
    (
        rows.unipen_own,
        (pm_sfl, single_masks, *WHO, SAMPLED, DAMPED, *HOW, *MASKS, *_rates("0.001", "0.01", "0.03", "0.3")),
    ),
    (rows.cifar100_depths, (pm_sfl, uncompensated)),
    (rows.femnist_depths, (pm_sfl, uncompensated)),
    (rows.unipen_depths, (pm_sfl, uncompensated)),
)
ABOUT = (
    "PM-SFL as its row has it (disagree-first personal set, compensation, plain estimator; forward passes under the "
    "mean of 15 masks that flip the signs of weights of one size, uploads of the mean of 15 masks, drawn evenly, all "
    "coming to rest in the last quarter; score learning rate 0.1 at scale reduced; in the demo single masks that drop "
    "weights and a damped mean), and with one of these changed. The paper has no such table."
)


def write(outcome: Outcome) -> list[Path]:
    """ablation.md, ablation.csv and a figure per scale."""
    top, drawn = {}, []
    for scale in outcome.scales():
        lines = outcome.played(scale)
        made = figures.draw(outcome.out / f"ablation-{scale}.png", partial(_differences, lines))
        top[scale] = embed(outcome, made)
        drawn += made
    page = write_page(outcome, [*heading(outcome, [ABOUT]), *sections(outcome, "pm-sfl", top)])
    return [page, write_cells(outcome), *drawn]


def _differences(lines: list[tuple[Row, list[Group]]]) -> Figure | None:
    """A panel per federation: each change's accuracy minus the recipe's, paired by seed."""
    drawn = [(row, _points(groups), groups) for row, groups in lines]
    drawn = [entry for entry in drawn if entry[1]]
    if not drawn:
        return None
    figure, axes = figures.panels(len(drawn), [len(points) for _, points, _ in drawn])
    for ax, (row, points, groups) in zip(axes, drawn, strict=True):
        for place, (_, mean, error) in enumerate(points):
            colour = "#009e73" if mean > 0 else "#c1272d"
            ax.errorbar([mean], [place], xerr=[error or 0.0], fmt="o", color=colour, capsize=3.0)
        ax.axvline(0.0, color="#555555", linewidth=1.0)
        figures.name_lines(ax, [label for label, _, _ in points])
        ax.set_xlabel("accuracy minus PM-SFL's, points")
        figures.entitle(ax, row.label, f"{groups[0].recipe.rounds} rounds")
    figure.suptitle("One part of PM-SFL changed (paired by seed, ± standard error)")
    return figure


def _points(groups: list[Group]) -> list[tuple[str, float, float | None]]:
    measure = groups[0].row.measure
    base = groups[0].by_seed(measure)
    found = ((g.variant.label, paired(base, g.by_seed(measure))) for g in groups[1:])
    return [(label, d.mean, d.error) for label, d in found if d.mean is not None]


TABLE = Table(
    "ablation",
    "Ablations of PM-SFL",
    "PM-SFL with one part changed: personal set, compensation, aggregation, estimator, score learning rate.",
    LINES,
    write,
)
