"""An attack's case: transcript and threat model for the attack, the true images for the scorer alone.

The two ways to get one: same_view.py (an upper bound) and recorded.py (what a round really sent).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pmsfl.engine.augment import augment
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.privacy.metrics import check_images
from pmsfl.privacy.surface import Surface
from pmsfl.privacy.threat import LocalStep, ThreatModel, Transcript

MOST_PUBLIC = 50_000
LINKED = 32  # observations of one record that the server is taken to link, where there are as many


@dataclass(frozen=True)
class Case:
    """One attack's surroundings. Nothing in `view` or `threat` leads to `truth`."""

    view: Transcript
    threat: ThreatModel
    truth: Tensor  # [n, C, H, W] in [0, 1], in the transcript's order
    unmasked: Transcript | None  # the same images through the same bottom without its mask; None: it has none
    notes: tuple[str, ...] = ()


def check_attackable(world: World) -> None:
    """PmsflError where there are no images to reconstruct."""
    check_images(world.input_shape)
    x = world.federation.x
    if x.dtype.kind != "u" and (x.min() < -0.01 or x.max() > 1.01):
        raise PmsflError(
            f"images reach from {x.min():.3g} to {x.max():.3g}; attacks are measured on uint8 images or floats in 0..1"
        )


def pixels(world: World, rows: Tensor, augment_keys: Tensor | None = None) -> Tensor:
    """The images of rows [...] in [0, 1]: what the model's inputs are before they are normalised. A copy."""
    f = world.federation
    mean, std = (torch.tensor(v, dtype=world.dtype, device=world.device).reshape(-1, 1, 1) for v in (f.mean, f.std))
    return world.inputs(rows, augment_keys) * std + mean


def without_mask(real: Surface, truth: Tensor, generator: torch.Generator) -> Transcript | None:
    """Images [G, B, C, H, W] as they would cross without the bottom's mask: what a mask is to be compared with."""
    if real.theta is None:
        return None
    plain = real.unmasked()
    smashed = plain.crossing(truth, plain.draw(len(truth), generator), generator)
    return Transcript("the same images without masks", smashed.unsqueeze(2), True)


def local_step(world: World, round_: int) -> LocalStep:
    """A client's optimiser in a round, as its recipe has it."""
    r = world.recipe
    rate = float(world.clock(min(round_, r.turns - 1)).lr_masked)
    if world.method.trains == "scores":
        return LocalStep("adam", rate, 0.0, r.estimator, r.score_decay)
    return LocalStep(r.client_optimiser, rate, r.weight_decay, r.estimator)


def public_images(world: World, victim: int, rows: Tensor, seed: int) -> Tensor | None:
    """Other clients' training images [N, C, H, W], none of them among `rows`; None where there are none."""
    others = torch.cat([r for c, r in enumerate(world.train_rows) if c != victim] or [rows.new_zeros(0)])
    others = others[~torch.isin(others, rows)]
    if not len(others):
        return None
    kept = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:MOST_PUBLIC]
    return pixels(world, others[kept.to(others.device)])


def augmentation(kind: str) -> Callable[[Tensor, torch.Generator], Tensor] | None:
    """What clients do to their images [n, C, H, W], as a recipe says; None for nothing."""
    if kind == "none":
        return None

    def change(x: Tensor, generator: torch.Generator) -> Tensor:
        key = torch.randint(2**62, (1,), generator=generator, device=x.device)
        return augment(x.unsqueeze(0), key, flip=kind == "crop-flip").squeeze(0)

    return change
