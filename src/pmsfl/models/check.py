"""`pmsfl check-model`: does a model fit, what of it is masked, what does each cut cost, does it vectorise?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pmsfl.errors import PmsflError
from pmsfl.models.inspect import CutCost, cut_cost, why_not_vectorised
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
    x = torch.zeros(2, *input_shape)
    try:
        with torch.no_grad():
            logits = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as e:
        raise PmsflError(f"model {target!r} fails on an input of shape {(2, *input_shape)}: {e}") from None
    if tuple(logits.shape) != (2, classes):
        raise PmsflError(
            f"model {target!r}: output of shape {tuple(logits.shape)}, expected (2, {classes}): one logit per class"
        )
    if not model.layout.masked:
        raise PmsflError(f"model {target!r}: no convolution or linear layer in its blocks, so nothing can be masked")
    cuts = [cut_cost(model, input_shape, d, batch) for d in range(1, model.depth + 1)]
    reason = why_not_vectorised(model, input_shape, model.depth)
    masked = [(s.name, s.shape, s.size) for s in model.layout.masked]
    return ModelReport(model.depth, masked, model.layout.plain_size, cuts, reason is None, reason)
