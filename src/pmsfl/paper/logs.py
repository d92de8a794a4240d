"""The raw logs of finished cells, small enough to be committed: logs/<table>/<cell>/.

recipe.toml     every knob, resolved; data_path as the shipped recipe has it, not as this machine does
metrics.jsonl   a line per round, six digits; accuracies per client only of the last evaluation
result.json     what the run reached, and the day it was finished
versions.json   software and hardware

A finished cell is known by its recipe, but for knobs that its method never reads or that change no result. Its run
directory, with checkpoints, lies under runs/ and may be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pmsfl.engine.settings import kind_of_weights
from pmsfl.errors import PmsflError
from pmsfl.locks import only_one
from pmsfl.methods import make_method
from pmsfl.recipe import Recipe
from pmsfl.report.console import note
from pmsfl.rundir import RunDirectory, write_whole

DIGITS = 6
NEEDED = {"accuracy", "accuracy_global", "bytes", "clients", "date", "seconds"}  # of a result, by the tables
# Only methods that train scores read these: tuning them for masks must not undo cells of weights and frozen masks.
OF_SCORES = (
    *("lr_score", "score_schedule", "score_decay", "estimator", "entropy_target", "entropy_rate"),
    *("mask_sharpness", "mask_per", "mask_act", "forward_masks", "upload_masks", "upload_draw", "eval_mask"),
)
OF_FIRST_SCORES = ("score_spread",)  # weights are not drawn with them, masks that are never learned are
OF_PERSONAL_MASKS = ("personal_ratio", "agreement", "growth", "growth_steps", "personal_order")  # PM-SFL alone has them

# How a machine goes about it: none of these changes what is computed by more than rounding.
OF_MACHINES = ("capture", "checkpoint_every", "keep_checkpoints")


def identity(recipe: Recipe) -> Recipe:
    """The recipe without what tells seeds and machines apart: equal for cells that differ by their seed only."""
    method = make_method(recipe)
    of_scores = method.trains == "scores"
    unread = (
        *OF_MACHINES,
        *(() if of_scores else OF_SCORES),
        *(() if of_scores or recipe.lr_schedule == "late" else ("rest_from",)),
        *(() if method.masks else OF_FIRST_SCORES),
        *(() if method.personalises else OF_PERSONAL_MASKS),
    )
    defaults = {f.name: f.default for f in fields(Recipe) if f.name in unread}
    defaults["frozen"] = kind_of_weights(recipe.frozen, method.trains)
    if not of_scores:
        defaults["aggregate"] = method.float_aggregator.rule  # what weights make of a rule for masks
    return recipe.replace(**defaults, seed=0, data="digits", data_path="")


class Logs:
    """The logs below a folder, by identity and seed."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.unread: list[Path] = []
        self._found: dict[Recipe, dict[int, Path]] = {}
        for file in sorted((out / "logs").glob("*/*/result.json")):
            try:
                recipe = RunDirectory(file.parent).recipe()
                known = identity(recipe)
                _check_whole(file.parent, recipe)
            except (PmsflError, OSError, ValueError):  # damaged, or of another version
                self.unread.append(file.parent)
                continue
            self._found.setdefault(known, {}).setdefault(recipe.seed, file.parent)

    def warn(self) -> None:
        """Say which logs do not count."""
        if self.unread:
            few = ", ".join(str(folder) for folder in self.unread[:3])
            note(f"{len(self.unread)} logs cannot be read (damaged, or another version's) and do not count: {few}")

    def of(self, recipe: Recipe) -> dict[int, Path]:
        """The folders of this recipe's finished cells by seed, sorted."""
        return dict(sorted(self._found.get(identity(recipe), {}).items()))

    def has(self, recipe: Recipe) -> bool:
        """Is this cell, seed included, finished?"""
        return recipe.seed in self._found.get(identity(recipe), {})

    def publish(self, run: Path, table: str, cell: str, data_path: str) -> None:
        """Copy what is worth keeping of a finished run; data_path: what to write in place of this machine's."""
        directory = RunDirectory(run)
        result, recipe = directory.read_json("result.json"), directory.recipe()
        if result is None:
            raise PmsflError(f"{run} is not finished: it has no result.json")
        folder = self.out / "logs" / table / cell
        day = datetime.fromtimestamp((run / "result.json").stat().st_mtime, UTC).date().isoformat()
        result |= {"run": folder.relative_to(self.out).as_posix(), "date": day}
        lines = [json.dumps(line) for line in _slim(directory.metrics())]
        with alone(self.out):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / "recipe.toml", recipe.replace(data_path=data_path).to_toml())
            write_whole(folder / "metrics.jsonl", "\n".join(lines) + "\n")
            write_whole(folder / "versions.json", json.dumps(directory.read_json("versions.json"), indent=1) + "\n")
            write_whole(folder / "result.json", json.dumps(result, indent=1) + "\n")  # last: now it counts
        self._found.setdefault(identity(recipe), {})[recipe.seed] = folder


def _check_whole(folder: Path, recipe: Recipe) -> None:
    """Raise PmsflError where a finished cell's log lacks something: half a log would show figures of another round."""
    directory = RunDirectory(folder)
    result, about = directory.read_json("result.json"), directory.read_json("versions.json")
    if not isinstance(result, dict) or not result.keys() >= NEEDED or not isinstance(about, dict):
        raise PmsflError(f"{folder}: result.json or versions.json is not what a finished run leaves")
    rounds = [line["round"] for line in directory.metrics()]
    if rounds != list(range(1, recipe.rounds + 1)):
        raise PmsflError(f"{folder}: metrics.jsonl has {len(rounds)} rounds of {recipe.rounds}")


def alone(out: Path) -> AbstractContextManager[int]:
    """Wait until no other call writes below `out`."""
    (out / "runs").mkdir(parents=True, exist_ok=True)
    return only_one(out / "runs" / ".lock")


def _slim(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The lines with short numbers; per-layer and per-client figures only where the last evaluation is."""
    for i, line in enumerate(lines):
        kept = dict(line)
        if i + 1 < len(lines):
            kept.pop("entropy_per_layer", None)
            if evaluation := kept.get("evaluation"):
                kept["evaluation"] = {k: v for k, v in evaluation.items() if not k.startswith("per_client")}
        yield _short(kept)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value
