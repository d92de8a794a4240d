"""`pmsfl data`: who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pmsfl.data.federation import Federation
from pmsfl.engine.plan import assign_depths
from pmsfl.engine.settings import federation_of
from pmsfl.errors import PmsflError
from pmsfl.models.registry import make_model
from pmsfl.recipe import Recipe
from pmsfl.report.console import emit_json, note, pairs, say, table


def show(recipe_name: str, changes: Sequence[str], out: Path | None, as_json: bool) -> None:
    """A table of clients, and a heat map where `out` names a file."""
    recipe = Recipe.load(recipe_name, changes)
    federation = federation_of(recipe)
    model = make_model(recipe, tuple(federation.x.shape[1:]), federation.classes)
    depths = assign_depths(recipe.depths, federation.clients, model.depth)
    drawn = out is not None and _draw(federation, depths, out)
    for line in federation.notes:
        note(line)
    clients = client_rows(federation, depths)
    if as_json:
        picture = str(out) if drawn else None
        return emit_json({"summary": federation.summary(), "clients": clients, "picture": picture})
    _show_summary(recipe, federation)
    rows = [(c["client"], c["owner"], c["train"], c["test"], c["classes"], c["depth"]) for c in clients]
    table("", ("client", "owner", "train", "test", "classes", "depth"), rows)
    if drawn:
        return say(f"heat map: {out}")
    return say("draw labels by client with: --out FILE.png") if out is None else None


def client_rows(federation: Federation, depths: Sequence[int]) -> list[dict[str, Any]]:
    """Per client: owner, samples, classes present, depth, samples of each label."""
    counts = federation.label_counts()
    return [
        {
            "client": k,
            "owner": federation.owners[k],
            "train": len(federation.train[k]),
            "test": len(federation.test[k]),
            "classes": int((counts[k] > 0).sum()),
            "depth": depths[k],
            "labels": counts[k],
        }
        for k in range(federation.clients)
    ]


def _show_summary(recipe: Recipe, federation: Federation) -> None:
    sizes = np.array(federation.sizes)
    official = "official" if federation.global_test_is_official else "all clients' tests"
    items = [
        ("data", f"{federation.name}, samples of {'x'.join(map(str, federation.x.shape[1:]))}"),
        ("partition", f"{recipe.partition} to {federation.clients} clients, tests {recipe.test_split}"),
        ("train", f"{sizes.sum()} samples, {sizes.min()} to {sizes.max()} per client"),
        ("test", f"{sum(map(len, federation.test))} of clients, {len(federation.global_test)} global ({official})"),
        ("classes", federation.classes),
    ]
    pairs(f"recipe {recipe.name}", items)
    say()


def _draw(federation: Federation, depths: Sequence[int], out: Path) -> bool:
    """Draw the heat map; False where matplotlib is missing."""
    try:
        from pmsfl.report.heatmap import draw_labels
    except ImportError:
        note("no heat map: matplotlib is not installed (pip install matplotlib)")
        return False
    names = getattr(federation, "class_names", ()) or tuple(map(str, range(federation.classes)))
    try:
        draw_labels(federation.label_counts(), depths, names, federation.name, out)
    except ValueError as e:  # a format matplotlib does not write
        raise PmsflError(f"{out}: {e}; take a name that ends in .png") from None
    return True
