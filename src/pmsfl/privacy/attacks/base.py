"""What an attack is: a name, what it needs, and a function from transcript and threat model to images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pmsfl.privacy.threat import ThreatModel, Transcript


@dataclass(frozen=True)
class Budget:
    """How hard to try."""

    steps: int = 350  # of the image's optimiser
    decoder_steps: int = 1200
    decoder_batch: int = 128
    decoder_width: int = 256
    decoder_blocks: int = 5


BUDGETS = {
    "full": Budget(),
    "quick": Budget(steps=120, decoder_steps=200, decoder_batch=32, decoder_width=32, decoder_blocks=2),
}


class Attack:
    """Reconstructs a transcript's images. `needs` names what must be there: see NEEDS."""

    name: ClassVar[str]
    about: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    is_floor: ClassVar[bool] = False  # needs nothing of the victim: what anybody gets
    is_oracle: ClassVar[bool] = False  # has what no server has: an upper bound, not in the maximum

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def why_not(self, view: Transcript, threat: ThreatModel) -> str | None:
        """Why it cannot be tried here, None if it can."""
        for need in self.needs:
            if why := _missing(need, view, threat):
                return why
        return None

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        """Images [n, C, H, W] in [0, 1], in the transcript's order: mini-batch by mini-batch."""
        raise NotImplementedError


def _missing(need: str, view: Transcript, threat: ThreatModel) -> str | None:
    there = {
        "masks": (threat.surface.theta is not None, "there is no random mask"),
        "public images": (threat.public is not None, "no public images"),
        "true masks": (threat.true_weights is not None, "the masks themselves never cross the wire"),
        "gradient": (view.gradient is not None, "the gradients at the cut are not in the transcript"),
        "upload": (bool(view.updates), "nothing was uploaded"),
        "float upload": (
            bool(view.updates) and view.updates[0].kind != "bits",
            "no weights or probabilities were uploaded",
        ),
    }
    present, why = there[need]
    return None if present else why


def pixel_mean(threat: ThreatModel) -> Tensor:
    """A plain image of the public channel means [C, H, W]."""
    return threat.surface.mean.expand(threat.shape).clamp(0.0, 1.0)


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of images [..., H, W]: a scalar."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def flat_images(x: Tensor) -> Tensor:
    """[G, B, C, H, W] as [G·B, C, H, W], in [0, 1]."""
    return x.detach().flatten(0, 1).clamp(0.0, 1.0)


def first_look(view: Transcript, dtype: torch.dtype) -> Tensor:
    """Observation 0 of every mini-batch: [G, B, ...]."""
    return view.smashed[:, :, 0].to(dtype)
