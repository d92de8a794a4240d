"""SplitFed-DP: SplitFed with noise on smashed data and on updates, as the paper calibrates it, or soundly."""

from __future__ import annotations

import math

from torch import Tensor

from pmsfl.errors import PmsflError
from pmsfl.methods.base import Method
from pmsfl.privacy.mechanisms import clip_and_noise, laplace
from pmsfl.recipe import Recipe


class SplitFedDP(Method):
    """Weights trained and averaged; smashed data and updates of weights leave a client noised.

    As the paper calibrates it, norms, biases and embeddings go up as they are: one reason more why it guarantees
    nothing. Sound calibration keeps them on the client.
    """

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

    @property
    def smash_mechanism(self) -> str:
        return self.recipe.dp_mechanism if self.sound else "off"

    def smash(self, smashed: Tensor, keys: Tensor) -> Tensor:
        r = self.recipe
        flat = smashed.flatten(0, 1).flatten(1)
        noised = self._noised(flat, r.dp_epsilon_smashed, r.dp_clip_smashed, keys, math.prod(smashed.shape[1:]))
        return noised.reshape(smashed.shape)

    def protect_update(self, start: Tensor, trained: Tensor, uploaded: Tensor, keys: Tensor) -> Tensor:
        r = self.recipe
        change = trained - start
        return start + self._noised(change, r.dp_epsilon_update, r.dp_clip_update, keys, change.shape[1])

    def _noised(self, x: Tensor, epsilon: float, limit: float, keys: Tensor, size: int) -> Tensor:
        """Rows x [n, m] with noise; keys [A], each for n/A of the rows, which are `size` numbers."""
        r = self.recipe
        if self.sound:
            return clip_and_noise(x, r.dp_mechanism, limit, epsilon, r.dp_delta, keys, size)
        # Laplace per coordinate at the client's own range / ε: the paper's reading
        own = x.detach().reshape(-1, size)
        spread = (own.amax(1, keepdim=True) - own.amin(1, keepdim=True)) / epsilon
        return x + (laplace(keys, size) * spread).reshape(x.shape).to(x.dtype)
