"""The registry of methods: a new method is one new file and one line here."""

from __future__ import annotations

from pmsfl.errors import PmsflError
from pmsfl.methods.base import Method
from pmsfl.methods.controls import DenseFrozen, FrozenMask, ThresholdMask
from pmsfl.methods.pm_sfl import PMSFL
from pmsfl.methods.splitfed import SplitFed
from pmsfl.methods.splitfed_pm import SplitFedPM
from pmsfl.recipe import Recipe, nearest

METHODS: dict[str, type[Method]] = {
    m.name: m for m in (PMSFL, SplitFed, SplitFedPM, FrozenMask, DenseFrozen, ThresholdMask)
}


def make_method(recipe: Recipe) -> Method:
    """The method a recipe names."""
    if recipe.method not in METHODS:
        raise PmsflError(f"unknown method {recipe.method!r}: {nearest(recipe.method, METHODS)}")
    return METHODS[recipe.method](recipe)


__all__ = ["METHODS", "Method", "make_method"]
