"""Example maps as a picture. Imports matplotlib: import this module only where a picture is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pmsfl.data.maps import SECONDS
from pmsfl.data.sensors import SensorSet

SUBJECTS = 2  # rows per sensor


def draw_maps(sets: Sequence[SensorSet], out: Path, classes: Sequence[str] = ()) -> None:
    """One column per activity (all unless named), for each set its first subjects' first takes, time to the right."""
    names = tuple(classes) or sets[0].class_names
    people = [sorted(set(s.owner.tolist()))[:SUBJECTS] for s in sets]
    rows = [(s, person) for s, found in zip(sets, people, strict=True) for person in found]
    figure = Figure(figsize=(1.1 * len(names) + 1.0, 1.1 * len(rows) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the machine
    axes = figure.subplots(len(rows), len(names), squeeze=False)
    for i, (made, person) in enumerate(rows):
        for j, name in enumerate(names):
            _draw_one(axes[i, j], made, person, name)
            axes[i, j].set_title(name if i == 0 else "", fontsize=8)
        axes[i, 0].set_ylabel(f"{made.sensor}\n{person}", fontsize=7)
    label = "simulated" if any(s.simulated for s in sets) else "recorded"
    figure.supxlabel(
        f"{SECONDS:g} s to the right; Doppler up: towards the sensor above the middle ({label})", fontsize=8
    )
    figure.savefig(out, dpi=90)


def _draw_one(axes: Axes, made: SensorSet, person: str, name: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    chosen = np.flatnonzero((made.owner == person) & (made.y == made.class_names.index(name)))
    if len(chosen):
        image = made.x[chosen[0]].T
        axes.imshow(image, origin="lower", aspect="auto", cmap="magma", vmin=0, vmax=255, interpolation="nearest")
