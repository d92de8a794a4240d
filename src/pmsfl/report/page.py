"""A run as one HTML file to look at: charts, tables, recipe. It needs no network, no script, no plotting library."""

from __future__ import annotations

from pathlib import Path

from pmsfl._version import __version__
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.report import page_clients as clients
from pmsfl.report import page_parts as parts
from pmsfl.report.listing import aggregation, bytes_sent
from pmsfl.report.page_parts import Facts
from pmsfl.report.page_style import document, grid
from pmsfl.report.page_svg import escape
from pmsfl.run import Run
from pmsfl.rundir import write_whole

NAME = "report.html"


def write_page(run: Run) -> Path:
    """Write report.html into the run's directory and return its path. An unfinished run has one too."""
    path = run.path / NAME
    write_whole(path, render(run))
    return path


def render(run: Run) -> str:
    """The page's HTML."""
    f = gather(run)
    body = [_heading(f)]
    if f.metrics:
        body += [
            parts.headline(f),
            "<h2>Over rounds</h2>",
            grid(
                (
                    parts.accuracy_card(f),
                    parts.loss_card(f),
                    parts.entropy_card(f),
                    parts.bytes_card(f),
                    *parts.layers_cards(f),
                )
            ),
            "<h2>Clients</h2>",
        ]
        cards = [clients.accuracy_card(f)]
        if f.world is not None:
            cards += [clients.labels_card(f, f.world), clients.costs_card(f, f.world)]
        body.append(grid(cards))
    else:
        body.append("<p>No round is complete yet.</p>")
    if f.why:
        body.append(f'<p class="soft">Labels and costs per client are not shown: {escape(f.why)}</p>')
    body += ["<h2>How it was made</h2>", parts.recipe_details(f.recipe), parts.versions_details(f.versions)]
    body.append(f"<footer>Written by pmsfl {escape(__version__)}. Rewrite it with: pmsfl report RUN</footer>")
    return document(f"{f.recipe.name} {f.recipe.method}, seed {f.recipe.seed}", body)


def gather(run: Run) -> Facts:
    """Everything that the page shows."""
    versions = run.directory.read_json("versions.json") or {}
    metrics = run.metrics
    world, why = _world(run, versions)
    sent = run.result["bytes"] if run.result else bytes_sent(metrics)
    return Facts(run.recipe, metrics, sent, run.result, versions, world, why)


def _world(run: Run, versions: dict[str, object]) -> tuple[World | None, str]:
    """The run's world, or why there is none: data may have moved, or never have been what the recipe names."""
    try:
        world = run.world
    except PmsflError as e:
        return None, str(e)
    if versions.get("data", world.federation.fingerprint()) != world.federation.fingerprint():
        return None, "the data is not what this run was trained on (its fingerprint differs)."
    return world, ""


def _heading(f: Facts) -> str:
    r, done = f.recipe, f.metrics[-1]["round"] if f.metrics else 0
    held = parts.plural(f.world.federation.clients, "client") if f.world else ""
    device = str(f.versions.get("device", ""))
    about = [
        f"{done} of {r.rounds} rounds" if f.result is None else parts.plural(r.rounds, "round"),
        held,
        f"seed {r.seed}",
    ]
    about += [f"preset {r.preset}", f"aggregate {aggregation(r)}", f"model {r.model}, depths {r.depths}", device]
    tag = '<span class="tag">not finished</span>' if f.result is None else ""
    line = " · ".join(escape(a) for a in about if a)
    summary = f"<p>{escape(f.world.method.summary)}</p>" if f.world else ""
    return f'<header><h1>{escape(r.name)}: {escape(r.method)}{tag}</h1>{summary}<p class="soft">{line}</p></header>'
