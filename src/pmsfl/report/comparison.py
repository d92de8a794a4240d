"""`pmsfl compare`: finished runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pmsfl.errors import PmsflError
from pmsfl.report.compare import Difference, Group, Record, group, paired
from pmsfl.report.console import MISSING, emit_json, human_bytes, human_seconds, note, number, say, table
from pmsfl.report.interval import summarise
from pmsfl.report.listing import find_runs
from pmsfl.rundir import RunDirectory

FIGURES = (
    "accuracy",
    "accuracy_best",
    "accuracy_weighted",
    "accuracy_global",
    "accuracy_local_global",
    "mask_entropy",
    "disagree",
    "seconds",
    "client_flops",
    "client_memory",
    "bytes",
)
# Keys that change no figure, or that the label holds already.
NOT_SETTINGS = {"name", "version", "preset", "method", "seed", "checkpoint_every", "keep_checkpoints"}


def read_record(path: Path) -> Record | None:
    """A finished run; None where there is no result yet."""
    directory = RunDirectory.open(path)
    result, recipe = directory.read_json("result.json"), directory.recipe()
    if result is None:
        return None
    values = {k: result[k] for k in FIGURES if k != "bytes" and result.get(k) is not None}
    values["bytes"] = result["bytes"]["total"]
    settings = {k: v for k, v in asdict(recipe).items() if k not in NOT_SETTINGS}
    return Record(recipe.name, recipe.method, recipe.preset, recipe.seed, settings, values)


def read_records(places: Sequence[Path]) -> list[tuple[Path, Record]]:
    """The finished runs among and below `places`, with where they lie; the others are named in a note."""
    records = []
    for path in find_runs(places):
        record = read_record(path)
        if record is None:
            note(f"{path} is not finished; left out")
        else:
            records.append((path, record))
    if not records:
        raise PmsflError("none of these is a finished run; `pmsfl ls` lists the runs")
    return records


def show(places: Sequence[Path], as_json: bool, page: Path | None = None) -> None:
    """The tables, or the same as JSON; `page` names a file for a page with charts."""
    found = read_records(places)
    groups = group(record for _, record in found)
    gaps = differences(groups)
    if page is not None:
        from pmsfl.report.page_compare import write_comparison

        write_comparison(page, groups, gaps, found)
    if as_json:
        content = {"groups": [_as_dict(g, gaps[i] if i else None) for i, g in enumerate(groups)]}
        return emit_json(content if page is None else content | {"page": page})
    table("mean ± standard error over seeds; accuracy in percent", *figure_rows(groups))
    if len(groups) > 1:
        _show_differences(groups, gaps)
    return None if page is None else say(f"page: {page}")


def differences(groups: Sequence[Group]) -> list[Difference]:
    """Accuracy of each group minus that of the first, paired by seed."""
    baseline = groups[0].by_seed("accuracy")
    return [paired(baseline, g.by_seed("accuracy")) for g in groups]


def figure_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Headers, and a row per group: what it is, and mean ± standard error of its figures."""
    told_apart = any(g.extra for g in groups)
    headers = ["recipe", "method", "preset", *(["settings"] if told_apart else []), "seeds"]
    headers += ["accuracy", "weighted", "global model", "entropy", "bytes", "time"]
    return headers, [[*g.label, *([g.extra] if told_apart else []), *_figures(g)] for g in groups]


def _figures(g: Group) -> list[str]:
    accuracies = [_cell(g, key, 1) for key in ("accuracy", "accuracy_weighted", "accuracy_global")]
    sent, seconds = (summarise(g.by_seed(key).values()) for key in ("bytes", "seconds"))
    return [
        str(len(g.seeds)),
        *accuracies,
        _cell(g, "mask_entropy", 2),
        human_bytes(sent.mean if sent else None),
        human_seconds(seconds.mean if seconds else None),
    ]


def _cell(g: Group, key: str, digits: int) -> str:
    found = summarise(g.by_seed(key).values())
    if found is None:
        return MISSING
    text = number(found.mean, digits)
    return text if found.error is None else f"{text} ± {found.error:.{digits}f}"


def difference_rows(groups: Sequence[Group], gaps: Sequence[Difference]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headers, and a row for every group but the baseline."""
    rows = []
    for g, d in zip(groups[1:], gaps[1:], strict=True):
        change = MISSING if d.mean is None else f"{d.mean:+.2f}"
        error = MISSING if d.error is None else f"{d.error:.2f}"
        rows.append([group_name(g), str(len(d.seeds)), change, error, d.verdict])
    return ("against the baseline", "common seeds", "difference", "standard error", "verdict"), rows


def _show_differences(groups: list[Group], gaps: list[Difference]) -> None:
    table(f"accuracy minus {group_name(groups[0])}, paired by seed", *difference_rows(groups, gaps))
    if all(len(d.seeds) < 3 for d in gaps[1:]):
        say("a verdict takes at least 3 common seeds: pmsfl run ... -c seed=1")


def group_name(g: Group) -> str:
    """What a group is called."""
    return " ".join((*g.label, g.extra)).rstrip()


def _as_dict(g: Group, gap: Difference | None) -> dict[str, Any]:
    recipe, method, preset = g.label
    figures = {}
    for key in FIGURES:
        found = summarise(g.by_seed(key).values())
        figures[key] = {"mean": math.nan, "error": None, "n": 0} if found is None else asdict(found)
    return {
        "recipe": recipe,
        "method": method,
        "preset": preset,
        "settings": g.extra,
        "seeds": g.seeds,
        "figures": figures,
        "against_baseline": None if gap is None else asdict(gap),
    }
