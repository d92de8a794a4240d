"""Table 1: test accuracy of every method on every federation, with the controls the paper does not have."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmsfl.paper import figures, published, rows
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import CLIENTS, Row, Table, Variant
from pmsfl.paper.write import embed, heading, markdown, reached, sections, write_cells, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _method(name: str, label: str) -> Variant:
    return Variant(name, label, (f"method={name}",))


def _not_quick(row: Row) -> Row:
    """The row for those who have more than a quarter of an hour."""
    return replace(row, scales={scale: changes for scale, changes in row.scales.items() if scale != "quick"})


standalone = _method("standalone", "Standalone")
splitfed = _method("splitfed", "SplitFed")
own_norms = Variant("splitfed-own-norms", "SplitFed, norms not merged", ("method=splitfed", "norms=local"))
merging_all = Variant("splitfed-merge-all", "SplitFed, server's copy merged", ("method=splitfed", "merge=all"))
frozen_own_norms = Variant(
    "frozen-mask-own-norms", "control: frozen random mask, norms not merged", ("method=frozen-mask", "norms=local")
)
splitfed_dp = _method("splitfed-dp", "SplitFed-DP, ε = 0.1")
splitfed_pm = _method("splitfed-pm", "SplitFed-PM")
lg_fedavg = _method("lg-fedavg", "LG-FedAvg")
depthfl = _method("depthfl", "DepthFL")
pm_sfl = _method("pm-sfl", "PM-SFL")
single_masks = Variant(rows.SINGLE, "PM-SFL, single masks", ("method=pm-sfl", *rows.ONE_MASK))
pm_sfl_paper = Variant("pm-sfl@paper", "PM-SFL, preset paper", ("method=pm-sfl", "preset=paper"))
private = Variant("pm-sfl@private", "PM-SFL, private", ("method=pm-sfl", "preset=private"))
uncompensated = Variant("pm-sfl-uncompensated", "PM-SFL, no compensation", ("method=pm-sfl", "compensation=false"))
CONTROLS = (
    _method("frozen-mask", "control: frozen random mask"),
    _method("dense-frozen", "control: frozen weights, no mask"),
    _method("threshold-mask", "control: threshold mask"),
)

GLOBAL = (standalone, splitfed, splitfed_dp, splitfed_pm, pm_sfl, pm_sfl_paper, *CONTROLS)
PERSONAL = (standalone, splitfed, splitfed_dp, splitfed_pm, lg_fedavg, pm_sfl, *CONTROLS)
WITH_SINGLE = (*PERSONAL[:6], single_masks, *PERSONAL[6:])
MIXED = (standalone, splitfed, splitfed_dp, splitfed_pm, depthfl, pm_sfl, uncompensated, *CONTROLS)


def _with_own_norms(variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """With what SplitFed and a frozen mask are worth when clients keep a few numbers to themselves."""
    return (*variants[:2], own_norms, *variants[2:], frozen_own_norms)


LINES = (
    (rows.demo, (*PERSONAL[:6], pm_sfl_paper, *CONTROLS)),
    (rows.demo_depths, MIXED),
    (rows.cifar100, (*GLOBAL[:5], single_masks, *GLOBAL[5:])),
    (rows.cifar100_merged, (splitfed, pm_sfl, private, CONTROLS[0])),
    (rows.femnist, PERSONAL),
    (_not_quick(rows.femnist_own), _with_own_norms(PERSONAL)),
    (rows.unipen, PERSONAL),
    (_not_quick(rows.unipen_own), _with_own_norms(WITH_SINGLE)),
    (rows.unipen_every_own, _with_own_norms(PERSONAL)),
    (rows.mmhar, _with_own_norms(WITH_SINGLE)),
    (rows.sonichar, _with_own_norms(WITH_SINGLE)),
    (rows.radar, _with_own_norms(WITH_SINGLE)),
    (rows.cifar100_depths, (*MIXED[:2], merging_all, *MIXED[2:6], single_masks, *MIXED[6:])),
    (rows.femnist_depths, MIXED),
    (_not_quick(rows.femnist_depths_own), (*MIXED, lg_fedavg)),
    (rows.unipen_depths, MIXED),
    (_not_quick(rows.unipen_depths_own), (*MIXED[:6], single_masks, *MIXED[6:], lg_fedavg)),
    (rows.unipen_every_depths_own, (*MIXED, lg_fedavg)),
)
SHORT = {
    "standalone": "Standalone",
    "splitfed": "SplitFed",
    "splitfed-dp": "SplitFed-DP",
    "splitfed-pm": "SplitFed-PM",
    "lg-fedavg": "LG-FedAvg",
    "depthfl": "DepthFL",
    "pm-sfl": "PM-SFL",
    "pm-sfl-single": "single masks",
    "pm-sfl-uncompensated": "no compensation",
    "pm-sfl@paper": "preset paper",
    "pm-sfl@private": "preset private",
    "splitfed-own-norms": "SplitFed, own norms",
    "splitfed-merge-all": "SplitFed, merge all",
    "frozen-mask-own-norms": "frozen mask, own norms",
    "frozen-mask": "frozen mask",
    "dense-frozen": "frozen, no mask",
    "threshold-mask": "threshold mask",
}


LEAST_RANGE = 10.0  # points of accuracy that a panel shows at least: half a point is not to look like a gulf
PAPERS_MARK: dict[str, Any] = {"facecolors": "none", "edgecolors": "#222222", "s": 36.0, "marker": "D", "zorder": 3}


def write(outcome: Outcome) -> list[Path]:
    """table1.md, table1.csv and its figures."""
    top, drawn = {}, []
    for scale in outcome.scales():
        lines = outcome.played(scale)
        made = figures.draw(outcome.out / f"table1-{scale}.png", partial(_accuracies, lines))
        made += figures.draw(outcome.out / f"entropy-{scale}.png", partial(_entropies, lines))
        top[scale] = [*_matrix(outcome, scale), "", *embed(outcome, made)]
        drawn += made
    about = ["Every method on every federation, each row with one budget for all of its methods, and three controls."]
    page = write_page(outcome, [*heading(outcome, about), *sections(outcome, "pm-sfl", top)])
    return [page, write_cells(outcome), *drawn]


def _matrix(outcome: Outcome, scale: str) -> list[str]:
    """The paper's layout: a line of ours and a line of theirs for every federation that was played."""
    found = []
    for row, groups in outcome.played(scale):
        by_name = {g.variant.name: g for g in groups}
        ours = (reached(by_name[v]) if v in by_name else "" for v in SHORT)
        found.append((f"{row.label}: ours{_which(row)}", *ours))
        if row.published:
            theirs = (None if "@" in v else published.accuracy(row.published, v) for v in SHORT)
            what = "**paper**, other data" if row.remark else "**paper**"
            found.append((f"{row.label}: {what}", *("" if t is None else f"{t:.2f}" for t in theirs)))
    shown = [i for i in range(1 + len(SHORT)) if i == 0 or any(line[i] for line in found)]
    narrow = ([line[i] for i in shown] for line in (("", *SHORT.values()), *found))
    return [*markdown(next(narrow), narrow), *_not_played(outcome, scale)]


