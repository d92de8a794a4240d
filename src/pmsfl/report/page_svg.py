"""SVG by hand: scales, ticks, text and axes. Colours come from the page's style sheet, so light and dark both fit.

Lengths are pixels at a chart's natural width; the page scales it to its card.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

COLOURS = 8  # classes c0 to c7 of the style sheet
LETTER = 6.1  # mean width of a letter at the charts' 11 px

Format = Callable[[float], str]


def escape(text: object) -> str:
    """Text that cannot become markup, in content and in attributes alike."""
    return html.escape(str(text), quote=True)


def px(value: float) -> str:
    """A coordinate: one decimal is finer than a screen shows."""
    return f"{value:.1f}".removesuffix(".0")


def known(value: float | None) -> bool:
    """Is there a number?"""
    return value is not None and math.isfinite(value)


@dataclass(frozen=True)
class Scale:
    """Linear, from values to pixels; a range of a single value lies in the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2.0
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True)
class Frame:
    """Where a chart's data is drawn."""

    x: Scale
    y: Scale

    @property
    def left(self) -> float:
        """Pixel of the left edge."""
        return self.x.start

    @property
    def right(self) -> float:
        """Pixel of the right edge."""
        return self.x.end

    @property
    def top(self) -> float:
        """Pixel of the upper edge."""
        return self.y.end

    @property
    def bottom(self) -> float:
        """Pixel of the lower edge."""
        return self.y.start


# --- ticks


def ticks(low: float, high: float, wanted: int = 5, whole: bool = False) -> list[float]:
    """Round numbers inside [low, high], about as many as wanted: steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    rough = (high - low) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= rough * (1.0 - 1e-9))
    if whole:
        step = max(round(step), 1.0)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def widened(low: float, high: float, least: float, floor: float, ceiling: float) -> tuple[float, float]:
    """A range with air around it, at least `least` wide, that ends on ticks and stays in [floor, ceiling]."""
    missing = max(least - (high - low), 0.1 * (high - low)) / 2.0
    low, high = max(low - missing, floor), min(high + missing, ceiling)
    marks = ticks(low, high)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return max(low, floor), min(high, ceiling)


# --- pieces


def svg(title: str, description: str, width: float, height: float, body: Sequence[str]) -> str:
    """A chart that a screen reader can name and describe."""
    head = f'<svg class="chart" role="img" viewBox="0 0 {px(width)} {px(height)}" width="{px(width)}"'
    names = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    return f"{head}>{names}{''.join(body)}</svg>"


def text(x: float, y: float, content: object, css: str = "tick", anchor: str = "start", turn: float = 0.0) -> str:
    """A line of text; `turn` in degrees around its own place."""
    turned = f' transform="rotate({px(turn)} {px(x)} {px(y)})"' if turn else ""
    return f'<text class="{css}" x="{px(x)}" y="{px(y)}" text-anchor="{anchor}"{turned}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    return f'<line class="{css}" x1="{px(x1)}" y1="{px(y1)}" x2="{px(x2)}" y2="{px(y2)}"/>'


def rect(x: float, y: float, width: float, height: float, css: str, tip: str = "") -> str:
    """A rectangle, with a text for the pointer that rests on it."""
    shape = f'<rect class="{css}" x="{px(x)}" y="{px(y)}" width="{px(max(width, 0.0))}" height="{px(max(height, 0.0))}"'
    return f"{shape}><title>{escape(tip)}</title></rect>" if tip else f"{shape}/>"


def text_width(content: str) -> float:
    """About how wide a text is, without a font to ask."""
    return LETTER * len(content)


def shorten(content: str, letters: int) -> str:
    """Cut in the middle: layers and owners differ at both ends."""
    if len(content) <= letters:
        return content
    head = (letters - 1) // 2
    return f"{content[:head]}…{content[len(content) - (letters - 1 - head) :]}"


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places apart until neighbours are `gap` from each other, near to where they were and inside [low, high]."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [min(max(places[i], low), high) for i in order]
    for k in range(1, len(moved)):
        moved[k] = max(moved[k], moved[k - 1] + gap)
    limit = high
    for k in reversed(range(len(moved))):  # back up what was pushed over the edge
        moved[k] = min(moved[k], limit)
        limit = moved[k] - gap
    out = [0.0] * len(places)
    for k, i in enumerate(order):
        out[i] = moved[k]
    return out


def y_axis(frame: Frame, label: str, show: Format, wanted: int = 5, marks: Sequence[float] | None = None) -> list[str]:
    """Grid lines with their values at the left and the axis' label above."""
    found = ticks(frame.y.low, frame.y.high, wanted) if marks is None else marks
    parts = [text(0.0, frame.top - 12.0, label, "axis")]
    for value in found:
        y = frame.y(value)
        parts += [
            line(frame.left, y, frame.right, y, "grid"),
            text(frame.left - 7.0, y + 3.8, show(value), anchor="end"),
        ]
    return parts


def x_axis(frame: Frame, label: str, show: Format, wanted: int = 8, whole: bool = True) -> list[str]:
    """The base line with ticks below and the axis' label in the lower right corner."""
    marks = ticks(frame.x.low, frame.x.high, wanted, whole)
    if whole and frame.x.low == 1.0 and marks and marks[0] != 1.0:
        marks = [1.0, *marks]  # rounds begin at 1, and steps of 5 or 10 would not say so
    parts = [line(frame.left, frame.bottom, frame.right, frame.bottom, "base")]
    taken = -math.inf
    for value in marks:
        x, content = frame.x(value), show(value)
        if x - text_width(content) / 2.0 < taken:
            continue
        taken = x + text_width(content) / 2.0 + 6.0
        parts += [
            line(x, frame.bottom, x, frame.bottom + 4.0, "base"),
            text(x, frame.bottom + 17.0, content, anchor="middle"),
        ]
    parts.append(text(frame.right, frame.bottom + 33.0, label, "axis", "end"))
    return parts


def legend(x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> str:
    """Entries (class, mark, name) in a row; a mark is `bar` or `line`."""
    parts = []
    for css, mark, name in entries:
        height, top = (10.0, y - 9.0) if mark == "bar" else (3.0, y - 5.5)
        parts += [rect(x, top, 12.0, height, css), text(x + 17.0, y, name, "label")]
        x += 17.0 + text_width(name) + 18.0
    return "".join(parts)
