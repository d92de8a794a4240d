"""`pmsfl privacy`: what is guaranteed for each channel from a client to the server, and what the paper would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pmsfl.engine.channels import Channel, channels, guaranteed, sound_smashed
from pmsfl.engine.plan import round_steps
from pmsfl.engine.spending import Spending
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.privacy.accounting import bound, has_library, tight
from pmsfl.privacy.paper import Claim, claims
from pmsfl.recipe import Recipe
from pmsfl.report.console import MISSING, UsageError, emit_json, note, pairs, say, table
from pmsfl.rundir import RunDirectory

SHOWN = 20  # clients in the table


def show(name: str, changes: Sequence[str], rounds: int | None, as_json: bool) -> None:
    """What a recipe would spend, or what a run has spent so far."""
    is_run = (Path(name) / "recipe.toml").is_file()
    if is_run and (changes or rounds is not None):
        raise UsageError(f"{name} is a run: it says what was spent; leave out -c and --rounds")
    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds {rounds}: take at least 1")
    if is_run:
        directory = RunDirectory.open(Path(name))
        recipe, done = directory.recipe(), len(directory.metrics())
    else:
        recipe = Recipe.load(name, changes, rounds=rounds)
        done = recipe.rounds
    world = World(recipe)
    if is_run:
        _check_data(directory, world)
    spending = Spending.of(world, done if is_run and directory.tells_turns else done * recipe.merges)
    if as_json:
        return emit_json(as_dict(world, spending, done) | {"run": name if is_run else None})
    return _tell(world, spending, done, is_run)


def _check_data(directory: RunDirectory, world: World) -> None:
    """What was spent follows from how many samples each client held."""
    now = world.federation.fingerprint()
    if (directory.read_json("versions.json") or {}).get("data", now) != now:
        raise PmsflError(f"{directory.path}: the data is not what this run was trained on (its fingerprint differs)")


def as_dict(world: World, spending: Spending, rounds: int) -> dict[str, Any]:
    """Everything in plain types: channels, the clients' table, the paper's formulas."""
    r = world.recipe
    found = channels(world)
    return {
        "recipe": r.name,
        "method": r.method,
        "rounds": rounds,
        "delta": r.dp_delta,
        "accountant": "dp-accounting" if has_library() else "closed forms",
        "channels": {c.name: _channel(c, spending, r.dp_delta) for c in found},
        "covers_everything": all(c.events is not None for c in found),
        "clients": client_rows(world, spending),
        "paper": [asdict(c) | {"guarantee": False} for c in paper_claims(world)],
    }


def _channel(c: Channel, spending: Spending, delta: float) -> dict[str, Any]:
    out = {"epsilon": c.most(spending, delta, tight), "unit": c.unit, "why": c.why}
    return out if c.own is None else out | {"epsilon_own_releases": c.most_own(spending, delta, tight)}


def client_rows(world: World, spending: Spending) -> list[dict[str, Any]]:
    """Per client that took part: releases, and a closed-form bound of every ε that grows."""
    growing, delta = guaranteed(world), world.recipe.dp_delta
    return [
        {
            "client": client,
            "uploads": spent.uploads,
            "releases_per_record": spent.own,
            "releases": spent.rows,
            "epsilon": {c.name: c.epsilon(spent, delta, bound) for c in growing},
        }
        for client, spent in sorted(spending.clients.items())
    ]


def paper_claims(world: World) -> list[Claim]:
    """The paper's formulas for this recipe; empty where no masks are learned."""
    r = world.recipe
    if not world.method.samples_masks:
        return []
    return claims(
        clip=r.clip,
        size=world.masked_size(max(world.depths)),
        delta=r.dp_delta,
        steps=max((round_steps(r, int(n)) for n in world.sizes), default=0),
        smashed=r.dp_epsilon_smashed if sound_smashed(world) else None,
        gradient_noise=r.score_gradient_noise,
        theta_noise=r.theta_noise,
        upload_masks=world.method.upload_masks,
    )


# --- for people


def _tell(world: World, spending: Spending, rounds: int, is_run: bool) -> None:
    r, found = world.recipe, channels(world)
    if not has_library():
        note("dp-accounting is not installed: figures of Laplace noise are looser (pip install 'pmsfl[privacy]')")
    pairs(
        f"{r.name}: what {'was' if is_run else 'would be'} spent",
        [
            ("method", r.method),
            ("rounds", rounds),
            ("δ", f"{r.dp_delta:g}"),
            ("adversary", "the server, with everything that crossed the wire"),
        ],
    )
    say()
    rows = [(c.name, *_figures(c, spending, r.dp_delta), c.why) for c in found]
    table("guaranteed, for the client that spent most", ("channel", "ε", "unit", "why"), rows)
    without = [c.name for c in found if c.events is None]
    if without:
        say(f"There is no guarantee for what a client sends as a whole: {', '.join(without)} have none.\n")
    for c in found:
        if c.own is not None:
            own = c.most_own(spending, r.dp_delta, tight)
            say(f"{c.name}: a record's own releases alone would come to ε = {own:.4g}.\n")
    _tell_clients(client_rows(world, spending))
    _tell_paper(paper_claims(world))


def _figures(c: Channel, spending: Spending, delta: float) -> tuple[str, str]:
    epsilon = c.most(spending, delta, tight)
    return ("none", "") if epsilon is None else (f"{epsilon:.4g}", c.unit)


def _tell_clients(rows: list[dict[str, Any]]) -> None:
    if not rows or not rows[0]["epsilon"]:
        return
    names = list(rows[0]["epsilon"])
    rows = sorted(rows, key=lambda row: -max(row["epsilon"].values()))
    cells = [
        (row["client"], row["uploads"], row["releases_per_record"], *(f"{row['epsilon'][n]:.4g}" for n in names))
        for row in rows[:SHOWN]
    ]
    table("by client", ("client", "uploads", "releases of a record", *(f"ε ≤, {n}" for n in names)), cells)
    if len(rows) > SHOWN:
        say(f"and {len(rows) - SHOWN} clients that spent less\n")


def _tell_paper(found: list[Claim]) -> None:
    if found:
        rows = [(c.statement, MISSING if c.value is None else f"{c.value:.4g}", c.verdict) for c in found]
        table("the paper's formulas: not a guarantee", ("paper", "its ε", "verdict"), rows)
