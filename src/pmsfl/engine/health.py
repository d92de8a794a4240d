"""Are the masks still random, and do they learn? What to change where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pmsfl.engine.settings import learning_rate
from pmsfl.recipe import Recipe

LOW_ENTROPY = 0.2  # bits; below it most masks are public constants
HIGH_CLIP = 0.5  # share of θ at c or 1 − c: as many coordinates drift rather than learn
MANY_MASKS = 4  # of which a forward pass takes the mean: chance moves a weight by a quarter of it at most
FEW_CROSS = 1e-4  # share of coordinates that cross 0.5
WORKS = 0.1  # a rate of the scores at which they cross with Adam


def warnings(recipe: Recipe, personalises: bool, line: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong after a round, by the metric that shows it. line: of metrics.jsonl; older ones lack some keys."""
    found = {}
    entropy, edge, crossed = line.get("mask_entropy"), line.get("at_clip"), line.get("disagree")
    if entropy is not None and recipe.forward_masks >= MANY_MASKS:
        found["mask_entropy"] = (
            f"forward passes run under the mean of {recipe.forward_masks} masks: chance only decides between two "
            f"neighbours 1/{recipe.forward_masks} apart (an entropy of {entropy:.2f} bit) and hides next to nothing; "
            "forward_masks=1 has masks of bits"
        )
    elif entropy is not None and entropy < LOW_ENTROPY:
        layers = line.get("entropy_per_layer") or {}
        worst = min(layers, key=lambda name: layers[name]) if layers else ""
        where = f" (lowest in {worst}: {layers[worst]:.2f})" if worst else ""
        softer = "a smaller mask_sharpness" if recipe.mask_sharpness > 1.0 else "aggregate=damped"
        found["mask_entropy"] = (
            f"mask entropy fell to {entropy:.2f} bit{where}; a mask that is always the same hides nothing. Use "
            f"{softer}, a smaller lr_score or a larger clip"
        )
    if edge is not None and edge > HIGH_CLIP:
        lower = "a smaller damping" if recipe.aggregate == "damped" else "aggregate=damped"
        found["at_clip"] = (
            f"{100.0 * edge:.0f} % of θ are at the clip ({recipe.clip:g} or {1.0 - recipe.clip:g}), where masks hardly "
            f"change; use {lower}, more clients per round, a smaller lr_score or a larger clip"
        )
    picks = personalises and recipe.personal_ratio > 0.0
    if crossed is not None and crossed < FEW_CROSS and picks and not _at_rest(recipe, line):
        known = f" ({WORKS:g} works)" if recipe.lr_score < WORKS else ""
        found["disagree"] = (
            f"the disagree group is empty: {100.0 * crossed:.2g} % of θ crossed 0.5, and |Δθ| alone decides what "
            f"becomes personal; use a larger lr_score than {recipe.lr_score:g}{known}"
        )
    return found


def at_the_end(recipe: Recipe, personalises: bool, metrics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What is wrong after the last round; whether scores cross, from the last round before they came to rest."""
    found = warnings(recipe, personalises, metrics[-1])
    moving = next((line for line in reversed(metrics) if not _at_rest(recipe, line)), metrics[-1])
    before = warnings(recipe, personalises, moving)
    return found | ({"disagree": before["disagree"]} if "disagree" in before else {})


def _at_rest(recipe: Recipe, line: Mapping[str, Any]) -> bool:
    """Has the schedule brought the rate of the scores down, so that few are meant to cross?"""
    r, round_ = recipe, int(line.get("round", 1))
    return learning_rate(1.0, r.score_schedule, round_, r.rounds, r.rest_from) < 0.5
