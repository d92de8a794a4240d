"""Labels by client as a picture. Imports matplotlib: import this module only where a picture is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pmsfl.data.source import Ints

WRITTEN = 300  # cells up to which counts are written into them
TICKS = 32  # labels an axis can carry


def draw_labels(counts: Ints, depths: Sequence[int], names: Sequence[str], title: str, out: Path) -> None:
    """counts [clients, classes] as a heat map, training samples per client above it, depths below if mixed."""
    clients, classes = counts.shape
    mixed = len(set(depths)) > 1
    heights = [1.1, max(0.24 * min(classes, 30), 2.4), *([0.22] if mixed else [])]
    width = min(max(0.32 * clients, 6.0), 14.0) + 1.8
    figure = Figure(figsize=(width, sum(heights) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the machine
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    heat = figure.add_subplot(grid[1])
    bars = figure.add_subplot(grid[0], sharex=heat)
    bottom = figure.add_subplot(grid[2], sharex=heat) if mixed else heat
    _draw_heat(figure, heat, counts, names)
    _draw_bars(bars, counts.sum(1))
    if mixed:
        heat.tick_params(labelbottom=False)
        _draw_depths(bottom, depths)
    _client_axis(bottom, clients)
    figure.suptitle(f"{title}: who holds what ({clients} clients, {classes} classes)", fontsize=12)
    figure.savefig(out, dpi=150)


def _draw_heat(figure: Figure, axes: Axes, counts: Ints, names: Sequence[str]) -> None:
    shown = np.ma.masked_equal(counts.T, 0)  # nothing is white, one sample is not
    colours = colormaps["viridis_r"].with_extremes(bad="white")
    # The square root keeps small holdings visible beside large ones.
    norm = PowerNorm(0.5, vmin=0, vmax=max(int(counts.max()), 1))
    image = axes.imshow(shown, aspect="auto", interpolation="nearest", cmap=colours, norm=norm)
    figure.colorbar(image, ax=axes, label="training samples", pad=0.01, fraction=0.03)
    if counts.size <= WRITTEN:
        for (client, label), count in np.ndenumerate(counts):
            if count:
                tone = "white" if count > 0.3 * counts.max() else "black"
                axes.text(client, label, str(count), ha="center", va="center", fontsize=7, color=tone)
    step = -(-len(names) // TICKS)
    axes.set_yticks(range(0, len(names), step), [str(n) for n in names[::step]], fontsize=8)
    axes.set_ylabel("label")


def _draw_bars(axes: Axes, sizes: Ints) -> None:
    axes.bar(range(len(sizes)), sizes, width=0.8 if len(sizes) <= 60 else 1.0, color="#5b7a8c")
    axes.set_ylabel("samples", fontsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(axis="y", labelsize=7)
    axes.tick_params(axis="x", labelbottom=False, bottom=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_depths(axes: Axes, depths: Sequence[int]) -> None:
    """A strip of greys, deeper is darker, with the depth written where there is room."""
    deepest = max(depths)
    greys = ListedColormap([str(0.92 - 0.6 * d / deepest) for d in range(deepest + 1)])
    axes.imshow(np.array([depths]), aspect="auto", cmap=greys, vmin=0, vmax=deepest, interpolation="nearest")
    axes.set_yticks([0], [f"depth 1-{deepest}"], fontsize=8)
    if len(depths) <= 2 * TICKS:
        for client, depth in enumerate(depths):
            tone = "white" if depth > 0.6 * deepest else "black"
            axes.text(client, 0, str(depth), ha="center", va="center", fontsize=7, color=tone)


def _client_axis(axes: Axes, clients: int) -> None:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, clients) if clients <= TICKS * s)
    axes.set_xticks(range(0, clients, step), [str(k) for k in range(0, clients, step)], fontsize=8)
    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_xlabel("client")
