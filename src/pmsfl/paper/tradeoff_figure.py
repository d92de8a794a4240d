"""The frontier as a figure: a panel per federation, a labelled point per defence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pmsfl.paper import figures
from pmsfl.paper.frontier import Point, frontier, points
from pmsfl.paper.outcome import Group
from pmsfl.paper.plan import Row
from pmsfl.report.interval import mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# What a variant's name begins with: colour, marker and what the legend calls it; the first that fits.
FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    ("splitfed-dp", "#56b4e9", "s", "SplitFed-DP, ε of smashed data"),
    ("no-peek", "#8c5fbf", "^", "SplitFed with NoPeek"),
    ("splitfed@", "#e69f00", "P", "SplitFed with stages at the cut"),
    ("pm-sfl@", "#c1272d", "D", "PM-SFL with stages at the cut"),
    ("pm-sfl+", "#c1272d", "D", "PM-SFL with stages at the cut"),
    ("", "#222222", "o", "no defence, or the mask alone"),
)
PLACES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))  # of a label around its point
FAR = (9.0, 16.0, 26.0)  # points of distance to try
LONG = 0.3  # what a point of distance costs, in pixels covered for each of a label's width


def draw_frontiers(lines: list[tuple[Row, list[Group]]], recommended: str) -> Figure | None:
    """A panel per row that has points."""
    drawn = [(row, groups, points(groups)) for row, groups in lines]
    drawn = [entry for entry in drawn if entry[2]]
    if not drawn:
        return None
    figure, axes = figures.panels(len(drawn), [17] * len(drawn))
    figure.set_size_inches(7.6 * len(drawn), 6.4)
    for ax, (row, groups, found) in zip(axes, drawn, strict=True):
        _panel(ax, found, recommended)
        ax.set_xlabel(row.measured)
        figures.entitle(ax, row.label, f"{groups[0].recipe.rounds} rounds")
    figures.legend_outside(figure, axes, columns=3)
    figure.draw_without_rendering()  # only now does a point have its place
    for ax, (_, _, found) in zip(axes, drawn, strict=True):
        _label(ax, found)
    return figure


def _panel(ax: Axes, found: Sequence[Point], recommended: str) -> None:
    xs, ys = _stairs(frontier(found))
    look: dict[str, Any] = {
        "color": "#009e73",
        "linewidth": 5.0,
        "alpha": 0.25,
        "solid_joinstyle": "miter",
        "zorder": 1,
    }
    ax.plot(xs, ys, **look, label="frontier: beaten by none in both")
    for p in found:
        _, colour, marker, label = _family(p.group.variant.name)
        errors: dict[str, Any] = {"xerr": [p.accuracy.error or 0.0], "yerr": [p.ssim.error or 0.0]}
        look = {"color": colour, "marker": marker, "markersize": 7.0, "capsize": 2.0, "zorder": 3}
        ax.errorbar([p.accuracy.mean], [p.ssim.mean], **errors, **look, linestyle="none", label=label)
        if p.group.variant.name == recommended:
            ring: dict[str, Any] = {"marker": "*", "s": 420.0, "facecolors": "#ffd84d", "edgecolors": "#c1272d"}
            ax.scatter([p.accuracy.mean], [p.ssim.mean], **ring, zorder=2.5, label="recommended: preset private")
    noised = [p for p in found if p.group.variant.name.startswith("splitfed-dp")]
    ax.plot([p.accuracy.mean for p in noised], [p.ssim.mean for p in noised], color="#56b4e9", linewidth=1.0, zorder=2)
    floor = mean([s.mean for p in found if (s := p.group.summary("floor")) is not None])
    ax.axhline(floor, color="#555555", linewidth=1.0, linestyle="--", label="floor: an image from nothing")
    ax.set_ylabel("maximum SSIM over the attacks (lower is better)")
    ax.set_ylim(0.0, 1.04)
    ax.margins(x=0.12)


def _stairs(unbeaten: Sequence[Point]) -> tuple[list[float], list[float]]:
    """The frontier's corners: between two points, their accuracy is had at the SSIM of the more accurate one only."""
    xs, ys = [unbeaten[0].accuracy.mean], [unbeaten[0].ssim.mean]
    for before, after in pairwise(unbeaten):
        xs += [before.accuracy.mean, after.accuracy.mean]
        ys += [after.ssim.mean, after.ssim.mean]
    return xs, ys


def _family(name: str) -> tuple[str, str, str, str]:
    return next(f for f in FAMILIES if name.startswith(f[0]))


def _label(ax: Axes, found: Sequence[Point]) -> None:
    """Every point's name beside it, where it covers the least of points, lines and names that are there already."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    scale = figure.dpi / 72.0
    dots = [tuple(ax.transData.transform((p.accuracy.mean, p.ssim.mean))) for p in found]
    taken = [_around(x, y, 6 * scale) for x, y in dots]
    lines = [_around(x, y, 3 * scale) for line in ax.get_lines() for x, y in _along(line, 6 * scale)]
    inside = ax.get_window_extent().extents
    for p, (x, y) in sorted(zip(found, dots, strict=True), key=lambda pair: -pair[1][1]):
        text = p.group.variant.label
        wide, high = 4.4 * len(text) * scale, 9.0 * scale
        tried = [(_box(x, y, place, far * scale, wide, high), far) for far in FAR for place in PLACES]
        box, far = min(tried, key=lambda t: _covered(t[0], taken, lines, inside) + LONG * wide * t[1])
        taken.append(box)
        at = ((box[0] + box[2]) / 2 - x, (box[1] + box[3]) / 2 - y)
        line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6} if far > FAR[0] else None
        ax.annotate(
            text,
            (p.accuracy.mean, p.ssim.mean),
            (at[0] / scale, at[1] / scale),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.0,
            color=_family(p.group.variant.name)[1],
            arrowprops=line,
            zorder=4,
        )


Box = tuple[float, float, float, float]


def _around(x: float, y: float, by: float) -> Box:
    return x - by, y - by, x + by, y + by


def _along(line: Line2D, every: float) -> list[tuple[float, float]]:
    """Pixels on a line, so far from one another."""
    corners = line.get_transform().transform(line.get_xydata()).tolist()
    found = []
    for (x, y), (u, v) in pairwise(corners):
        count = 1 + int(math.hypot(u - x, v - y) / every)
        found += [(x + (u - x) * i / count, y + (v - y) * i / count) for i in range(count)]
    return found


def _box(x: float, y: float, place: tuple[int, int], far: float, wide: float, high: float) -> Box:
    """Where a label of this size would lie, in pixels: left, bottom, right, top."""
    cx = x + place[0] * (far + wide / 2) if place[0] else x
    cy = y + place[1] * (far + high / 2) if place[1] else y
    return cx - wide / 2, cy - high / 2, cx + wide / 2, cy + high / 2


def _covered(box: Box, taken: Sequence[Box], lines: Sequence[Box], inside: Sequence[float]) -> float:
    """Pixels of a box that are not free, weighed: over points and names, over lines, outside of the panel."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    there = 4.0 * sum(_overlap(box, other) for other in taken) + 0.3 * sum(_overlap(box, other) for other in lines)
    return there + 10.0 * (area - _overlap(box, (inside[0], inside[1], inside[2], inside[3])))


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
