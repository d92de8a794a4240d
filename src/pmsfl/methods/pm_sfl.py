"""PM-SFL: clients learn scores of random masks over frozen weights and upload sampled mask bits."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.masks.aggregate import steer_entropy
from pmsfl.masks.bernoulli import bound, mean_entropy_bits, sample, sample_mean, straight_through, to_scores
from pmsfl.masks.personal import grow, target_count
from pmsfl.methods.base import Method, Trains, Uploads
from pmsfl.models.split import Slot
from pmsfl.privacy.mechanisms import clip_rows, gaussian


class PMSFL(Method):
    """Probabilistic masks, personal mask coordinates, heterogeneity-aware aggregation."""

    name = "pm-sfl"
    summary = "scores of random masks over frozen weights; uploads mask bits; personal coordinates stay"
    paper = "PM-SFL (KDD 2026)"
    trains: Trains = "scores"
    masks = True
    uploads: Uploads = "bits"
    samples_masks = True
    personalises = True
    compensates = True

    @property
    def upload_masks(self) -> int:
        return self.recipe.upload_masks if self.samples_masks and self.uploads == "bits" else 1

    def initial(self, frozen: Tensor, scores: Tensor, uniform: Tensor) -> Tensor:
        return self._clipped(torch.sigmoid(scores))

    def start(self, shared: Tensor) -> Tensor:
        return to_scores(shared, self.recipe.clip)

    def effective(self, trained: Tensor, frozen: Tensor, uniform: Tensor | None) -> Tensor:
        assert uniform is not None
        mask = self.draw(self.forward_theta(trained.detach()), uniform)
        return self.masked(frozen, straight_through(trained, mask, self.recipe.estimator))  # type: ignore[arg-type]

    def draw(self, theta: Tensor, uniform: Tensor) -> Tensor:
        """The mask of a forward pass, from the chances of its bits and uniforms of the same shape."""
        masks = self.recipe.forward_masks
        return sample(theta, uniform) if masks == 1 else sample_mean(theta, uniform, masks)

    def entropy(self, trained: Tensor) -> Tensor:
        return mean_entropy_bits(self.forward_theta(trained), self.recipe.forward_masks)

    def forward_theta(self, scores: Tensor) -> Tensor:
        sharpness = self.recipe.mask_sharpness
        return torch.sigmoid(scores if sharpness == 1.0 else sharpness * scores)

    def project(self, trained: Tensor) -> None:
        limit = bound(self.recipe.clip)  # θ stays in [c, 1−c]: a fixed mask protects nothing and learns nothing
        trained.clamp_(-limit, limit)

    def protect_update(self, start: Tensor, trained: Tensor, uploaded: Tensor, keys: Tensor) -> Tensor:
        r = self.recipe
        if r.score_clip > 0.0:
            change = torch.where(uploaded, trained - start, torch.zeros_like(start))
            trained = start + clip_rows(change, r.score_clip, 2)
        if r.theta_noise > 0.0:  # Theorem 3b: the noise comes before the clip, which is then post-processing
            noise = r.theta_noise * gaussian(keys, trained.shape[1])
            trained = to_scores(torch.sigmoid(trained) + noise.to(trained.dtype), r.clip)
        return trained

    def upload(self, trained: Tensor, uniform: Tensor | None) -> Tensor:
        assert uniform is not None
        return sample_mean(torch.sigmoid(trained), uniform, self.upload_masks)

    def settle(self, merged: Tensor, contributes: Tensor) -> Tensor:
        r = self.recipe
        if r.entropy_target > 0.0:
            steered = steer_entropy(merged, r.entropy_target, r.entropy_rate, r.clip)
            merged = torch.where(contributes.any(0), steered, merged)
        return self._clipped(merged)

    def grow_personal(
        self,
        before: Tensor,
        after: Tensor,
        personal: Tensor,
        participations: Tensor,
        layers: list[Slot],
        noise: Tensor | None,
    ) -> Tensor:
        r = self.recipe
        if not self.personalises or r.personal_ratio == 0.0:
            return personal
        spans = [(s.offset, s.offset + s.size) for s in layers]
        if r.personal_scope == "global" and spans:
            spans = [(0, spans[-1][1])]
        grown = personal.clone()
        for a, b in spans:
            targets = [
                target_count(p, b - a, r.personal_ratio, r.growth_steps, r.growth, r.growth_count)  # type: ignore[arg-type]
                for p in participations.tolist()
            ]
            grown[:, a:b] = grow(
                before[:, a:b],
                after[:, a:b],
                personal[:, a:b],
                torch.tensor(targets, device=personal.device),
                r.personal_order,  # type: ignore[arg-type]
                None if noise is None else noise[:, a:b],
            )
        return grown

    def theta(self, trained: Tensor) -> Tensor | None:
        return torch.sigmoid(trained)

    def evaluation_weights(self, trained: Tensor, frozen: Tensor, uniform: Tensor, mode: str) -> Tensor:
        theta = self.forward_theta(trained)
        if mode == "expected":
            return self.masked(frozen, theta)
        mask = self.draw(theta, uniform) if mode == "sampled" else theta > 0.5
        return self.masked(frozen, mask.to(frozen.dtype))

    def _clipped(self, theta: Tensor) -> Tensor:
        return theta.clamp(self.recipe.clip, 1.0 - self.recipe.clip)
