"""Tables as CSV and Markdown: ours beside the paper's, an empty cell where nothing was run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pmsfl.paper import published
from pmsfl.paper.outcome import Group, Outcome, Record, of_different_data
from pmsfl.paper.plan import CLIENTS, GLOBAL, SCALES, Row
from pmsfl.report.compare import LEAST_SEEDS, paired
from pmsfl.report.console import human_bytes, human_seconds
from pmsfl.report.interval import Summary
from pmsfl.rundir import write_whole

COLUMNS = (
    "recipe",
    "method",
    "preset",
    "seed",
    "rounds",
    "accuracy",
    "accuracy_global",
    "accuracy_best",
    "mask_entropy",
    "bytes_total",
    "seconds",
    "log",
)
MEASURES = {CLIENTS: "accuracy", GLOBAL: "global model"}
NOTHING = ("No cell has been run yet.", "")
FIGURES = ("accuracy", "accuracy_global", "accuracy_best", "mask_entropy", "bytes_total", "seconds")
DIFFERENT_DATA = "not all of these cells were played on the same data: their means and differences mean nothing"
SCALE_WORDS = {
    "full": "the budget of our own tables",
    "half": "half of the rounds at most",
    "reduced": "less of everything, enough to compare methods with each other",
    "quick": "a smoke test on a small model with few rounds: it shows that all of it works, not what a method is worth",
}


# --- CSV


def method_of(record: Record, group: Group) -> str:
    """The method, and what the variant sets besides: 'pm-sfl compensation=false'."""
    extra = [c for c in group.variant.changes if c.partition("=")[0] not in ("method", "preset")]
    return " ".join((record.recipe.method, *extra))


def csv_rows(outcome: Outcome) -> Iterable[dict[str, Any]]:
    """A row per finished cell of every scale; a reduced scale shows in the recipe's name."""
    for scale in SCALES:
        for _, groups in outcome.lines(scale):
            for group in groups:
                for r in group.records:
                    known: dict[str, Any] = {
                        "recipe": r.recipe.name,
                        "method": method_of(r, group),
                        "preset": r.recipe.preset,
                        "seed": r.seed,
                        "rounds": r.recipe.rounds,
                        "log": r.folder.relative_to(outcome.out).as_posix(),
                    }
                    figures = {k: r.value(k) for k in FIGURES} | {"bytes_total": r.result["bytes"]["total"]}
                    yield known | figures


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows and return the file; what is None stays empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.getvalue())
    return path


def write_cells(outcome: Outcome) -> Path:
    """The table's CSV."""
    return write_csv(outcome.out / f"{outcome.table.name}.csv", COLUMNS, csv_rows(outcome))


# --- Markdown


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A pipe table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(headers) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headers, rule, *rows)]


def spread(found: Summary | None, digits: int = 2) -> str:
    """'62.88 ± 0.12': mean and standard error; the mean alone with a single seed; empty without any."""
    if found is None:
        return ""
    error = "" if found.error is None else f" ± {found.error:.{digits}f}"
    return f"{found.mean:.{digits}f}{error}"


def reached(group: Group) -> str:
    """The figure that counts, marked where it is not the row's."""
    found = spread(group.accuracy)
    return f"{found}{group.mark}" if found else ""


def difference(group: Group, baseline: Group | None) -> str:
    """The variant minus the baseline over the seeds both have, and whether that can be told from chance."""
    if baseline is None or baseline.variant == group.variant or not group.records:
        return ""
    measure = group.measure
    found = paired(baseline.by_seed(measure), group.by_seed(measure))
    if found.mean is None:
        return ""
    error = "" if found.error is None else f" ± {found.error:.2f}"
    remarks = [found.verdict] if len(found.seeds) >= LEAST_SEEDS else []
    if len(found.seeds) < len(group.records):  # else it looks like the difference of the means beside it
        remarks.append(f"{len(found.seeds)} of {len(group.records)} seeds")
    return f"{found.mean:+.2f}{error}" + (f" ({', '.join(remarks)})" if remarks else "")


def budget(row: Row, groups: Sequence[Group]) -> str:
    """What every method of a row had, what the paper had, and on which machine and when the cells were played."""
    r = groups[0].recipe
    records = [record for g in groups for record in g.records]
    everybody = f"{int(records[0].result['clients'])} clients" if records else "the clients"
    who = f"{r.cohort} of {everybody}" if r.cohort else f"{100 * r.participation:g} % of {everybody}"
    words = [f"{r.rounds} rounds, {who} in each, {r.epochs} epochs in batches of {r.batch}"]
    words.append(f"{r.model}{f' of width {r.width}' if r.width else ''}, depths {r.depths}")
    if row.published:
        words.append(f"the paper: {published.ROUNDS[row.published]} rounds, {published.SEEDS} seeds")
    if records:
        days = sorted({str(record.result["date"]) for record in records})
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        words += [", ".join(sorted({record.device for record in records})), when]
    return "; ".join(words) + "."


