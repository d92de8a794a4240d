"""What has been reached: the finished cells of a table, grouped by what differs in nothing but the seed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pmsfl.engine.plan import cohort_size
from pmsfl.paper.attacked import AttackPlan, read_attack
from pmsfl.paper.logs import Logs
from pmsfl.paper.plan import CLIENTS, SCALES, Planned, Row, Table, Variant
from pmsfl.recipe import Recipe
from pmsfl.recipe_files import shipped
from pmsfl.report.interval import Summary, mean, summarise
from pmsfl.rundir import RunDirectory

LOCAL_BLOCKS = ("standalone", "lg-fedavg")


@dataclass(frozen=True)
class Record:
    """One finished cell. folder: its log; plan: of the attack that belongs to it."""

    seed: int
    folder: Path
    plan: AttackPlan | None = None

    @cached_property
    def result(self) -> dict[str, Any]:
        """What the run reached."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
        return found

    @cached_property
    def attack(self) -> dict[str, Any]:
        """What the attack on it reached; empty where it has none."""
        return {} if self.plan is None else read_attack(self.folder, self.plan) or {}

    @cached_property
    def recipe(self) -> Recipe:
        """Its resolved recipe."""
        return RunDirectory(self.folder).recipe()

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per round."""
        return RunDirectory(self.folder).metrics()

    @cached_property
    def versions(self) -> dict[str, Any]:
        """Software, hardware, and fingerprints of its data."""
        return RunDirectory(self.folder).read_json("versions.json") or {}

    @property
    def device(self) -> str:
        """What it was computed on: a GPU's name, or cpu."""
        return str(self.versions.get("device", "unknown"))

    @property
    def client_rounds(self) -> int:
        """How often any client took part."""
        return cohort_size(self.recipe, int(self.result["clients"])) * self.recipe.rounds

    def value(self, key: str) -> float | None:
        """A figure of the result, or of the attack; None where there is none. bytes_total is the ledger's sum."""
        found = self.result["bytes"]["total"] if key == "bytes_total" else self.result.get(key, self.attack.get(key))
        return None if found is None or not math.isfinite(found) else float(found)


@dataclass(frozen=True)
class Group:
    """A row's variant at one scale, and its finished seeds (none: it was not run)."""

    row: Row
    variant: Variant
    scale: str
    recipe: Recipe
    records: tuple[Record, ...]

    def by_seed(self, key: str) -> dict[int, float]:
        """One figure per seed."""
        found = ((r.seed, r.value(key)) for r in self.records)
        return {seed: value for seed, value in found if value is not None}

    def summary(self, key: str) -> Summary | None:
        """Mean and standard error over the seeds."""
        return summarise(self.by_seed(key).values())

    @property
    def has_global_model(self) -> bool:
        """Is there one network that all clients have? Not where blocks stay on the clients by design: what such a
        method's global model has there are blocks (or norms) that nobody trained, or a part of the clients' alone."""
        return self.recipe.method not in LOCAL_BLOCKS and self.recipe.norms != "local"

    @property
    def measure(self) -> str:
        """The figure that counts: the row's, or the mean over clients where there is no global model."""
        return self.row.measure if self.has_global_model else CLIENTS

    @property
    def mark(self) -> str:
        """What to say behind a figure that is not the row's."""
        return "" if self.measure == self.row.measure else " (clients)"

    @property
    def accuracy(self) -> Summary | None:
        """The figure that counts, over the seeds."""
        return self.summary(self.measure)

    def curve(self, key: str) -> list[tuple[int, Summary]]:
        """(round, mean and error over the seeds) of a figure of the evaluations, or of the rounds."""
        points: dict[int, list[float]] = {}
        for r in self.records:
            for line in r.metrics:
                found = line.get(key, line.get("evaluation", {}).get(key))
                if found is not None:
                    points.setdefault(int(line["round"]), []).append(float(found))
        summaries = ((at, summarise(values)) for at, values in sorted(points.items()))
        return [(at, s) for at, s in summaries if s is not None]

    def bytes_per_client_round(self) -> dict[str, float]:
        """Bytes by 'kind.direction' and their total, for one client in one round, the mean over the seeds."""
        shares = [{k: v / r.client_rounds for k, v in r.result["bytes"].items()} for r in self.records]
        return {k: mean([s.get(k, 0.0) for s in shares]) for k in sorted({k for s in shares for k in s})}


def of_different_data(groups: Sequence[Group]) -> bool:
    """Were a row's cells played on different samples, or dealt differently with one seed? A path does not tell."""
    records = [r for g in groups for r in g.records]
    samples = {r.versions["samples"] for r in records if "samples" in r.versions}
    dealt = {(r.seed, r.versions["data"]) for r in records if "data" in r.versions}
    return len(samples) > 1 or len(dealt) > len({seed for seed, _ in dealt})


@dataclass(frozen=True)
class Outcome:
    """A table's finished cells at every scale."""

    table: Table
    out: Path
    data: Path
    logs: Logs
    _groups: dict[str, list[tuple[Row, list[Group]]]] = field(default_factory=dict)

    def lines(self, scale: str) -> list[tuple[Row, list[Group]]]:
        """Every row of a scale with its variants, run or not; rows without a recipe are left out."""
        if scale not in self._groups:
            self._groups[scale] = [
                (row, [self._group(row, variant, scale) for variant in variants])
                for row, variants in self.table.at(scale)
                if row.recipe in shipped()
            ]
        return self._groups[scale]

    def _group(self, row: Row, variant: Variant, scale: str) -> Group:
        recipe = Planned(row, variant, scale, 0).recipe(self.data)
        plan = self.table.attacks.get(scale)
        records = tuple(Record(seed, folder, plan) for seed, folder in self.logs.of(recipe).items())
        return Group(row, variant, scale, recipe, tuple(r for r in records if plan is None or r.attack))

    def scales(self) -> list[str]:
        """The scales that have a finished cell."""
        return [s for s in SCALES if any(g.records for _, groups in self.lines(s) for g in groups)]

    def played(self, scale: str) -> list[tuple[Row, list[Group]]]:
        """Rows of a scale with a finished cell."""
        return [(row, groups) for row, groups in self.lines(scale) if any(g.records for g in groups)]
