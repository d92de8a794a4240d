"""SplitFed-DP: SplitFed with noise on smashed data and on updates, as the paper calibrates it, or soundly."""

from __future__ import annotations

import math

from torch import Tensor

from pmsfl.errors import PmsflError
from pmsfl.methods.base import Method
from pmsfl.privacy.mechanisms import (
    clip_rows,
    gaussian,
    gaussian_epsilon,
    gaussian_ratio,
    laplace,
    laplace_epsilon,
)
from pmsfl.recipe import Recipe


class SplitFedDP(Method):
    """Weights trained and averaged, everything that leaves a client noised."""

    name = "splitfed-dp"
    summary = "splitfed with noise on smashed data and updates (dp_calibration: paper or sound)"
    paper = "baseline of the PM-SFL paper"

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.sound = recipe.dp_calibration == "sound"
        if self.sound and recipe.norm == "batch":
            raise PmsflError(
                "dp_calibration = 'sound' with norm = 'batch': batch statistics make every output depend on every "
                "record, so no per-record guarantee holds; use norm = 'group'"
            )
        if self.sound and recipe.norms == "shared":
            raise PmsflError(
                "dp_calibration = 'sound' with norms = 'shared': norms would go up without noise; use norms = "
                "'local' or 'frozen'"
            )

        if self.sound and recipe.labels == "u-shape":
            raise PmsflError(
                "dp_calibration = 'sound' with labels = 'u-shape': the head and the gradients of features would go up "
                "without noise; use labels = 'shared' or 'randomised'"
            )

    def smash(self, smashed: Tensor, keys: Tensor) -> Tensor:
        r = self.recipe
        flat = smashed.flatten(0, 1).flatten(1)
        noised = self._noised(flat, r.dp_epsilon_smashed, r.dp_clip_smashed, keys, math.prod(smashed.shape[1:]))
        return noised.reshape(smashed.shape)

    def protect_update(self, start: Tensor, trained: Tensor, keys: Tensor) -> Tensor:
        r = self.recipe
        change = trained - start
        return start + self._noised(change, r.dp_epsilon_update, r.dp_clip_update, keys, change.shape[1])

    def _noised(self, x: Tensor, epsilon: float, limit: float, keys: Tensor, size: int) -> Tensor:
        """Rows x [n, m] with noise; keys [A], each for n/A of the rows, which are `size` numbers."""
        if not self.sound:  # Laplace per coordinate at the client's own range / ε: the paper's reading
            own = x.detach().reshape(-1, size)
            spread = (own.amax(1, keepdim=True) - own.amin(1, keepdim=True)) / epsilon
            noise = (laplace(keys, size) * spread).reshape(x.shape).to(x.dtype)
            return x + noise
        if self.recipe.dp_mechanism == "laplace":
            noise = laplace(keys, size) * (2.0 * limit / epsilon)
        else:
            noise = gaussian(keys, size) * (2.0 * limit / gaussian_ratio(epsilon, self.recipe.dp_delta))
        order = 1 if self.recipe.dp_mechanism == "laplace" else 2
        return clip_rows(x, limit, order) + noise.reshape(x.shape).to(x.dtype)

    def notes(self, releases: int, uploads: int) -> list[str]:
        r = self.recipe
        if not self.sound:
            return [
                "guarantee: none. Noise per coordinate at range/ε with batch norm is the paper's calibration; "
                "dp_calibration=sound clips and accounts"
            ]

        def total(epsilon: float, times: int) -> float:
            if r.dp_mechanism == "laplace":
                return laplace_epsilon(epsilon, times, r.dp_delta)
            return gaussian_epsilon(gaussian_ratio(epsilon, r.dp_delta) * math.sqrt(times), r.dp_delta)

        return [
            f"guarantee, smashed data: ε = {r.dp_epsilon_smashed:g} per release of a sample, "
            f"{total(r.dp_epsilon_smashed, releases):.3g} over up to {releases} releases (δ = {r.dp_delta:g})",
            f"guarantee, updates: ε = {r.dp_epsilon_update:g} per upload, "
            f"{total(r.dp_epsilon_update, uploads):.3g} over up to {uploads} uploads (δ = {r.dp_delta:g})",
            "no guarantee for labels (see labels=randomised) and for which clients take part",
        ]
