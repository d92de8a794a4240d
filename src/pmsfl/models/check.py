"""`pmsfl check-model`: does a model fit, what of it is masked, what does each cut cost, does it vectorise?"""

from __future__ import annotations

from dataclasses import dataclass

from pmsfl.models.inspect import CutCost, check_forward, cut_cost, why_not_vectorised
from pmsfl.models.registry import make_model
from pmsfl.recipe import Recipe


@dataclass(frozen=True)
class ModelReport:
    """What `check_model` found. masked: (name, shape, coordinates) of every weight that carries a mask."""

    depth: int
    masked: list[tuple[str, tuple[int, ...], int]]
    plain_parameters: int
    cuts: list[CutCost]
    vectorised: bool
    reason: str | None


def check_model(target: str, input_shape: tuple[int, ...], classes: int, batch: int = 32) -> ModelReport:
    """Build a model (a shipped name, or module:function) and run it at every cut; PmsflError where it cannot."""
    model = make_model(Recipe(model=target), input_shape, classes)
    check_forward(model, input_shape, classes, f"model {target!r}")
    cuts = [cut_cost(model, input_shape, d, batch) for d in range(1, model.depth + 1)]
    reason = why_not_vectorised(model, input_shape, model.depth)
    masked = [(s.name, s.shape, s.size) for s in model.layout.masked]
    return ModelReport(model.depth, masked, model.layout.plain_size, cuts, reason is None, reason)
