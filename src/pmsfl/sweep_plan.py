"""Which cells a sweep has: the product of methods, values and seeds, every recipe checked before one is trained."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pmsfl.data.federation import Federation
from pmsfl.engine.settings import federation_of
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe, RecipeError, known_key
from pmsfl.rundir import RunDirectory

SWEEPS = Path("sweeps")


@dataclass(frozen=True)
class Cell:
    """One run: what was asked for (a recipe and changes to it), the recipe that makes, and where it lies."""

    name: str
    source: str
    overrides: tuple[str, ...]
    recipe: Recipe
    path: Path

    @property
    def result(self) -> dict[str, Any] | None:
        """What it reached; None before it is finished."""
        return RunDirectory(self.path).read_json("result.json")

    @property
    def begun(self) -> bool:
        """Is there something to resume?"""
        return (self.path / "recipe.toml").is_file()


@dataclass(frozen=True)
class Sweep:
    """A recipe and the cells to make of it; swept: keys that have several values, seed and method apart."""

    source: str
    out: Path
    swept: tuple[str, ...]
    cells: tuple[Cell, ...]


def split_values(text: str) -> tuple[str, list[str]]:
    """'key=v1,v2' → (key, [v1, v2]). With a semicolon anywhere, only semicolons separate: 'depths=1,2;2'."""
    key, equals, raw = text.partition("=")
    if not equals:
        raise RecipeError(f"{text!r}: write it as key=value,value")
    mark = ";" if ";" in raw else ","
    values = [v.strip() for v in raw.removesuffix(";").split(mark)]
    return known_key(key.strip()), values


def plan(source: str, methods: str | None, changes: Iterable[str], seeds: int | None, out: Path | None) -> Sweep:
    """All cells, every recipe checked; raises before anything is trained."""
    axes = _axes(methods, changes, seeds)
    swept = tuple(k for k, values in axes.items() if len(values) > 1 and k not in ("method", "seed"))
    first = Recipe.load(source, [f"{k}={v[0]}" for k, v in axes.items()])
    folder = out or SWEEPS / first.name
    there = recipes_below(folder)
    cells: list[Cell] = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        overrides = tuple(f"{k}={v}" for k, v in chosen.items())
        recipe = Recipe.load(source, overrides)
        name = cell_name(recipe.method, {k: chosen[k] for k in swept}, recipe.seed)
        path = there.get(recipe, folder / name)
        if any(c.recipe == recipe for c in cells):
            raise RecipeError(f"{name} is asked for twice: two of the values are the same")
        _check_place(path, recipe, name, cells)
        cells.append(Cell(name, source, overrides, recipe, path))
    _check_worlds(cells)
    return Sweep(source, folder, swept, tuple(cells))


def _axes(methods: str | None, changes: Iterable[str], seeds: int | None) -> dict[str, list[str]]:
    """Keys and their values in the order of the cells: methods first, seeds last."""
    axes: dict[str, list[str]] = {"method": methods.split(",")} if methods else {}
    for key, values in map(split_values, changes):
        if key in axes:
            raise RecipeError(f"{key} is given twice; name all its values in one place: {key}=a,b")
        axes[key] = values
    if seeds is not None and "seed" in axes:
        raise RecipeError("seeds are given twice; take either --seeds or -c seed=")
    if seeds is not None and seeds < 1:
        raise RecipeError(f"--seeds {seeds}: take at least 1")
    wanted = axes.pop("seed", [str(s) for s in range(seeds or 1)])
    return {k: [v.strip() for v in values] for k, values in axes.items()} | {"seed": wanted}


def cell_name(method: str, values: dict[str, str], seed: int) -> str:
    """'pm-sfl-lr_score=0.1-s0'; what no file name should have becomes an underscore."""
    words = [method, *(f"{k}={v}" for k, v in values.items()), f"s{seed}"]
    return re.sub(r"[^\w.,=+-]", "_", "-".join(words)).lstrip(".")


def recipes_below(folder: Path) -> dict[Recipe, Path]:
    """The runs that are there already, by their recipe."""
    found = {}
    for file in sorted(folder.glob("*/recipe.toml")):
        try:
            found[RunDirectory(file.parent).recipe()] = file.parent
        except (PmsflError, OSError, ValueError):  # damaged, or of another version: its name stays taken
            continue
    return found


def _check_place(path: Path, recipe: Recipe, name: str, cells: Sequence[Cell]) -> None:
    if any(c.path == path for c in cells):
        raise PmsflError(f"two cells would lie in {path}; values must differ in letters or digits")
    if (path / "recipe.toml").is_file() and RunDirectory(path).recipe() != recipe:
        raise PmsflError(f"{path} holds a run of another recipe than {name} needs; choose another --out")


def _check_worlds(cells: Sequence[Cell]) -> None:
    """Depths, budgets and methods show only with data and a model whether they fit: one seed of each will do."""
    seen: set[Recipe] = set()
    federations: dict[tuple[Any, ...], Federation] = {}
    for cell in cells:
        alike = cell.recipe.replace(seed=0, rounds=1)
        if cell.begun or alike in seen:
            continue
        seen.add(alike)
        key = tuple(asdict(alike)[f.name] for f in fields(Recipe) if f.metadata["section"] == "data")
        try:
            if key not in federations:
                federations = {key: federation_of(alike)}  # only the newest is kept: they may be large
            World(alike, "cpu", federations[key])
        except PmsflError as e:
            raise PmsflError(f"{cell.name}: {e}") from None
