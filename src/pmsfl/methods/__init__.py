"""The registry of methods: a new method is one new file and one line here."""

from __future__ import annotations

from pmsfl.errors import PmsflError
from pmsfl.methods.base import Method
from pmsfl.methods.controls import DenseFrozen, FrozenMask, ThresholdMask
from pmsfl.methods.depthfl import DepthFL, DepthFLWeights
from pmsfl.methods.lg_fedavg import LGFedAvg, LGFedAvgWeights
from pmsfl.methods.pm_sfl import PMSFL
from pmsfl.methods.splitfed import SplitFed
from pmsfl.methods.splitfed_dp import SplitFedDP
from pmsfl.methods.splitfed_pm import SplitFedPM
from pmsfl.methods.standalone import Standalone
from pmsfl.recipe import Recipe
from pmsfl.recipe_files import nearest

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        PMSFL,
        SplitFed,
        SplitFedPM,
        SplitFedDP,
        Standalone,
        LGFedAvg,
        DepthFL,
        FrozenMask,
        DenseFrozen,
        ThresholdMask,
    )
}
WEIGHT_VARIANTS: dict[str, type[Method]] = {m.name: m for m in (LGFedAvgWeights, DepthFLWeights)}


def make_method(recipe: Recipe) -> Method:
    """The method a recipe names."""
    if recipe.method not in METHODS:
        raise PmsflError(f"unknown method {recipe.method!r}: {nearest(recipe.method, METHODS)}")
    variants = WEIGHT_VARIANTS if recipe.train == "weights" else {}
    return variants.get(recipe.method, METHODS[recipe.method])(recipe)


__all__ = ["METHODS", "Method", "make_method"]
