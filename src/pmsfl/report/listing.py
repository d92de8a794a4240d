"""Runs on disk: the list of them, and one in detail."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pmsfl.engine.health import at_the_end
from pmsfl.errors import PmsflError
from pmsfl.methods import make_method
from pmsfl.recipe import Recipe
from pmsfl.report.console import (
    bar,
    byte_rows,
    human_bytes,
    human_seconds,
    note,
    number,
    pairs,
    percent,
    say,
    table,
)
from pmsfl.rundir import RunDirectory


def find_runs(places: Iterable[Path]) -> list[Path]:
    """The run directories among and below `places`, each once, in order."""
    found: dict[Path, None] = {}
    for place in places:
        if (place / "recipe.toml").is_file():
            found[place] = None
        elif place.is_dir():
            found |= dict.fromkeys(f.parent for f in sorted(place.rglob("recipe.toml")))
        else:
            raise PmsflError(f"{place}: there is no such run or directory")
    return list(found)


def evaluations(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of the rounds that were evaluated."""
    return [line for line in metrics if "evaluation" in line]


def bytes_sent(metrics: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes by kind over all rounds."""
    total: dict[str, int] = {}
    for line in metrics:
        for kind, size in line["bytes"].items():
            total[kind] = total.get(kind, 0) + size
    return total


def standing(directory: RunDirectory) -> str:
    """finished, or where it can be resumed from."""
    if directory.read_json("result.json") is not None:
        return "finished"
    kept = directory.checkpoints()
    return f"resumable from round {kept[-1][0]}" if kept else "resumable from the start"


def _all_rounds(directory: RunDirectory, recipe: Recipe) -> int:
    return recipe.turns if directory.tells_turns else recipe.rounds


# --- pmsfl ls


def list_runs(place: Path) -> None:
    """A line per run."""
    paths = find_runs([place]) if place.exists() else []
    rows = []
    for path in paths:
        try:
            rows.append(_row(path))
        except PmsflError as e:
            note(f"{path}: {e}")
    if not rows:
        return say(f"no runs in {place}; start one with: pmsfl run")
    headers = ("run", "method", "preset", "seed", "rounds", "accuracy", "entropy", "bytes", "state")
    return table("", headers, rows)


def _row(path: Path) -> tuple[str, ...]:
    directory = RunDirectory.open(path)
    recipe, metrics = directory.recipe(), directory.metrics()
    evaluated = evaluations(metrics)
    last = metrics[-1] if metrics else {}
    return (
        str(path),
        recipe.method,
        recipe.preset,
        str(recipe.seed),
        f"{last.get('round', 0)}/{_all_rounds(directory, recipe)}",
        percent(evaluated[-1]["evaluation"]["accuracy"] if evaluated else None),
        number(last.get("mask_entropy")),
        human_bytes(bytes_sent(metrics).get("total", 0)),
        standing(directory),
    )


# --- pmsfl show


def show_run(path: Path) -> None:
    """One run in detail."""
    directory = RunDirectory.open(path)
    recipe, metrics = directory.recipe(), directory.metrics()
    pairs(f"run {path}", [*essentials(recipe), ("state", standing(directory))])
    if not metrics:
        return say("no round is complete yet")
    last = metrics[-1]
    say()
    pairs(
        f"round {last['round']} of {_all_rounds(directory, recipe)}",
        [*_last_round(last), ("privacy", privacy_line(metrics))],
    )
    for text in troubles(recipe, metrics):
        say(f"  warning: {text}")
    say()
    _show_evaluations(evaluations(metrics))
    if last["entropy_per_layer"]:
        rows = [(name, number(bits, 3), bar(bits)) for name, bits in last["entropy_per_layer"].items()]
        table("mask entropy per layer (bits, at most 1)", ("layer", "entropy", ""), rows)
    table("bytes on the wire", ("message", "up", "down", "both"), byte_rows(bytes_sent(metrics)))
    if standing(directory) != "finished":
        return say(f"go on with: pmsfl run --resume --out {path}")
    return say(f"use it with: pmsfl export {path}")


def _last_round(line: dict[str, Any]) -> list[tuple[str, str | None]]:
    edge = line.get("at_clip")  # runs of earlier versions have neither
    return [
        ("loss", number(line["loss"], 4)),
        ("mask entropy", f"{number(line['mask_entropy'], 3)} bit"),
        ("at the clip", None if edge is None else f"{percent(100.0 * edge)} of θ"),
        ("disagree", number(line["disagree"], 3)),
        ("personal", percent(100.0 * line["personal"])),
        ("seen", observations_line(line)),
        ("time", human_seconds(line["seconds"])),
    ]


def observations_line(line: dict[str, Any]) -> str | None:
    """How often the server saw a record, None where that was not counted."""
    seen = line.get("observations")
    if not seen:
        return None
    return f"each record {number(seen['mean'], 1)} times under a fresh mask on average, {seen['max']} at most"


def privacy_line(metrics: list[dict[str, Any]]) -> str | None:
    """The ε spent at the newest evaluation, None where nothing is guaranteed."""
    spent = next((line["privacy"] for line in reversed(metrics) if line.get("privacy")), None)
    if spent is None:
        return None
    parts = [f"{name} ε = {c['epsilon']:.3g} per {c['unit']}" for name, c in spent["channels"].items()]
    return f"{', '.join(parts)} (δ = {spent['delta']:g}); all channels: pmsfl privacy"


def troubles(recipe: Recipe, metrics: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the masks after these rounds."""
    method = make_method(recipe)
    return list(at_the_end(recipe, method.personalises, metrics).values()) if method.trains == "scores" else []


def _show_evaluations(lines: list[dict[str, Any]]) -> None:
    rows = []
    for line in lines:
        e = line["evaluation"]
        accuracy = percent(e["accuracy"], e["deviation"])
        others = (percent(e[k]) for k in ("accuracy_weighted", "accuracy_global", "accuracy_local_global"))
        rows.append((line["round"], accuracy, *others, bar((e["accuracy"] or 0.0) / 100.0)))
    if rows:
        headers = ("round", "accuracy ± sd", "weighted", "global model", "global θ on clients", "")
        table("accuracy (mean over clients; ± over masks)", headers, rows)


def essentials(recipe: Recipe) -> list[tuple[str, str]]:
    """What one must know of a recipe to read its figures."""
    dealt = {
        "dirichlet": f", alpha {recipe.alpha}",
        "dirichlet-client": f", alpha {recipe.alpha}",
        "pathological": f", {recipe.classes_per_client} classes per client",
        "shards": f", {recipe.shards_per_client} shards per client",
    }
    return [
        ("recipe", f"{recipe.name} (preset {recipe.preset}, seed {recipe.seed})"),
        ("method", recipe.method),
        ("aggregate", aggregation(recipe)),
        ("data", f"{recipe.data}, partition {recipe.partition}{dealt.get(recipe.partition, '')}"),
        ("model", f"{recipe.model}, depths {recipe.depths}"),
        ("round", f"{recipe.epochs} epochs, batch {recipe.batch}, {recipe.schedule} server"),
    ]


def aggregation(recipe: Recipe) -> str:
    """How uploads are merged, with the damping in use, and how often where that is more than once a round."""
    return _rule(recipe) + (f"; {recipe.merges} merges a round" if recipe.merges > 1 else "")


def _rule(recipe: Recipe) -> str:
    if recipe.aggregate == "damped":
        return f"damped, η = {recipe.damping:g}" if recipe.damping else "damped, η = K/N"
    if recipe.aggregate == "beta":
        return f"beta, prior {recipe.beta_prior:g}, reset every {recipe.beta_reset} round(s); no damping"
    if recipe.aggregate == "settled":
        return f"settled: sampled, and from {recipe.rest_from:.0%} of the rounds on damped more and more"
    return f"{recipe.aggregate}; no damping"
