"""The charts of a page: lines over rounds, bars, heat maps. Every one returns an <svg>; gaps in the data stay gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pmsfl.report.page_svg import (
    COLOURS,
    Format,
    Frame,
    Scale,
    known,
    legend,
    line,
    px,
    rect,
    shorten,
    spread,
    svg,
    text,
    text_width,
    widened,
    x_axis,
    y_axis,
)

HALF, WIDE = 560.0, 1140.0  # natural widths of charts
MARKED = 45  # points of a line up to which each has a dot
HOVERED = 240  # places on the x axis that answer to the pointer
LABEL = 26  # letters of a line's name

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Series:
    """A line. band: (x, low, high) where its uncertainty is known; colour and dash follow `place`."""

    name: str
    points: Sequence[Point]
    place: int
    band: Sequence[tuple[float, float, float]] = field(default=())
    strong: bool = False

    @property
    def css(self) -> str:
        """Its classes: after all colours are used, lines are dashed."""
        dash = f" dash{self.place // COLOURS}" if self.place >= COLOURS else ""
        return f"c{self.place % COLOURS}{dash}{' strong' if self.strong else ''}"

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None and known(y)]


@dataclass(frozen=True)
class Axis:
    """What is measured: its label, how a value is written, and its range where it is fixed or bounded."""

    label: str
    show: Format
    low: float | None = None
    high: float | None = None
    least: float = 0.0  # width of the range at least
    floor: float = 0.0
    ceiling: float = float("inf")

    def range(self, values: Sequence[float]) -> tuple[float, float]:
        """From where to where the axis runs."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        least = self.least or max(abs(high) * 0.1, 1e-9)
        low, high = widened(low, high, least, self.floor, self.ceiling)
        return (low if self.low is None else self.low, high if self.high is None else self.high)


def line_chart(
    title: str, series: Sequence[Series], y: Axis, x: Axis, *, whole: bool = True, width: float = HALF
) -> str:
    """Lines with their names at their right ends."""
    drawn = [s for s in series if s.known]
    xs = sorted({p for s in drawn for p, _ in s.known})
    values = [v for s in drawn for _, v in s.known] + [v for s in drawn for b in s.band for v in b[1:]]
    low, high = y.range(values)
    names = [f"{shorten(s.name, LABEL)} {y.show(s.known[-1][1])}" for s in drawn]
    room = max([text_width(n) for n in names], default=0.0) + 32.0
    left = max(text_width(y.show(v)) for v in (low, high)) + 14.0
    height = max(270.0, 15.0 * len(drawn) + 80.0)
    first = 1.0 if whole else min(xs, default=0.0)
    scale = Scale(
        first if x.low is None else x.low, max(xs, default=1.0) if x.high is None else x.high, left, width - room
    )
    frame = Frame(scale, Scale(low, high, height - 42.0, 30.0))
    body = [*y_axis(frame, y.label, y.show), *x_axis(frame, x.label, x.show, whole=whole)]
    body += [_band(frame, s) for s in drawn if s.band] + [_line(frame, s) for s in reversed(drawn)]
    body += _end_labels(frame, drawn, names) + _hover(frame, drawn, xs, x, y)
    what = "; ".join(f"{s.name}: {y.show(s.known[0][1])} to {y.show(s.known[-1][1])}" for s in drawn)
    return svg(title, f"{y.label} by {x.label}. {what}", width, height, body)


def _line(frame: Frame, s: Series) -> str:
    """The line, broken where values are missing; a point without neighbours is a dot."""
    pieces: list[list[str]] = [[]]
    for x, y in s.points:
        if y is None or not known(y):
            pieces.append([])
        else:
            pieces[-1].append(f"{px(frame.x(x))} {px(frame.y(y))}")
    lines = "".join(f"M{'L'.join(p)}" for p in pieces if len(p) > 1)
    alone = [p[0] for p in pieces if len(p) == 1]
    dots = [p for piece in pieces for p in piece] if len(s.known) <= MARKED else alone
    out = f'<path class="line {s.css}" d="{lines}"/>' if lines else ""
    for cx, cy in (d.split() for d in dots):
        out += f'<circle class="dot {s.css}" cx="{cx}" cy="{cy}" r="{3.2 if s.strong or len(dots) < 15 else 2.4}"/>'
    return out


def _band(frame: Frame, s: Series) -> str:
    there = [f"{px(frame.x(x))} {px(frame.y(high))}" for x, _, high in s.band]
    back = [f"{px(frame.x(x))} {px(frame.y(low))}" for x, low, _ in reversed(s.band)]
    return f'<path class="band {s.css}" d="M{"L".join(there + back)}Z"/>'


def _end_labels(frame: Frame, drawn: Sequence[Series], names: Sequence[str]) -> list[str]:
    """Each name beside the end of its line, moved apart where lines end close to each other."""
    ends = [(frame.x(s.known[-1][0]), frame.y(s.known[-1][1])) for s in drawn]
    places = spread([y for _, y in ends], 15.0, frame.top, frame.bottom)
    out = []
    for s, name, (x, y), place in zip(drawn, names, ends, places, strict=True):
        edge = frame.right
        out.append(
            f'<path class="leader {s.css}" d="M{px(x + 5)} {px(y)}L{px(edge + 6)} {px(place)}H{px(edge + 14)}"/>'
        )
        out.append(text(edge + 18.0, place + 3.8, name, "label strong" if s.strong else "label"))
    return out


def _hover(frame: Frame, drawn: Sequence[Series], xs: Sequence[float], x: Axis, y: Axis) -> list[str]:
    """Columns that tell the values at their x; a rule shows where the pointer is."""
    step = -(-len(xs) // HOVERED) if xs else 1
    shown = list(xs[::step])
    tables = [dict(s.known) for s in drawn]
    out = []
    for i, place in enumerate(shown):
        before = (frame.x(shown[i - 1]) + frame.x(place)) / 2.0 if i else frame.left
        after = (frame.x(place) + frame.x(shown[i + 1])) / 2.0 if i + 1 < len(shown) else frame.right
        rows = [f"{s.name}: {y.show(t[place])}" for s, t in zip(drawn, tables, strict=True) if place in t]
        area = rect(
            before,
            frame.top,
            after - before,
            frame.bottom - frame.top,
            "area",
            "\n".join((f"{x.label} {x.show(place)}", *rows)),
        )
        out.append(
            f'<g class="hover">{line(frame.x(place), frame.top, frame.x(place), frame.bottom, "rule")}{area}</g>'
        )
    return out


# --- bars


@dataclass(frozen=True)
class Bar:
    """One client: a bar, a mark across it to compare with, and what it is called."""

    name: str
    value: float | None
    mark: float | None
    tip: str


def column_chart(title: str, bars: Sequence[Bar], y: Axis, names: tuple[str, str], x_label: str) -> str:
    """A bar per client with a mark across it, and the mean of the bars as a rule."""
    width, height = WIDE, 280.0
    low, high = (0.0, 100.0) if y.high is None else (0.0, y.high)
    frame = Frame(Scale(0.0, 1.0, 52.0, width - 92.0), Scale(low, high, height - 42.0, 30.0))
    band = min((frame.right - frame.left) / max(len(bars), 1), 64.0)
    thick = band * 0.72 if band > 6.0 else max(band - 0.6, 0.8)
    body = y_axis(frame, y.label, y.show)
    body.append(legend(width - 420.0, 14.0, [("fill c0", "bar", names[0]), ("fill mark", "line", names[1])]))
    fits = band >= max((text_width(b.name) for b in bars), default=0.0) + 4.0
    for i, bar in enumerate(bars):
        middle = frame.left + (i + 0.5) * band
        x = middle - thick / 2.0
        inner = []
        if bar.value is not None and known(bar.value):
            inner.append(rect(x, frame.y(bar.value), thick, frame.bottom - frame.y(bar.value), "fill c0"))
        if bar.mark is not None and known(bar.mark):
            inner.append(rect(middle - band * 0.46, frame.y(bar.mark) - 1.3, band * 0.92, 2.6, "fill mark"))
        inner.append(rect(middle - band / 2.0, frame.top, band, frame.bottom - frame.top, "area", bar.tip))
        body.append(f'<g class="hover">{"".join(inner)}</g>')
        if fits:
            body.append(text(middle, frame.bottom + 15.0, bar.name, anchor="middle"))
    values = [b.value for b in bars if b.value is not None and known(b.value)]
    if values:
        mean = sum(values) / len(values)
        body.append(line(frame.left, frame.y(mean), frame.right, frame.y(mean), "mean"))
        body.append(text(frame.right + 6.0, frame.y(mean) + 3.8, f"mean {y.show(mean)}", "label"))
    body.append(line(frame.left, frame.bottom, frame.right, frame.bottom, "base"))
    body.append(text(frame.right, frame.bottom + 33.0, x_label, "axis", "end"))
    told = f"{len(values)} bars from {y.show(min(values))} to {y.show(max(values))}" if values else "no values"
    return svg(title, f"{y.label}. {told}.", width, height, body)


def stacked_rows(
    title: str, rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str], show: Format, keyed: bool = True
) -> str:
    """Horizontal bars, one per row, stacked from parts; the sum stands at the end. keyed: with a legend."""
    width = HALF
    left = max([text_width(shorten(name, LABEL)) for name, _ in rows], default=0.0)
    left = max(left, 62.0) + 12.0  # charts below each other begin at one place
    most = max([sum(values) for _, values in rows], default=0.0)
    room = max([text_width(show(sum(values))) for _, values in rows], default=0.0) + 14.0
    scale = Scale(0.0, most or 1.0, left, width - room)
    top, pitch = (28.0 if keyed else 4.0, 24.0)
    entries = [(f"fill c{i}", "bar", name) for i, name in enumerate(parts)]
    body = [legend(left, 14.0, entries)] if keyed else []
    for i, (name, values) in enumerate(rows):
        y, at = top + i * pitch, 0.0
        body.append(text(left - 8.0, y + 13.0, shorten(name, LABEL), "label", "end"))
        for k, value in enumerate(values):
            if value > 0.0:
                tip = f"{name}, {parts[k]}: {show(value)}"
                body.append(
                    rect(scale(at), y + 2.0, max(scale(at + value) - scale(at) - 1.0, 1.0), 15.0, f"fill c{k}", tip)
                )
                at += value
        body.append(text(scale(at) + 6.0, y + 13.0, show(sum(values)), "label"))
    what = "; ".join(f"{name}: {show(sum(values))}" for name, values in rows)
    return svg(title, what, width, top + len(rows) * pitch + 4.0, body)
