"""Personalised mask selection: which coordinates a client keeps to itself, and how the set grows.

K clients, P coordinates. The set only grows, so the server needs each index once.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Growth = Literal["linear", "geometric", "one-shot", "count"]
Order = Literal["disagree", "magnitude", "random"]


def target_count(participations: int, size: int, ratio: float, steps: int, growth: Growth, count: int) -> int:
    """How many of `size` coordinates should be personal by now; never more than floor(ratio · size).

    participations: those past the initial agreement, this one included. linear: complete after `steps` of them;
    geometric: half of what is missing each time, complete after `steps`; one-shot: all at once;
    count: `count` more each time.
    """
    ceiling = int(ratio * size)
    if participations <= 0:
        return 0
    if growth == "count":
        return min(ceiling, count * participations)
    if growth == "one-shot" or participations >= steps:
        return ceiling
    reached = participations / steps if growth == "linear" else 1.0 - 0.5**participations
    return min(ceiling, int(ratio * size * reached))


def disagree(before: Tensor, after: Tensor) -> Tensor:
    """Which coordinates crossed 0.5, strictly: bool, same shape."""
    return (before - 0.5) * (after - 0.5) < 0


def rank_candidates(
    before: Tensor, after: Tensor, personal: Tensor, order: Order, noise: Tensor | None = None
) -> Tensor:
    """The place of each coordinate in the queue for becoming personal: int64 [K, P]; personal ones stand last.

    disagree: the disagree group first, by |Δθ| within each group; magnitude: |Δθ| alone; random: by `noise`.
    Ties go to the lower index (stable sorts).
    """
    if order == "random":
        assert noise is not None
        key = noise
    else:
        key = (after - before).abs()
    queue = torch.argsort(key, dim=1, descending=True, stable=True)
    if order == "disagree":
        queue = _regroup(queue, disagree(before, after))
    queue = _regroup(queue, ~personal)
    return torch.argsort(queue, dim=1)


def _regroup(queue: Tensor, first: Tensor) -> Tensor:
    """The same queue with the `first` coordinates moved to the front, order kept within both groups."""
    group = first.gather(1, queue).to(torch.uint8)
    return queue.gather(1, torch.argsort(group, dim=1, descending=True, stable=True))


def grow(
    before: Tensor,
    after: Tensor,
    personal: Tensor,
    targets: Tensor,
    order: Order,
    noise: Tensor | None = None,
) -> Tensor:
    """The personal set after this participation: bool [K, P], a superset of `personal`.

    targets: [K], how many coordinates should be personal now. Call once per layer, or once for all.
    """
    missing = (targets - personal.sum(1)).clamp_min(0)
    room = (~personal).sum(1)
    rank = rank_candidates(before, after, personal, order, noise)
    return personal | (rank < torch.minimum(missing, room).unsqueeze(1))
