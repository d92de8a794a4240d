"""What there is to choose from: methods, recipes, knobs."""

from __future__ import annotations

import json
from dataclasses import Field, fields
from importlib import resources
from typing import Any

from pmsfl.methods import METHODS
from pmsfl.recipe import Recipe, known_key
from pmsfl.recipe_files import shipped
from pmsfl.report.console import emit_json, pairs, say, table


def methods(as_json: bool) -> None:
    """Every method: what it trains, what it uploads, where it comes from."""
    names = ("name", "trains", "uploads", "summary", "paper")
    rows = [{n: getattr(method, n) for n in names} for method in METHODS.values()]
    if as_json:
        emit_json({"methods": rows})
    else:
        table("", names, [list(row.values()) for row in rows])


def recipes() -> None:
    """Every shipped recipe with the first line of its comment."""
    folder = resources.files("pmsfl") / "recipes"
    rows = []
    for name in shipped():
        first = (folder / f"{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
        rows.append((name, first.lstrip("# ") if first.startswith("#") else ""))
    table("", ("recipe", "what it is"), rows)
    say("train one with: pmsfl run RECIPE    your own: pmsfl run my.toml")


def knobs(key: str | None) -> None:
    """Every key of a recipe by section, or all about one."""
    known = {f.name: f for f in fields(Recipe)}
    if key is not None:
        return _one(known[known_key(key)])
    sections = dict.fromkeys(f.metadata["section"] for f in known.values())
    for section in sections:
        mine = [f for f in known.values() if f.metadata["section"] == section]
        rows = [(f.name, default(f), allowed(f), f.metadata["doc"]) for f in mine]
        table(f"[{section}]", ("key", "default", "allowed", "meaning"), rows)
    say("change one with: pmsfl run -c key=value    about one: pmsfl knobs KEY")
    return None


def _one(f: Field[Any]) -> None:
    items = [
        ("meaning", f.metadata["doc"]),
        ("section", f.metadata["section"]),
        ("default", default(f)),
        ("allowed", allowed(f)),
    ]
    pairs(f.name, items)


def default(f: Field[Any]) -> str:
    """The default as a recipe writes it."""
    return json.dumps(f.default, ensure_ascii=False)


def allowed(f: Field[Any]) -> str:
    """The values a key takes, in words."""
    choices, low, high = (f.metadata[k] for k in ("choices", "low", "high"))
    if choices:
        return ", ".join(choices)
    if low is not None and high is not None:
        return f"{low} to {high if high < 2**62 else '2^63 - 1'}"
    if low is not None:
        return f"at least {low}"
    return {bool: "true, false", str: "text", int: "whole number", float: "number"}[type(f.default)]
