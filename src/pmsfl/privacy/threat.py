"""What an attack may use: the transcript of what crossed the wire, and what the server knows besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pmsfl.masks.bernoulli import mean_entropy_bits
from pmsfl.privacy.surface import Surface

Kind = Literal["bits", "theta", "weights"]


@dataclass(frozen=True)
class Update:
    """What a client uploaded after `steps` local steps: bits, probabilities or weights."""

    kind: Kind
    before: Tensor  # [P]: θ or weights as the server sent them
    after: Tensor  # [P]
    contributes: Tensor  # [P] bool: what of `after` was uploaded
    steps: int
    masks: int = 1  # probabilities: rounded by chance to a mean of so many masks; 1: exact

    def __str__(self) -> str:
        what = {"bits": "mask bits", "theta": "probabilities", "weights": "weights"}[self.kind]
        what += f" (means of {self.masks} masks)" if self.masks > 1 else ""
        return f"{what}, {int(self.contributes.sum())} of {len(self.before)} coordinates, {self.steps} local steps"


@dataclass(frozen=True)
class Transcript:
    """G mini-batches of B images as they crossed the wire, each image k times.

    Observation 0 of a mini-batch is always one forward pass of all its images under one mask; so are the others
    where `together` is true, else they come from other mini-batches.
    """

    origin: str
    smashed: Tensor  # [G, B, k, ...]
    together: bool
    labels: Tensor | None = None  # [G, B]
    gradient: Tensor | None = None  # [G, B, ...]: dL/dq of observation 0, which the server sent
    updates: tuple[Update, ...] = ()  # one per mini-batch, or one of a round that all of them belong to

    @property
    def images(self) -> int:
        """How many there are to reconstruct."""
        return self.smashed.shape[0] * self.smashed.shape[1]

    @property
    def linked(self) -> int:
        """k: observations of each image."""
        return self.smashed.shape[2]

    def __str__(self) -> str:
        g, b, k = self.smashed.shape[:3]
        parts = [
            f"transcript, {self.origin}:",
            f"  smashed data   {g} mini-batches of {b} images, {'x'.join(map(str, self.smashed.shape[3:]))} each, "
            f"{k} observations of each image",
            f"  labels         {'seen' if self.labels is not None else 'never crossed the wire'}",
            f"  gradients      {'sent by the server' if self.gradient is not None else 'not recorded'}",
            f"  uploads        {self.updates[0] if self.updates else 'none'}",
        ]
        return "\n".join(parts)


@dataclass(frozen=True)
class LocalStep:
    """What the recipe says about a client's step; everybody knows it."""

    optimiser: str  # sgd or adam
    lr: float
    weight_decay: float
    estimator: str  # of scores
    shrinkage: float = 0.0  # what of a score a step takes away, in units of lr


@dataclass(frozen=True)
class ThreatModel:
    """An honest-but-curious server: what it knows besides the transcript."""

    surface: Surface  # architecture, frozen weights, θ and norms as it sent them, the stages at the cut
    shape: tuple[int, ...]  # [C, H, W]
    step: LocalStep
    linked: int = 1  # observations of one record that it can tell to be of the same
    labels: bool = True  # does it see them?
    public: Tensor | None = None  # [N, C, H, W]: images of the same kind, none of them a victim's
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None  # what clients do to images [n, C, H, W]
    true_weights: Tensor | None = None  # [G, P] of observation 0, mask included: only an oracle has them
    seed: int = 0

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        return self.surface.device

    def generator(self) -> torch.Generator:
        """A fresh source of the attacker's own randomness."""
        return torch.Generator(self.device).manual_seed(self.seed)

    def unmasked(self) -> ThreatModel:
        """The same server against the same bottom without masks."""
        return replace(self, surface=self.surface.unmasked(), true_weights=None)

    def __str__(self) -> str:
        s = self.surface
        mask = "no random mask"
        if s.theta is not None:
            several = f", the mean of {s.masks} masks" if s.masks > 1 else ""
            entropy = float(mean_entropy_bits(s.theta, s.masks).mean())
            mask = f"θ of every mask bit{several}, mean entropy {entropy:.2f} bit"
        public = "none" if self.public is None else f"{len(self.public)} images of the same kind, no victim among them"
        return "\n".join(
            (
                "the server knows:",
                f"  bottom         {s.depth} blocks, {len(s.weights)} weights and {len(s.plain)} plain parameters",
                f"  masks          {mask}",
                f"  local step     {self.step.optimiser}, learning rate {self.step.lr:g}",
                f"  augmentation   {'the same kind, not its draws' if self.augment is not None else 'none is used'}",
                f"  labels         {'seen' if self.labels else 'kept by the clients'}",
                f"  linking        {self.linked} observations of a record",
                f"  public images  {public}",
                f"  true masks     {'told to the oracle' if self.true_weights is not None else 'unknown'}",
            )
        )
