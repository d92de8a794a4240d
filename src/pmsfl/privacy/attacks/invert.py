"""Look for the images whose smashed data are those that were seen: the core of every attack without training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pmsfl.privacy.attacks.base import first_look, pixel_mean, total_variation
from pmsfl.privacy.threat import ThreatModel, Transcript

LR_IMAGE = 0.05
# Weight of total variation, at the start and at the end. Smooth images first: while a mask is still wrong, detail would
# be fitted to its errors. On a ResNet's first block this is worth more to `joint` than twice the steps.
SMOOTHNESS = (0.1, 2e-3)

# images [G, B, C, H, W] and the step's number -> what to minimise, total variation left out
Objective = Callable[[Tensor, int], Tensor]


def start_images(view: Transcript, threat: ThreatModel) -> Tensor:
    """Plain images of the public mean with a little noise: [G, B, C, H, W]."""
    g, b = view.smashed.shape[:2]
    plain = pixel_mean(threat).expand(g, b, *threat.shape)
    noise = torch.randn(plain.shape, generator=threat.generator(), device=threat.device, dtype=plain.dtype)
    return (plain + 0.05 * noise).clamp(0.0, 1.0)


def descend(
    start: Tensor, objective: Objective, steps: int, others: list[tuple[Tensor, float]] | None = None
) -> Tensor:
    """Images [G, B, C, H, W] that minimise an objective, smooth where it does not care. Adam, rate falling to a tenth.

    others: more leaves to move, each with its learning rate.
    """
    x = start.clone().requires_grad_()
    groups = [{"params": [x], "lr": LR_IMAGE}, *({"params": [leaf], "lr": lr} for leaf, lr in others or [])]
    optimiser = torch.optim.Adam(groups, lr=LR_IMAGE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=0.1 * LR_IMAGE)
    for step in range(steps):
        optimiser.zero_grad()
        weight = SMOOTHNESS[0] * (SMOOTHNESS[1] / SMOOTHNESS[0]) ** (step / steps)
        loss = objective(x, step) + weight * total_variation(x)
        loss.backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(0.0, 1.0)
    return x.detach()


def distance(found: Tensor, seen: Tensor) -> Tensor:
    """Mean squared difference of smashed data, in units of the variance of what was seen: a scalar."""
    return (found - seen).square().mean() / seen.var().clamp_min(1e-12)


def smashed_distance(view: Transcript, threat: ThreatModel, weights: Tensor) -> Objective:
    """How far images are from observation 0 under given weights [G, P]."""
    seen = first_look(view, threat.surface.weights.dtype)
    return lambda x, _: distance(threat.surface.bottom(x, weights), seen)
