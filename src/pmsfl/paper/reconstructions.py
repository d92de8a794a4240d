"""Reconstructions: what the strongest attack made of the first images, for every cell of the frontier."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pmsfl.paper import figures, tradeoff
from pmsfl.paper.attacked import AttackPlan, read_pictures
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import Row, Table
from pmsfl.paper.write import embed, markdown, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = (
    "What a curious server gets to see: the images in the first line, below them what the strongest attack on each "
    "cell of `pmsfl paper tradeoff` made of them (its first seed), last the floor, an image from a server that saw "
    "nothing. SSIM is the mean over all attacked images. Look at the pictures, too: 0.5 may be a face."
)


def write(outcome: Outcome) -> list[Path]:
    """reconstructions.md, and a picture per scale and row."""
    text, drawn = [f"# {outcome.table.title}", "", ABOUT, ""], []
    for scale in outcome.scales():
        text += [f"## Scale: {scale}", ""]
        for row, groups in tradeoff.row_lines(outcome, scale):
            file = outcome.out / f"reconstructions-{row.name}-{scale}.png"
            made = figures.draw(file, partial(_picture, row, groups, tradeoff.ATTACKS[scale]))
            text += [f"### {row.label} (`{row.name}`)", "", *embed(outcome, made), *_table(groups), ""]
            drawn += made
    if not outcome.scales():
        text += ["No cell has been attacked yet: `pmsfl paper tradeoff` does it.", ""]
    return [write_page(outcome, text), *drawn]


def _table(groups: list[Group]) -> list[str]:
    found = [(g.variant.label, g.records[0].attack) for g in groups]
    lines = [(label, f"{a['max']:.3f}", str(a["max_attack"]), f"{a['floor']:.3f}") for label, a in found]
    return markdown(["", "SSIM", "strongest attack", "floor"], lines)


def _picture(row: Row, groups: list[Group], plan: AttackPlan) -> Figure | None:
    """A line of images per variant, between the images themselves and the floor."""
    from matplotlib.figure import Figure

    shown = [(g, pictures) for g in groups if (pictures := read_pictures(g.records[0].folder, plan)) is not None]
    if not shown:
        return None
    first, floor = shown[0][1], shown[0][0].records[0].attack["floor"]
    strips = [("the images", first["truth"])]
    for g, pictures in shown:
        reached = g.records[0].attack
        strips.append((f"{g.variant.label}\n{reached['max_attack']}, {reached['max']:.2f}", pictures["best"]))
    strips.append((f"floor: saw nothing\n{floor:.2f}", first["floor"]))
    figure = Figure(figsize=(3.8 + 0.75 * len(first["truth"]), 0.5 + 0.78 * len(strips)), layout="constrained")
    axes = figure.subplots(len(strips), 1)
    for ax, (label, images) in zip(axes, strips, strict=True):
        _strip(ax, label, images)
    figure.suptitle(f"{row.label}: the strongest attack, and its SSIM")
    return figure


def _strip(ax: Axes, label: str, images: np.ndarray) -> None:
    """Images [n, C, H, W] side by side, named on their left."""
    gap = np.ones((*images.shape[:3], 1), np.float32)
    line = np.concatenate([np.concatenate((image, g), 2) for image, g in zip(images, gap, strict=True)], 2)
    shown = line.transpose(1, 2, 0) if len(line) == 3 else line[0]
    ax.imshow(shown, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    ax.set_ylabel(label, rotation=0, ha="right", va="center")


TABLE = Table(
    "reconstructions",
    "Reconstructions: what the strongest attack sees",
    "Pictures of the frontier's reconstructions, from tradeoff's logs; with --only, missing cells are played.",
    tradeoff.LINES,
    write,
    borrows="tradeoff",
    attacks=tradeoff.ATTACKS,
)
