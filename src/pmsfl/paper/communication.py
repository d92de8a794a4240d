"""Communication: every byte by kind and direction, and accuracy against bytes, from Table 1's ledgers."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmsfl.paper import figures, table1
from pmsfl.paper.outcome import Group, Outcome, Record
from pmsfl.paper.plan import Row, Table
from pmsfl.paper.write import embed, heading, markdown, method_of, write_csv, write_page
from pmsfl.report.console import human_bytes
from pmsfl.report.interval import mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("recipe", "method", "preset", "seeds", "kind", "direction", "bytes_per_client_round", "bytes_total")
AT_THE_CUT = ("smashed", "gradient")  # the same for every method: they would hide all else
UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))
ABOUT = (
    "What one client sends and receives in one round, counted from encoded messages, by kind. The cut itself (smashed "
    "data and their gradients) is most of it and the same for every method; masks save on the rest only. The "
    "paper says that binary masks cost less than probabilistic ones and prints no number."
)


def write(outcome: Outcome) -> list[Path]:
    """communication.md, communication.csv (bytes by kind) and two figures per scale."""
    text, drawn, counts = heading(outcome, [ABOUT]), [], []
    for scale in outcome.scales():
        lines = outcome.played(scale)
        made = figures.draw(outcome.out / f"communication-{scale}.png", partial(_kinds, lines))
        made += figures.draw(outcome.out / f"bytes-{scale}.png", partial(_against_bytes, lines))
        text += [f"## Scale: {scale}", "", *embed(outcome, made)]
        for row, groups in lines:
            text += [f"### {row.label} (`{row.name}`)", "", *_table(groups), ""]
            counts += [count for g in groups if g.records for count in _counts(g)]
        drawn += made
    written = write_csv(outcome.out / "communication.csv", COLUMNS, counts)
    return [write_page(outcome, text), written, *drawn]


def _counts(g: Group) -> list[dict[str, object]]:
    """Bytes by kind and direction, the total last."""
    first = g.records[0]
    about = {"recipe": first.recipe.name, "method": method_of(first, g), "preset": first.recipe.preset}
    found: list[dict[str, object]] = []
    for key, share in sorted(g.bytes_per_client_round().items(), key=lambda pair: pair[0] == "total"):
        kind, _, direction = key.partition(".")
        whole = mean([r.result["bytes"].get(key, 0) for r in g.records])
        amounts = {"bytes_per_client_round": round(share, 1), "bytes_total": round(whole)}
        found.append({**about, "seeds": len(g.records), "kind": kind, "direction": direction, **amounts})
    return found


def _table(groups: list[Group]) -> list[str]:
    kinds = sorted({k for g in groups for k in g.bytes_per_client_round() if k != "total"})
    headers = [
        "bytes per client and round",
        *(k.replace(".", " ") for k in kinds),
        "without the cut",
        "total",
        groups[0].row.measured,
    ]
    lines = []
    for g in groups:
        sent, accuracy = g.bytes_per_client_round(), g.accuracy
        per_kind = (human_bytes(sent[k]) if k in sent else "" for k in kinds)
        sums = (human_bytes(_without_cut(sent)), human_bytes(sent["total"])) if sent else ("", "")
        at = "" if accuracy is None else f"{accuracy.mean:.2f}{g.mark}"
        lines.append((g.variant.label, *per_kind, *sums, at))
    return markdown(headers, lines)


def _without_cut(sent: dict[str, float]) -> float:
    return sum(v for k, v in sent.items() if k != "total" and k.partition(".")[0] not in AT_THE_CUT)


def _kinds(lines: list[tuple[Row, list[Group]]]) -> Figure:
    """Stacked bars of all but the cut."""
    done = [(row, [g for g in groups if g.records]) for row, groups in lines]
    figure, axes = figures.panels(len(done), [len(groups) for _, groups in done])
    shares = [g.bytes_per_client_round() for _, groups in done for g in groups]
    found = {k for s in shares for k in s if k != "total" and k.partition(".")[0] not in AT_THE_CUT}
    colours = dict(zip(sorted({k.partition(".")[0] for k in found}), figures.PALETTE * 2, strict=False))
    looks = {
        k: {"color": colours[k.partition(".")[0]], "alpha": 1.0 if k.endswith(".up") else 0.4} for k in sorted(found)
    }
    for ax, (row, groups) in zip(axes, done, strict=True):
        _stack(ax, groups, looks)
        ax.set_xlabel("kB per client and round")
        figures.entitle(ax, row.label)
    figure.suptitle("Bytes of one client in one round, without smashed data and their gradients")
    figures.legend_outside(figure, axes)
    return figure


def _stack(ax: Axes, groups: list[Group], looks: dict[str, dict[str, Any]]) -> None:
    """A bar per method; what goes up is dark, what goes down light."""
    left = [0.0] * len(groups)
    for kind, look in looks.items():
        width = [g.bytes_per_client_round().get(kind, 0.0) / 1000.0 for g in groups]
        ax.barh(range(len(groups)), width, left=left, height=0.7, label=kind.replace(".", " "), **look)
        left = [a + b for a, b in zip(left, width, strict=True)]
    figures.name_lines(ax, [table1.SHORT[g.variant.name] for g in groups])


def _against_bytes(lines: list[tuple[Row, list[Group]]]) -> Figure:
    """Accuracy over all bytes sent so far; the mean over seeds."""
    figure, axes = figures.panels(len(lines))
    for ax, (row, groups) in zip(axes, lines, strict=True):
        curves = [(g, _accuracy_over_bytes(g)) for g in groups]
        unit, factor = _unit(max((sent for _, points in curves for sent, _, _ in points), default=0.0))
        for g, points in curves:
            if points:
                scaled = [(sent / factor, at, error) for sent, at, error in points]
                figures.band(ax, scaled, f"{table1.SHORT[g.variant.name]}{g.mark}", figures.style(g.variant.name))
        ax.set(xlabel=f"{unit} sent so far, all clients", ylabel=row.measured)
        figures.entitle(ax, row.label)
    figure.suptitle("Accuracy against every byte that crossed the wire, the cut included")
    figures.legend_outside(figure, axes, columns=6)
    return figure


def _unit(most: float) -> tuple[str, float]:
    """The unit in which numbers up to that many bytes are short, and what it is worth."""
    return next((unit, worth) for unit, worth in UNITS if most >= worth or worth == 1.0)


def _accuracy_over_bytes(g: Group) -> list[tuple[float, float, float | None]]:
    sent = [_cumulated(r) for r in g.records]
    return [(mean([s[at] for s in sent if at in s]), summary.mean, summary.error) for at, summary in g.curve(g.measure)]


def _cumulated(record: Record) -> dict[int, int]:
    """Bytes sent up to every round."""
    totals = accumulate(line["bytes"]["total"] for line in record.metrics)
    return {int(line["round"]): total for line, total in zip(record.metrics, totals, strict=True)}


TABLE = Table(
    "communication",
    "Communication: where the bytes go",
    "Bytes by kind and direction, from Table 1's logs; with --only, missing cells are played.",
    table1.LINES,
    write,
    borrows="table1",
)
