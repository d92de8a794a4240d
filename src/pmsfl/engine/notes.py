"""Lines a user should know before a run: depths, promises, how batches and clients fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pmsfl.engine.plan import local_steps
from pmsfl.methods import Method

if TYPE_CHECKING:
    from pmsfl.engine.world import World


def notes_of(world: World) -> list[str]:
    """All of them, in the order they are printed."""
    return [*_depth_notes(world), *_label_notes(world), *_method_notes(world), *_batch_notes(world)]


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


def _method_notes(world: World) -> list[str]:
    if type(world.method).notes is Method.notes:
        return []  # planning every round only to say nothing would be a waste
    times: dict[int, int] = {}
    for t in range(world.recipe.rounds):
        for c in world.plan(t).clients:
            times[c] = times.get(c, 0) + 1
    r = world.recipe
    per_round = {c: -(-local_steps(r, world.sizes[c]) * r.batch // int(world.sizes[c])) for c in times}
    return world.method.notes(max(n * per_round[c] for c, n in times.items()), max(times.values()))


def _batch_notes(world: World) -> list[str]:
    small = [c for c, n in enumerate(world.sizes) if 0 < n < world.recipe.batch]
    if not small:
        return []
    return [
        f"{len(small)} of {len(world.sizes)} clients hold fewer samples than the batch of "
        f"{world.recipe.batch} (client {small[0]}: {world.sizes[small[0]]}); their batches repeat samples"
    ]