def detail(row: Row, groups: Sequence[Group], baseline: str) -> list[str]:
    """One row's variants, every figure with its spread."""
    base = next((g for g in groups if g.variant.name == baseline), None)
    against = "" if base is None else f"minus {base.variant.label}"
    other = GLOBAL if row.measure == CLIENTS else CLIENTS
    best, beside = ("best round", MEASURES[GLOBAL]) if other == GLOBAL else ("clients, best round", "clients")
    headers = ["", MEASURES[row.measure], "seeds", against or "difference", "paper", best, beside]
    headers += ["mask entropy, bit", "bytes", "seconds per cell"]
    lines = []
    for g in groups:
        theirs = published.accuracy(row.published, g.variant.name)
        sent, cost = g.summary("bytes_total"), g.summary("seconds")
        lines.append(
            (
                g.variant.label,
                reached(g),
                str(len(g.records)) if g.records else "",
                difference(g, base),
                "" if theirs is None else f"{theirs:.2f}",
                spread(g.summary("accuracy_best")),
                spread(g.summary(other)) if other == CLIENTS or g.has_global_model else "",
                spread(g.summary("mask_entropy")),
                "" if sent is None else human_bytes(sent.mean),
                "" if cost is None else f"{cost.mean:.1f}",
            )
        )
    return [*row_heading(row, groups), *markdown(headers, lines), ""]


def row_heading(row: Row, groups: Sequence[Group]) -> list[str]:
    """A row's name and budget, and what a reader has to know of it."""
    measure = "" if row.measure == CLIENTS else "methods are compared by the global model on all test samples"
    mixed = f"**{DIFFERENT_DATA}**" if of_different_data(groups) else ""
    texts = (t for t in (mixed, measure, row.remark, *_of_its_data(row, groups), row.note) if t)
    remarks = [line for text in texts for line in (f"{text[0].upper()}{text[1:]}.", "")]
    return [f"### {row.label} (`{row.name}`)", "", budget(row, groups), "", *remarks]


def _of_its_data(row: Row, groups: Sequence[Group]) -> list[str]:
    """What has to be said of the data that a row's cells were played on, each remark once."""
    known = {} if row.data is None else row.data.remarks
    seen = {str(r.versions.get(k)) for g in groups for r in g.records for k in ("samples", "data")}
    return sorted({remark for fingerprint, remark in known.items() if fingerprint in seen})


def heading(outcome: Outcome, about: Sequence[str]) -> list[str]:
    """Title, what it is about, and how to read it."""
    command = f"pmsfl paper {outcome.table.name}"
    return [
        f"# {outcome.table.title}",
        "",
        *about,
        "",
        f"Made by `{command} --scale quick|reduced|half|full`; each scale is a section of its own. Accuracies in "
        "percent are the mean over clients, each on its own tests, after the last round, except where a row says that "
        "it compares global models, which are tested on all of them; where blocks or norms stay on the clients, as in "
        "Standalone and LG-FedAvg, there is none. ± is the standard error over seeds; differences are paired by seed, "
        "with a verdict (Student's t, 95 %) from three pairs on. Mask entropy is that of what a forward pass draws; "
        "where it takes the mean of 15 masks, that of the mean's rounding to a fifteenth, which is no randomness to "
        "speak of. "
        f"An empty cell was not run. **paper** marks what {published.SOURCE} prints, at its own budget.",
        "",
    ]


def sections(outcome: Outcome, baseline: str, top: dict[str, list[str]] | None = None) -> list[str]:
    """A section per scale: what `top` has for it, then a table per row that has finished cells."""
    text: list[str] = []
    for scale in outcome.scales():
        text += [*scale_heading(scale), *(top or {}).get(scale, [])]
        for row, groups in outcome.played(scale):
            text += detail(row, groups, baseline)
        text += time_spent(outcome, scale)
    return text or list(NOTHING)


def scale_heading(scale: str) -> list[str]:
    """What begins a scale's section."""
    return [f"## Scale: {scale}", "", f"{scale.capitalize()} is {SCALE_WORDS[scale]}.", ""]


def time_spent(outcome: Outcome, scale: str) -> list[str]:
    """What ends it: how long its cells took."""
    seconds = sum(r.value("seconds") or 0.0 for _, groups in outcome.played(scale) for g in groups for r in g.records)
    return [f"The cells' seconds add up to {human_seconds(seconds)}; cells may have run side by side.", ""]


def write_page(outcome: Outcome, lines: Sequence[str]) -> Path:
    """The table's Markdown."""
    path = outcome.out / f"{outcome.table.name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join(lines).rstrip() + "\n")
    return path


def embed(outcome: Outcome, figures: Sequence[Path]) -> list[str]:
    """Figures as Markdown images, in their order."""
    return [line for f in figures for line in (f"![{f.stem}]({f.relative_to(outcome.out).as_posix()})", "")]
