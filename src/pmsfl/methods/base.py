"""What a method says: what a client trains, what it uploads, how the server merges it, what stays personal.

A method never knows which executor plays it. Its functions take rows of any number of clients, [K, P] or [P],
and are pure: K clients, P masked coordinates. `trained` is what the optimiser moves (scores or weights),
`shared` what the server holds and sends (θ or weights).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pmsfl.masks.aggregate import Aggregator, Counts, Rule, merge
from pmsfl.masks.bernoulli import entropy_bits, straight_through, under
from pmsfl.models.split import Slot
from pmsfl.privacy.cut import clip_samples
from pmsfl.privacy.mechanisms import clip_and_noise
from pmsfl.recipe import Recipe

Trains = Literal["scores", "weights", "nothing"]
Uploads = Literal["bits", "theta", "weights", "nothing"]


class Method:
    """Defaults of a method that trains weights; the others say where they differ."""

    name = "method"
    summary = ""
    paper = ""
    trains: Trains = "weights"
    masks = False  # do frozen weights run under a mask?
    uploads: Uploads = "weights"
    personalises = False  # does the set of personal coordinates grow?
    compensates = False  # does the server's θ of a block join the merge (Eq. 9)?
    exits = False  # does every client block have a classifier of its own?
    samples_masks = False  # are forward masks random? then evaluation averages over several

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        # A Beta posterior is about draws in [0, 1]; floats follow the same damping, or take the plain mean.
        rule: Rule = "damped" if recipe.aggregate == "damped" else "sampled"
        least = recipe.min_contributors
        self.float_aggregator = Aggregator(rule, recipe.damping, min_contributors=least)
        self.mask_aggregator = Aggregator(
            recipe.aggregate,  # type: ignore[arg-type]
            recipe.damping,
            recipe.beta_prior,
            least,
        )

    @property
    def upload_masks(self) -> int:
        """How many masks go up as their mean, where masks do."""
        return 1

    @property
    def shows(self) -> Uploads:
        """What an upload is to somebody who looks at it: the mean of several masks is a rounded probability."""
        return "theta" if self.uploads == "bits" and self.upload_masks > 1 else self.uploads

    # --- what a client trains

    def initial(self, frozen: Tensor, scores: Tensor, uniform: Tensor) -> Tensor:
        """The shared vector of round 0, [P]."""
        return frozen.clone()

    def start(self, shared: Tensor) -> Tensor:
        """What a client trains, from what the server sent; same shape."""
        return shared.clone()

    def effective(self, trained: Tensor, frozen: Tensor, uniform: Tensor | None) -> Tensor:
        """The weights a forward pass runs with, differentiable in `trained`; [K, P].

        uniform: keyed uniforms of the same shape, None unless the method samples masks.
        """
        return trained

    def project(self, trained: Tensor) -> None:
        """Bring `trained` back into its domain after an optimiser step, in place."""

    def leaving(self, out: Tensor, keys: Tensor) -> Tensor:
        """Smashed data [A, B, ...] of bottoms' outputs, as they leave: clipped, noised. Differentiable; keys: [A]."""
        return self.smash(clip_samples(out, self.recipe.cut_clip) if self.recipe.cut_clip else out, keys)

    @property
    def smash_mechanism(self) -> str:
        """The noise for which each sample's smashed data are clipped to dp_clip_smashed: gaussian, laplace or off."""
        return self.recipe.dp_smashed

    def clipped(self, out: Tensor) -> Tensor:
        """Bottoms' outputs [A, B, ...] as they leave but for the noise: everybody can compute it."""
        r = self.recipe
        if r.cut_clip:
            out = clip_samples(out, r.cut_clip)
        if self.smash_mechanism == "off":
            return out
        return clip_samples(out, r.dp_clip_smashed, 1 if self.smash_mechanism == "laplace" else 2)

    def smash(self, smashed: Tensor, keys: Tensor) -> Tensor:
        """What leaves the client instead of `smashed` [A, B, ...]; differentiable. keys: [A]."""
        r = self.recipe
        if r.dp_smashed == "off":
            return smashed
        flat, size = smashed.flatten(0, 1).flatten(1), math.prod(smashed.shape[1:])
        return clip_and_noise(
            flat, r.dp_smashed, r.dp_clip_smashed, r.dp_epsilon_smashed, r.dp_delta, keys, size
        ).reshape(smashed.shape)

    # --- what it uploads, how the server merges it

    def protect_update(self, start: Tensor, trained: Tensor, uploaded: Tensor, keys: Tensor) -> Tensor:
        """What is uploaded instead of `trained` [K, P], which began the round as `start`.

        uploaded: bool [K, P], the coordinates that go up. keys: [K].
        """
        return trained

    def upload(self, trained: Tensor, uniform: Tensor | None) -> Tensor:
        """What goes up, [K, P] in the dtype of `trained` (bits as 0 and 1)."""
        return trained

    def merge(
        self,
        shared: Tensor,
        uploads: Tensor,
        contributes: Tensor,
        weights: Tensor,
        counts: Counts | None,
        unsettled: float = 1.0,
    ) -> tuple[Tensor, Counts | None]:
        """The next shared vector [P] from uploads [K, P]; Eq. 8's sum over those that contribute.

        unsettled: how much of a round's mean a settled θ still takes.
        """
        masks = self.uploads in ("bits", "theta")
        rule = self.mask_aggregator if masks else self.float_aggregator
        merged, counts = merge(shared, uploads, contributes, rule.at(unsettled), weights, counts)
        return self.settle(merged, contributes), counts

    def settle(self, merged: Tensor, contributes: Tensor) -> Tensor:
        """The shared vector [P] as the server keeps it, from what a merge of contributions [K, P] made."""
        return merged

    # --- what stays personal

    def personal_at_start(self, layers: list[Slot], size: int) -> Tensor:
        """Coordinates that are personal before any training: bool [P_d]."""
        return torch.zeros(size, dtype=torch.bool)

    def local_plain(self, slots: Sequence[Slot], depth: int) -> list[bool]:
        """For each plain parameter (norm, bias, ...) that a client holds: does it stay with the client?"""
        return [self.recipe.norms == "local" and not s.is_classifier for s in slots]

    def grow_personal(
        self,
        before: Tensor,
        after: Tensor,
        personal: Tensor,
        participations: Tensor,
        layers: list[Slot],
        noise: Tensor | None,
    ) -> Tensor:
        """The personal set after this participation: bool [K, P_d], never smaller than `personal`."""
        return personal

    # --- what masks there are

    def theta(self, trained: Tensor) -> Tensor | None:
        """θ behind `trained`, or None where there are no learned masks."""
        return None

    def forward_theta(self, scores: Tensor) -> Tensor:
        """What masks of forward passes are drawn with, where they are; uploads are drawn with θ. Same shape."""
        return torch.sigmoid(scores)

    def entropy(self, trained: Tensor) -> Tensor:
        """Of the masks that forward passes draw, in bits; same shape."""
        return entropy_bits(self.forward_theta(trained))

    def masked(self, weights: Tensor, mask: Tensor) -> Tensor:
        """Frozen weights under a mask, or under the chances of its bits; same shape."""
        return under(weights, mask, self.recipe.mask_act)  # type: ignore[arg-type]

    def thresholded(self, scores: Tensor, frozen: Tensor) -> Tensor:
        """Frozen weights under the mask θ > 0.5, without any chance; differentiable in the scores, same shape."""
        mask = straight_through(scores, scores.detach() > 0, self.recipe.estimator)  # type: ignore[arg-type]
        return self.masked(frozen, mask)

    def evaluation_weights(self, trained: Tensor, frozen: Tensor, uniform: Tensor, mode: str) -> Tensor:
        """The weights to evaluate with. mode: sampled, expected or threshold, where masks are learned."""
        return self.effective(trained, frozen, None)
