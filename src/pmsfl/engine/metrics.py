"""What one round tells: loss, entropy of the sampled masks, disagreement, work done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pmsfl.engine.client import Finished
from pmsfl.engine.plan import RoundPlan, round_of
from pmsfl.engine.server import Server
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe


@dataclass(frozen=True)
class RoundMetrics:
    """One round in plain numbers."""

    round: int
    loss: float
    samples: int
    mask_entropy: float | None  # mean over coordinates and clients, personal ones included, in bits
    entropy_per_layer: dict[str, float]
    disagree: float | None
    personal: float  # mean share of coordinates that are personal, over the round's clients
    failed: int = 0  # clients that never answered
    late: int = 0  # clients whose upload was dropped
    at_clip: float | None = None  # mean share of θ at c or 1 − c, over the round's clients


def over_turns(turns: Sequence[RoundMetrics]) -> RoundMetrics:
    """A round's metrics from those of its turns: work and loss of all of them, masks as they are at its end."""
    if len(turns) == 1:
        return turns[0]
    samples = sum(t.samples for t in turns)
    return replace(
        turns[-1],
        round=turns[0].round // len(turns),
        loss=sum(t.loss * t.samples for t in turns) / max(samples, 1),
        samples=samples,
    )


def diverged(round_: int, what: str) -> PmsflError:
    """The error of a training that left the numbers. Resuming would only repeat it: a recipe stays as it is."""
    return PmsflError(
        f"round {round_ + 1}: {what}; start a new run with a lower lr_server, lr_client or lr_score "
        "(-c lr_server=0.01, say)"
    )


def check_finite(state: State, recipe: Recipe) -> None:
    """Raises where what the last turn learned is no number."""
    if not (torch.isfinite(state.shared).all() and torch.isfinite(state.plain).all()):
        raise diverged(round_of(recipe, state.round - 1), "what was learned is not finite")


def collect(world: World, server: Server, done: Sequence[Finished], plan: RoundPlan) -> RoundMetrics:
    """The metrics of a round. Raises where the loss is no number: the state before the round is still good."""
    loss = float(server.rows.loss_sum) / max(server.samples, 1)
    if not math.isfinite(loss):
        raise diverged(round_of(world.recipe, plan.round), f"the loss is {loss}")
    bits: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    crossed: list[float] = []
    kept: list[float] = []
    edge: list[float] = []
    for d in done:
        if d.entropy is not None and d.entropy.numel():
            for slot, column in zip(world.layout.masked, d.entropy.T.tolist(), strict=False):
                bits.setdefault(slot.name, []).extend(column)
                sizes[slot.name] = slot.size
        if d.disagree is not None:
            crossed += d.disagree.tolist()
        if d.at_clip is not None:
            edge += d.at_clip.tolist()
        kept += ((~d.contributes).sum(1).double() / max(d.contributes.shape[1], 1)).tolist()
    total = sum(sizes[n] * len(b) for n, b in bits.items())
    entropy = sum(sizes[n] * sum(b) for n, b in bits.items()) / total if total else None
    return RoundMetrics(
        plan.round,
        loss,
        server.samples,
        entropy,
        {n: sum(b) / len(b) for n, b in bits.items()},
        sum(crossed) / len(crossed) if crossed else None,
        sum(kept) / max(len(kept), 1),
        len(plan.failed),
        len(plan.clients) - sum(plan.on_time),
        sum(edge) / len(edge) if edge else None,
    )
