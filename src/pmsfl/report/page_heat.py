"""Heat maps: one path per shade instead of one element per cell, so that 200 clients by 100 labels stay small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pmsfl.report.page_charts import WIDE
from pmsfl.report.page_svg import Format, px, rect, shorten, svg, text, text_width

SHADES = 10  # classes h1 to h10 of the style sheet; an empty cell has none
WRITTEN = 300  # cells up to which their values are written into them
NAMED = 28  # names an axis can carry


@dataclass(frozen=True)
class Heat:
    """values[row][column]; None or 0 is empty. `root` keeps small values visible beside large ones."""

    values: Sequence[Sequence[float | None]]
    rows: Sequence[str]
    columns: Sequence[str]
    tips: Sequence[str]  # one per column
    show: Format
    row_label: str
    column_label: str
    top: float  # the value of the darkest shade
    root: bool = False

    def shade(self, value: float | None) -> int:
        """0 for nothing, then 1 to SHADES."""
        if value is None or not math.isfinite(value) or value <= 0.0 or self.top <= 0.0:
            return 0
        share = min(value / self.top, 1.0)
        return max(math.ceil((math.sqrt(share) if self.root else share) * SHADES - 1e-9), 1)


def heat_map(title: str, heat: Heat, width: float = WIDE) -> str:
    """Rows down, columns across, a key of the shades above."""
    names = [shorten(n, 36) for n in heat.rows]
    left = max([text_width(n) for n in names], default=0.0) + 14.0
    columns, rows = max(len(heat.columns), 1), max(len(heat.rows), 1)
    cell = min((width - left - 12.0) / columns, 46.0)
    tall = min(max(420.0 / rows, 6.0), 20.0)
    top = 34.0
    body = [text(0.0, 13.0, heat.row_label, "axis"), _key(heat, width)]
    body.append(rect(left, top, cell * columns, tall * rows, "blank"))
    body += _cells(heat, left, top, cell, tall)
    every = -(-rows // NAMED) if tall < 11.0 else 1
    for i in range(0, len(names), every):
        body.append(text(left - 7.0, top + (i + 0.5) * tall + 3.8, names[i], anchor="end"))
    body += _columns(heat, left, top, cell, tall * rows)
    bottom = top + tall * rows
    body.append(text(left + cell * columns, bottom + 31.0, heat.column_label, "axis", "end"))
    about = f"{len(heat.rows)} rows ({heat.row_label}) by {len(heat.columns)} columns ({heat.column_label})"
    return svg(title, f"{about}; the darkest shade is {heat.show(heat.top)}.", width, bottom + 38.0, body)


def _cells(heat: Heat, left: float, top: float, cell: float, tall: float) -> list[str]:
    gap = 1.0 if cell > 6.0 and tall > 6.0 else 0.0
    paths: dict[int, list[str]] = {}
    numbers = []
    written = len(heat.rows) * len(heat.columns) <= WRITTEN and cell >= 18.0
    for i, row in enumerate(heat.values):
        for k, value in enumerate(row):
            if shade := heat.shade(value):
                x, y, w, h = left + k * cell, top + i * tall, cell - gap, tall - gap
                paths.setdefault(shade, []).append(f"M{px(x)} {px(y)}h{px(w)}v{px(h)}h-{px(w)}z")
                if written and value is not None:
                    css = "cell over" if shade > 0.55 * SHADES else "cell"
                    numbers.append(text(x + w / 2.0, y + h / 2.0 + 3.4, heat.show(value), css, "middle"))
    drawn = [f'<path class="heat h{shade}" d="{"".join(found)}"/>' for shade, found in sorted(paths.items())]
    return drawn + numbers


def _columns(heat: Heat, left: float, top: float, cell: float, height: float) -> list[str]:
    """Names below, and areas that answer to the pointer."""
    widest = max([text_width(n) for n in heat.columns], default=0.0) + 6.0
    least = max(math.ceil(widest / cell), 1)
    power = 10 ** max(len(str(least)) - 1, 0)
    every = next(s for s in (power, 2 * power, 5 * power, 10 * power) if s >= least)
    out = []
    for k, name in enumerate(heat.columns):
        middle = left + (k + 0.5) * cell
        if k % every == 0:
            out.append(text(middle, top + height + 15.0, name, anchor="middle"))
        out.append(f'<g class="hover">{rect(left + k * cell, top, cell, height, "area", heat.tips[k])}</g>')
    return out


def _key(heat: Heat, width: float) -> str:
    """The shades in a row, with the values at their ends."""
    end = heat.show(heat.top)
    x = width - 16.0 * SHADES - text_width(end) - 20.0
    parts = [text(x - 6.0, 13.0, "0", anchor="end")]
    parts += [rect(x + 16.0 * i, 4.0, 15.0, 10.0, f"heat h{i + 1}") for i in range(SHADES)]
    return "".join([*parts, text(x + 16.0 * SHADES + 6.0, 13.0, end)])