def _not_played(outcome: Outcome, scale: str) -> list[str]:
    """A line that names the federations of this scale without a finished cell."""
    played = [row for row, _ in outcome.played(scale)]
    names = [f"`{row.name}`" for row, _ in outcome.lines(scale) if row not in played]
    return ["", f"Not played at this scale: {', '.join(names)}."] if names else []


def _accuracies(lines: list[tuple[Row, list[Group]]]) -> Figure:
    """A panel per federation: ours with its standard error, the paper's as diamonds."""
    lines = [(row, [g for g in groups if _has_figure(row, g)]) for row, groups in lines]
    figure, axes = figures.panels(len(lines), [len(groups) for _, groups in lines])
    for ax, (row, groups) in zip(axes, lines, strict=True):
        _accuracy_panel(ax, row, groups)
    axes[0].errorbar([], [], xerr=[], fmt="o", color="#4d4d4d", capsize=3.0, label="ours ± standard error over seeds")
    if any(row.published for row, _ in lines):
        axes[0].scatter([], [], **PAPERS_MARK, label="paper, at its own budget")
    figure.suptitle("Test accuracy after the last round")
    figures.legend_outside(figure, axes)
    return figure


def _has_figure(row: Row, group: Group) -> bool:
    """Is there anything to draw, ours or the paper's?"""
    return bool(group.records) or published.accuracy(row.published, group.variant.name) is not None


def _accuracy_panel(ax: Axes, row: Row, groups: list[Group]) -> None:
    for place, g in enumerate(groups):
        ours, theirs = g.accuracy, published.accuracy(row.published, g.variant.name)
        if ours is not None:
            look = {"color": figures.style(g.variant.name)["color"], "capsize": 3.0, "markersize": 6.0}
            ax.errorbar([ours.mean], [place], xerr=[ours.error or 0.0], fmt="o", **look)
        if theirs is not None and "@" not in g.variant.name:
            ax.scatter([theirs], [place], **PAPERS_MARK)
    figures.name_lines(ax, [f"{SHORT[g.variant.name]}{g.mark}" for g in groups])
    figures.widen(ax, LEAST_RANGE)
    ax.set_xlabel(row.measured)
    figures.entitle(ax, row.label, f"{groups[0].recipe.rounds} rounds{_other_data(row)}")


def _which(row: Row) -> str:
    return "" if row.measure == CLIENTS else ", global model"


def _other_data(row: Row) -> str:
    return "; the paper's figures are of other data" if row.published and row.remark else ""


def _entropies(lines: list[tuple[Row, list[Group]]]) -> Figure | None:
    """Mask entropy over the rounds, where the paper's settings were played: of single masks, a mask's own chance."""
    wanted = [
        (row, [g for g in groups if g.variant in (pm_sfl, single_masks, pm_sfl_paper) and g.records])
        for row, groups in lines
    ]
    wanted = [(row, groups) for row, groups in wanted if any(g.variant == pm_sfl_paper for g in groups)]
    if not wanted:
        return None
    figure, axes = figures.panels(len(wanted))
    for ax, (row, groups) in zip(axes, wanted, strict=True):
        for g in groups:
            points = [(float(at), s.mean, s.error) for at, s in g.curve("mask_entropy")]
            several = f": what rounding a mean of {g.recipe.forward_masks} masks leaves"
            label = g.variant.label + (several if g.recipe.forward_masks > 1 else "")
            figures.band(ax, points, label, figures.style(g.variant.name))
        ax.axhline(1.0, color="#999999", linewidth=0.8, linestyle=":")
        figures.count_rounds(ax)
        ax.set(ylim=(0.0, 1.05), ylabel="mean mask entropy, bit")
        figures.entitle(ax, row.label)
    figures.legend_outside(figure, axes, columns=1)
    return figure


TABLE = Table(
    "table1",
    "Table 1: test accuracy",
    "Test accuracy of every method on every federation, beside the paper's.",
    LINES,
    write,
)
