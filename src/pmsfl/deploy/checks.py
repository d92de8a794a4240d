"""What is checked of every message before anything is done with it, on both sides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pmsfl.deploy.settings import Bounds
from pmsfl.wire.messages import Message, WireError, split


def placed(data: bytes, run: int, round_: int, client: int, step: int) -> list[Message]:
    """The messages in `data`, all of this very place; WireError otherwise."""
    messages = split(data)
    for m in messages:
        found, wanted = (m.run, m.round, m.client, m.step), (run, round_, client, step)
        if found != wanted:
            raise WireError(
                f"{m.kind.name} is of (run, round, client, step) = {found}, expected {wanted}: replayed or misplaced"
            )
    return messages


def within(t: Tensor, most: float, what: str) -> Tensor:
    """The tensor itself; WireError where it is not finite or larger than `most` anywhere."""
    largest = float(t.abs().max()) if t.numel() else 0.0
    if not largest <= most:
        raise WireError(f"{what}: a value of {largest:g}, at most {most:g} is allowed")
    return t


def chance(theta: Tensor, masks: int = 1) -> float:
    """The standard deviation of Σm for a mask m drawn from θ itself, or for the mean of several drawn evenly.

    A bit has variance θ(1 − θ); a mean of n is θ rounded to one of two neighbours 1/n apart.
    """
    up = (masks * theta).frac()
    return math.sqrt(max(float((up * (1.0 - up)).sum()), 1e-12)) / masks


def mask_score(bits: Tensor, theta: Tensor, masks: int = 1) -> float:
    """How many standard deviations the number of set bits is from what θ leads one to expect."""
    return float((bits - theta).sum()) / chance(theta, masks)


def check_mask(bits: Tensor, theta: Tensor, bounds: Bounds, masks: int = 1) -> float:
    """The score of a mask [n] under θ [n]; WireError where no client that learned from θ would send it.

    masks: of how many it is the mean.

    Learning moves θ, so a share of the coordinates (`mask_bias`) is allowed on top of chance.
    """
    if not len(bits):
        return 0.0
    score = mask_score(bits, theta, masks)
    most = bounds.mask_deviations + bounds.mask_bias * len(bits) / chance(theta, masks)
    if abs(score) > most:
        raise WireError(
            f"MASK: {int(bits.sum())} of {len(bits)} bits are set, {float(theta.sum()):.0f} expected: "
            f"{score:+.1f} standard deviations, at most {most:.1f} are allowed"
        )
    return score


def shares(info: Mapping[str, Any], name: str, count: int) -> Tensor | None:
    """Numbers in [0, 1] that a site reports of itself: float64 [count]; None where it reports none."""
    values = info.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != count:
        raise WireError(f"{name}: a list of {count} numbers is expected")
    if any(type(v) not in (int, float) or not 0.0 <= v <= 1.0 for v in values):
        raise WireError(f"{name}: every number must lie in 0..1")
    return torch.tensor(values, dtype=torch.float64)
