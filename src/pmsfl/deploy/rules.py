"""What both sides of a deployment hold to."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from pmsfl.deploy.frames import MAX_JSON
from pmsfl.engine.evaluate import ROWS_PER_CLIENT
from pmsfl.engine.world import World
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


def largest_request(world: World) -> int:
    """No request of this run is longer, in bytes: a batch, a pass of an evaluation, an upload, each in full."""
    rows = max(world.recipe.batch, ROWS_PER_CLIENT)
    smashed = max(math.prod(world.smashed_shapes[d]) for d in set(world.depths))
    return 8 * (rows * (smashed + 1) + len(world.frozen) + len(world.initial_plain)) + MAX_JSON + (1 << 16)


def digest_of(indices: Tensor) -> int:
    """A short fingerprint of a personal set, int64 [n]."""
    return zlib.crc32(indices.cpu().to(torch.int64).numpy().tobytes())
