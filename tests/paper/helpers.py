"""Logs without training: what a finished cell leaves, with figures of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pmsfl import commands
from pmsfl.cli import ABOUT, COMMANDS
from pmsfl.paper.plan import Planned, Row, Table, Variant
from pmsfl.paper.tables import TABLES

SENT = {"mask.up": 1_000, "smashed.up": 60_000, "theta.down": 20_000}
CLIENTS = 100


def pmsfl(*words: object) -> int:
    return commands.main(COMMANDS, [str(w) for w in words], ABOUT)


def find(table: str, address: str) -> tuple[Row, Variant]:
    """A cell's row and variant by 'row/variant'."""
    wanted: Table = TABLES[table]
    [found] = [(r, v) for r, variants in wanted.lines for v in variants if f"{r.name}/{v.name}" == address]
    return found


def fake_log(
    out: Path,
    address: str,
    seed: int,
    accuracy: float,
    scale: str = "full",
    table: str = "table1",
    accuracy_global: float | None = None,
) -> Path:
    """A log as if the cell had been played: two evaluations, the same bytes in each round. The global model is 1 point
    behind the clients unless told."""
    of_global = accuracy - 1.0 if accuracy_global is None else accuracy_global
    row, variant = find(table, address)
    recipe = Planned(row, variant, scale, seed).recipe(Path("data"))
    folder = out / "logs" / table / f"{recipe.name}-{variant.name.replace('@', '_')}-s{seed}"
    folder.mkdir(parents=True)
    total = {k: v * recipe.rounds for k, v in SENT.items()}
    result: dict[str, Any] = {"run": "there", "date": "2026-01-02", "clients": CLIENTS, "seconds": 12.5}
    result |= {"accuracy": accuracy, "accuracy_best": accuracy + 1.0, "accuracy_global": of_global}
    result |= {"accuracy_local_global": of_global, "mask_entropy": 0.5 if "pm-sfl" in address else None}
    result |= {"bytes": total | {"total": sum(total.values())}}
    lines = []
    for done in range(1, recipe.rounds + 1):
        line: dict[str, Any] = {"round": done, "loss": 1.0 / done, "mask_entropy": result["mask_entropy"]}
        line["bytes"] = SENT | {"total": sum(SENT.values())}
        if done in (recipe.rounds // 2, recipe.rounds):
            so_far = done / recipe.rounds
            line["evaluation"] = {"accuracy": accuracy * so_far, "accuracy_global": of_global * so_far}
        lines.append(json.dumps(line))
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "versions.json").write_text(json.dumps({"device": "a GPU"}), encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder
