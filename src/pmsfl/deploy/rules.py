"""What both sides of a deployment hold to."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe


def check_deployable(recipe: Recipe) -> None:
    """PmsflError where a recipe asks for what a deployment cannot do."""
    if recipe.labels == "u-shape":
        raise PmsflError("labels = 'u-shape' is not deployed yet; take labels = 'randomised' or 'shared'")
    if recipe.pretrained:
        raise PmsflError("pretrained names a file of one host; a deployment derives frozen weights from the seed")


def hides_smashed(recipe: Recipe) -> bool:
    """Is noise promised on smashed data? Then nothing leaves a site without it, and there is no evaluation."""
    return recipe.dp_smashed != "off" or recipe.method == "splitfed-dp"


def digest_of(indices: Tensor) -> int:
    """A short fingerprint of a personal set, int64 [n]."""
    return zlib.crc32(indices.cpu().to(torch.int64).numpy().tobytes())
