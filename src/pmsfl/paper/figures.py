"""Figures, by matplotlib where it is installed; without it they are left out with a note."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmsfl.report.console import note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One colour per method in every figure; the controls are grey.
COLOURS = {
    "pm-sfl": "#c1272d",
    "splitfed": "#0b5fa5",
    "splitfed-own-norms": "#7fb2de",
    "splitfed-merge-all": "#7fb2de",
    "splitfed-dp": "#56b4e9",
    "splitfed-pm": "#e69f00",
    "standalone": "#009e73",
    "lg-fedavg": "#8c5fbf",
    "depthfl": "#d3579b",
    "pm-sfl-single": "#e58a8d",
    "frozen-mask": "#4d4d4d",
    "frozen-mask-own-norms": "#6b6b6b",
    "dense-frozen": "#8a8a8a",
    "threshold-mask": "#b5b5b5",
}
DASHES = {
    "pm-sfl@paper": "--",
    "pm-sfl@private": "-.",
    "pm-sfl-uncompensated": ":",
    "dense-frozen": "--",
    "threshold-mask": ":",
}
PALETTE = ("#0b5fa5", "#e69f00", "#009e73", "#c1272d", "#56b4e9", "#8c5fbf", "#4d4d4d", "#d9a7c7", "#7a9a01")
DPI = 150
TITLE_WIDTH = 54  # letters above a panel


def style(variant: str) -> dict[str, Any]:
    """Colour and line of a variant."""
    plain = variant.partition("@")[0].removesuffix("-uncompensated")
    return {"color": COLOURS.get(plain, "#4d4d4d"), "linestyle": DASHES.get(variant, "-")}


def panels(count: int, entries: Sequence[int] = ()) -> tuple[Figure, list[Axes]]:
    """A figure with that many panels in two or three columns. entries: lines of text in each, which set its height."""
    from matplotlib.figure import Figure

    across = count if count < 4 else 2 if count == 4 else 3
    down = math.ceil(count / across)
    highs = [1.0 + 0.27 * max(entries[i * across : (i + 1) * across]) if entries else 3.4 for i in range(down)]
    figure = Figure(figsize=(5.2 * max(across, 1.3), sum(highs) + 0.6), layout="constrained")
    grid = figure.add_gridspec(down, across, height_ratios=highs)
    axes = [figure.add_subplot(grid[i // across, i % across]) for i in range(count)]
    for ax in axes:
        ax.grid(color="#e4e4e4", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw(path: Path, make: Callable[[], Figure | None]) -> list[Path]:
    """[path] with the figure in it; [] where there is nothing to draw or no matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        note(f"{path.name} is left out: matplotlib is not installed (pip install matplotlib)")
        return []
    with mpl.rc_context({"font.size": 9.0, "axes.titlesize": 10.0, "svg.hashsalt": path.name}):
        figure = make()
        if figure is None:
            return []
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        figure.savefig(temporary, dpi=DPI, format="png", metadata={"Software": "pmsfl"})
        temporary.replace(path)
    return [path]


def band(ax: Axes, points: Sequence[tuple[float, float, float | None]], label: str, look: dict[str, Any]) -> None:
    """A line through (x, mean, error) with its standard error shaded."""
    xs, means = [p[0] for p in points], [p[1] for p in points]
    few = len(points) < 25
    ax.plot(xs, means, label=label, linewidth=1.6, marker="o" if few else None, markersize=3.0, **look)
    if any(p[2] for p in points):
        low = [m - (e or 0.0) for _, m, e in points]
        high = [m + (e or 0.0) for _, m, e in points]
        ax.fill_between(xs, low, high, color=look["color"], alpha=0.15, linewidth=0.0)


def count_rounds(ax: Axes) -> None:
    """A horizontal axis of rounds: whole numbers, from 0."""
    from matplotlib.ticker import MaxNLocator

    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("round")


def name_lines(ax: Axes, labels: Sequence[str]) -> None:
    """One horizontal line per label, from the top down."""
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)


def entitle(ax: Axes, label: str, below: str = "") -> None:
    """A panel's title, broken where it would not fit above the panel, and what stands below it."""
    lines = textwrap.wrap(label, TITLE_WIDTH) + textwrap.wrap(below, TITLE_WIDTH)
    ax.set_title("\n".join(lines))


def widen(ax: Axes, least: float) -> None:
    """A horizontal axis of at least that length around what it shows."""
    low, high = ax.get_xlim()
    short = max(least - (high - low), 0.0)
    ax.set_xlim(low - short / 2, high + short / 2)


def legend_outside(figure: Figure, axes: Sequence[Axes], columns: int = 5) -> None:
    """One legend for all panels, below them, each label once."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns, frameon=False)
