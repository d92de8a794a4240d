"""Images with structure, small enough to attack in a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from pmsfl.data.federation import Federation
from pmsfl.engine.world import World
from pmsfl.recipe import Recipe

SIDE = 12


def blobs(n: int, seed: int = 0, channels: int = 1) -> np.ndarray:
    """Smooth random images [n, C, 12, 12] in [0, 1]."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, 5, 5, generator=rng)
    smooth = F.interpolate(coarse, (SIDE, SIDE), mode="bicubic", align_corners=True)
    return np.asarray(smooth.clamp(0.0, 1.0).numpy())


def image_federation(clients: int = 4, each: int = 24, seed: int = 0) -> Federation:
    """Clients with as many blobs each, four of them for testing."""
    total = clients * each
    x = blobs(total, seed)
    rows = np.arange(total, dtype=np.int64).reshape(clients, each)
    return Federation(
        name="blobs",
        x=x,
        y=(np.arange(total) % 3).astype(np.int64),
        train=tuple(r[4:].copy() for r in rows),
        test=tuple(r[:4].copy() for r in rows),
        global_test=np.zeros(0, np.int64),
        classes=3,
        mean=(float(x.mean()),),
        std=(float(x.std()),),
        owners=tuple(f"client {k}" for k in range(clients)),
        global_test_is_official=False,
    )


def image_world(federation: Federation | None = None, **changes: Any) -> World:
    base: dict[str, Any] = {
        "name": "blobs",
        "rounds": 2,
        "width": 16,
        "depths": 1,
        "batch": 8,
        "epochs": 2,
        "cohort": 2,
        "eval_masks": 1,
        "personal_ratio": 0.0,
    }
    return World(Recipe(**(base | changes)), federation=federation or image_federation())
