"""Lines a user should know before a run: depths, promises, how batches and clients fit, a GPU that is not whole."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from pmsfl.engine.channels import channels, guaranteed
from pmsfl.engine.spending import Spending

if TYPE_CHECKING:
    from pmsfl.engine.world import World

MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # NVIDIA's: of the multiprocessors, for this process


def notes_of(world: World) -> list[str]:
    """All of them, in the order they are printed."""
    found = (_depth_notes, _label_notes, _promise_notes, _batch_notes, _share_notes)
    return [line for notes in found for line in notes(world)]


def label_honesty(epsilon: float, classes: int) -> float:
    """The chance that randomised response tells the truth: e^ε / (e^ε + C − 1)."""
    return 1.0 / (1.0 + (classes - 1) * math.exp(-epsilon))


def _depth_notes(world: World) -> list[str]:
    if not world.mixed and world.recipe.depths != "auto":
        return []
    counts = {d: world.depths.count(d) for d in sorted(set(world.depths))}
    return ["depths: " + ", ".join(f"{n} clients cut after block {d}" for d, n in counts.items())]


def _label_notes(world: World) -> list[str]:
    r = world.recipe
    if r.labels != "randomised":
        return []
    honest = 100.0 * label_honesty(r.label_epsilon, world.federation.classes)
    return [f"labels: randomised response, ε = {r.label_epsilon:g} per label for the whole run ({honest:.1f} % true)"]


def _promise_notes(world: World) -> list[str]:
    """What a run with mechanisms of privacy may and may not promise at its end."""
    if world.recipe.method == "splitfed-dp" and world.recipe.dp_calibration == "paper":
        return [
            "guarantee: none. Noise per coordinate at range/ε with batch norm is the paper's calibration; "
            "dp_calibration=sound clips and accounts"
        ]
    promised = guaranteed(world)
    if not promised:
        return []
    r = world.recipe
    lines = [_rows_note(world)] if world.noises_gradients else []
    spending = Spending.of(world, r.turns)
    for c in promised:
        epsilon = c.most(spending, r.dp_delta)
        lines.append(f"guarantee, {c.name}: {c.why}. After {r.rounds} rounds ε = {epsilon:.3g} (δ = {r.dp_delta:g})")
    without = [c.name for c in channels(world) if c.events is None]
    if without:
        lines.append(f"no guarantee for {', '.join(without)}; see pmsfl privacy")
    return lines


def _rows_note(world: World) -> str:
    """Scores, draws, weights, gradients and clipped gradients, a row each per sample."""
    element = world.initial_shared.element_size()
    rows = len(world.plan(0).clients) * world.recipe.batch
    size = 5 * rows * world.masked_size(max(world.depths)) * element
    return (
        f"score_gradient_noise: every sample has scores of its own in a step, about {size / 1e6:.3g} MB beyond the plan"
    )


def _batch_notes(world: World) -> list[str]:
    small = [c for c, n in enumerate(world.sizes) if 0 < n < world.recipe.batch]
    if not small:
        return []
    return [
        f"{len(small)} of {len(world.sizes)} clients hold fewer samples than the batch of "
        f"{world.recipe.batch} (client {small[0]}: {world.sizes[small[0]]}); their batches repeat samples"
    ]


def _share_notes(world: World) -> list[str]:
    """Half precision on a share of a GPU's multiprocessors: seen to be wrong, and not always so wrong as to stop."""
    share = os.environ.get(MPS_SHARE, "").strip()
    if not world.half or share in ("", "100", "100.0"):
        return []
    return [
        f"{MPS_SHARE}={share}: under such a limit large bf16 products came out wrong (torch 2.11, CUDA 13.0, an H200), "
        "with or without NaN; unset it or take -c precision=full"
    ]
