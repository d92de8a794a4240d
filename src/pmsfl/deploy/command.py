"""What `pmsfl deploy …` does and prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pmsfl.deploy import kits, operate
from pmsfl.deploy.books import STATUS
from pmsfl.deploy.host import SiteConfig, runs_folder
from pmsfl.deploy.settings import Patience
from pmsfl.deploy.store import safe_name
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.report.console import MISSING, emit_json, human_bytes, note, number, pairs, percent, say, table

SEEN = "the server sees each site's; every upload is checked"
SUMMED = (
    "secure sums: the server sees their sum only, not which coordinates are personal; uploads are neither "
    "entropy-coded nor checked one by one (no mask score); norms, smashed data and labels go as ever"
)


def init(folder: Path, sites: str, server: str, port: int) -> None:
    """Make the kits and say where each belongs."""
    made = kits.init(folder, [s.strip() for s in sites.split(",") if s.strip()], server, port)
    rows = []
    for name, kit in made.items():
        role = "server" if name == server else "administrator" if name == kits.ADMIN else "site"
        rows.append((role, name, str(kit)))
    table("kits", ["role", "name", "folder"], rows)
    say(f"copy each folder to its host, and only there; keep {folder / 'work'} (the authority's key) offline")


def serve(kit: Path) -> None:
    """Run the server until it is stopped."""
    note(f"server of {kit}; its port must be reachable, nobody else's")
    if code := operate.serve(kit):
        raise PmsflError(f"the server ended with code {code}; see {kit}/log.txt")


def site(kit: Path, data: str, depth: int | None, repeat_simulation: bool, secure_sums: bool) -> None:
    """Run a site until it is stopped."""
    note(f"{data} stays on this host")
    if code := operate.site(kit, SiteConfig(data, depth, repeat_simulation, secure_sums)):
        raise PmsflError(f"the site ended with code {code}; see {kit}/log.txt")


def start(
    recipe: str,
    changes: Sequence[str],
    method: str | None,
    kit: Path,
    run: str | None,
    job_rounds: int,
    min_clients: int,
    step_seconds: float,
    secure_sums: bool,
) -> None:
    """Submit jobs until the run is complete."""
    wanted = Recipe.load(recipe, changes, method=method)
    if job_rounds < 1:
        raise PmsflError(f"--job-rounds {job_rounds}: take at least 1")
    patience = Patience(min_clients=min_clients, step_seconds=step_seconds, gather_seconds=step_seconds)
    operate.start(kit, wanted, run_name(wanted, run), job_rounds, patience, note, secure_sums)


def run_name(recipe: Recipe, run: str | None) -> str:
    """What a run is called on the server and on every site."""
    return safe_name(run or f"{recipe.name}-{recipe.method}-s{recipe.seed}")


def status(kit: Path, run: str | None, as_json: bool) -> None:
    """How far a run is and how it goes: asked over the network with the admin's kit, read with the server's."""
    name = run or _newest(kit)
    if runs_folder(kit).is_dir():
        found: dict[str, Any] = {"run": _read(kit, name), "connected": None, "jobs": None}
    else:
        found = operate.status(kit, name)
    if as_json:
        return emit_json(found)
    return _tell(found)


def _newest(kit: Path) -> str:
    """The run that was last started from here."""
    places = [*runs_folder(kit).glob("*"), *((kit / "jobs").glob("pmsfl-*"))]
    if not places:
        kits.read_plan(kit)
        raise PmsflError(f"{kit} knows of no run yet; name one with --run")
    return max(places, key=lambda p: p.stat().st_mtime).name.removeprefix("pmsfl-")


def _read(kit: Path, run: str) -> dict[str, Any]:
    file = runs_folder(kit) / safe_name(run) / STATUS
    if not file.is_file():
        raise PmsflError(f"{kit} has no run {run!r}")
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _tell(found: dict[str, Any]) -> None:
    run = found["run"]
    if run is None:
        say("the server has nothing of this run yet")
        return
    times = run["timing"]
    trip = f"{number(times['trip_p50_ms'], 1)} / {number(times['trip_p99_ms'], 1)} ms"
    pairs(
        run["run"],
        [
            ("round", f"{run['round']} of {run['rounds']} ({run['phase']})"),
            ("accuracy", percent(run["accuracy"])),
            ("mask entropy", f"{number(run['mask_entropy'])} bit"),
            ("bytes", human_bytes(run["bytes"]["total"])),
            ("a batch's round trip, p50 / p99", trip if times["steps"] else MISSING),
            (
                "of that in the engine",
                MISSING if times["engine_share"] is None else f"{100 * times['engine_share']:.0f} %",
            ),
            ("failed", run["failed"] or "no"),
            ("masks", SUMMED if run.get("secure_sums") else SEEN),
        ],
    )
    rows = [
        (
            name,
            "here" if s["here"] else "away",
            s["train"] if s["train"] is not None else MISSING,
            s["depth"] if s["depth"] is not None else MISSING,
            number(s["mask_score"], 1),
            s["refused"][-1] if s["refused"] else "",
        )
        for name, s in run["sites"].items()
    ]
    table("sites", ["site", "", "samples", "depth", "mask score", "last refusal"], rows)
    if found["connected"] is not None:
        say(f"connected: {', '.join(found['connected']) or 'nobody'}")


def stop(kit: Path, everything: bool) -> None:
    """Abort jobs, or shut everything down."""
    for line in operate.stop(kit, everything):
        say(line)
