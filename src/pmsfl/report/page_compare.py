"""Several runs on one page: curves over each other, means, differences paired by seed, bytes, entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pmsfl._version import __version__
from pmsfl.report.compare import Difference, Group, Record
from pmsfl.report.comparison import difference_rows, figure_rows
from pmsfl.report.console import human_bytes
from pmsfl.report.interval import summarise
from pmsfl.report.page_charts import Axis, Series, line_chart, stacked_rows
from pmsfl.report.page_parts import ACCURACY, ENTROPY, LOSS, Metrics, plural, rounds_axis
from pmsfl.report.page_style import card, document, grid, table
from pmsfl.report.page_svg import escape, known
from pmsfl.rundir import RunDirectory, write_whole

SHOWN = 24  # groups a chart can hold: eight colours, plain and dashed

Pick = Callable[[dict[str, Any]], float | None]  # a figure of one line of metrics


def write_comparison(
    page: Path, groups: Sequence[Group], gaps: Sequence[Difference], found: Sequence[tuple[Path, Record]]
) -> None:
    """Write the page; `found` says where the groups' runs lie."""
    place = {id(record): path for path, record in found}
    curves = [[RunDirectory(place[id(r)]).metrics() for r in g.records] for g in groups]
    write_whole(page, render(groups, gaps, curves))


def render(groups: Sequence[Group], gaps: Sequence[Difference], curves: Sequence[Sequence[Metrics]]) -> str:
    """The page's HTML; curves hold the metrics of every run of every group."""
    names = short_names(groups)
    runs = sum(map(len, curves))
    about = f"{plural(runs, 'run')} in {plural(len(groups), 'group')}; a group differs by nothing but its seed."
    headers, rows = figure_rows(groups)
    first = headers.index("seeds")
    cells = table(headers, rows, range(first, len(headers)))
    body = [f'<header><h1>Comparison</h1><p class="soft">{escape(about)}</p></header>', "<h2>Figures</h2>"]
    said = "Mean ± standard error over seeds; accuracy in percent."
    cards = [card("What was reached", said, cells, "figures", wide=True)]
    if len(groups) > 1:
        told = f"Accuracy minus that of {names[0]}, paired by seed; a verdict takes three common seeds."
        content = table(*difference_rows(groups, gaps), numbers=(1, 2, 3))
        cards.append(card("Differences", told, content, "differences", wide=True))
    body += [grid(cards), "<h2>Over rounds</h2>", grid(_charts(names, curves)), "<h2>Bytes</h2>"]
    body.append(grid([_cost_card(names, curves), _bytes_card(names, curves)]))
    body.append(f"<footer>Written by pmsfl {escape(__version__)}.</footer>")
    return document("Comparison of runs", body)


def short_names(groups: Sequence[Group]) -> list[str]:
    """What tells the groups apart: the parts of their labels that differ, and their settings."""
    varying = [i for i in (1, 0, 2) if len({g.label[i] for g in groups}) > 1] or [1]
    return [", ".join(filter(None, (*(g.label[i] for i in varying), g.extra))) for g in groups]


# --- charts


def _charts(names: Sequence[str], curves: Sequence[Sequence[Metrics]]) -> list[str]:
    rounds = max((m["round"] for runs in curves for metrics in runs for m in metrics), default=1)
    wanted: list[tuple[str, str, str, Pick, Axis]] = [
        ("Accuracy, own θ", "accuracy", "Mean of clients, each with its own θ.", _evaluated("accuracy"), ACCURACY),
        ("Accuracy, global model", "global", "On the global test.", _evaluated("accuracy_global"), ACCURACY),
        ("Training loss", "loss", "Mean over the samples of a round.", lambda m: m.get("loss"), LOSS),
        ("Mask entropy", "entropy", "Mean over all coordinates.", lambda m: m.get("mask_entropy"), ENTROPY),
    ]
    cards = []
    for title, name, about, pick, axis in wanted:
        series = [mean_curve(names[i], i, runs, pick) for i, runs in enumerate(curves[:SHOWN])]
        if not any(s.known for s in series):
            cards.append(card(title, "None of these runs has any.", "", name))
            continue
        if any(s.band for s in series):
            about += " Bands: ± standard error over seeds."
        missing = [s.name for s in series if not s.known]
        about += f" Without: {', '.join(missing)}." if missing else ""
        cards.append(card(f"{title} over rounds", about, line_chart(title, series, axis, rounds_axis(rounds)), name))
    return cards


def _evaluated(key: str) -> Pick:
    def pick(line: dict[str, Any]) -> float | None:
        value: float | None = line.get("evaluation", {}).get(key)
        return value

    return pick


def mean_curve(name: str, place: int, runs: Sequence[Metrics], pick: Pick) -> Series:
    """Mean over runs of a figure at every round where one has it, with its standard error as a band."""
    values: dict[int, list[float]] = {}
    for metrics in runs:
        for m in metrics:
            value = pick(m)
            if value is not None and known(value):
                values.setdefault(m["round"], []).append(value)
    points, band = [], []
    for t in sorted(values):
        found = summarise(values[t])
        if found is not None:
            points.append((float(t), found.mean))
            if found.error is not None:
                band.append((float(t), found.mean - found.error, found.mean + found.error))
    return Series(name, points, place, band)


# --- bytes


def _cost_card(names: Sequence[str], curves: Sequence[Sequence[Metrics]]) -> str:
    """Accuracy by what it cost to get there."""
    title = "Accuracy by bytes on the wire"
    series = []
    for i, runs in enumerate(curves[:SHOWN]):
        accuracy = dict(mean_curve("", i, runs, _evaluated("accuracy")).known)
        spent = [_cumulative(metrics) for metrics in runs]
        points = []
        for t, value in accuracy.items():
            sizes = [s[t] for s in spent if t in s]
            points.append((sum(sizes) / len(sizes), value))
        series.append(Series(names[i], points, i))
    if not any(s.known for s in series):
        return card(title, "No run was evaluated.", "", "cost")
    axis = Axis("bytes sent so far", human_bytes, low=0.0)
    about = "Mean of clients, own θ, against all bytes sent up to that round in both directions."
    return card(title, about, line_chart(title, series, ACCURACY, axis, whole=False), "cost")


def _cumulative(metrics: Metrics) -> dict[float, float]:
    total, out = 0.0, {}
    for m in metrics:
        total += m["bytes"]["total"]
        out[float(m["round"])] = total
    return out


def _bytes_card(names: Sequence[str], curves: Sequence[Sequence[Metrics]]) -> str:
    rows = []
    for name, runs in zip(names, curves, strict=True):
        ways = [_sum(metrics, way) / len(runs) for way in (".up", ".down") for metrics in runs]
        rows.append((name, (sum(ways[: len(runs)]), sum(ways[len(runs) :]))))
    title = "Bytes on the wire"
    chart = stacked_rows(title, rows, ("up", "down"), human_bytes)
    return card(title, "All rounds and clients of a run, mean over seeds.", chart, "bytes")


def _sum(metrics: Metrics, way: str) -> float:
    return float(sum(size for m in metrics for key, size in m["bytes"].items() if key.endswith(way)))
