"""What is measured and where: a recipe with its changes, a device, how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pmsfl.engine.settings import pick_device
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe

RECIPES = {"cuda": "cifar100", "cpu": "demo"}  # what is measured unless told: what the device is for


@dataclass(frozen=True)
class Setting:
    """One benchmark's surroundings."""

    recipe: Recipe
    device: torch.device
    repeats: int
    words: tuple[str, ...]  # as they stand on a command line

    @staticmethod
    def of(recipe: str | None, changes: Sequence[str], device: str, repeats: int) -> Setting:
        """A setting from what a user said."""
        if repeats < 1:
            raise PmsflError(f"repeats = {repeats}: take at least 1")
        where = pick_device(device)
        name = recipe or RECIPES[where.type]
        words = [name, *(w for c in changes for w in ("-c", c)), "--device", where.type]
        return Setting(Recipe.load(name, changes), where, repeats, tuple(words))

    def about(self) -> dict[str, object]:
        """What every benchmark's JSON says about it."""
        r = self.recipe
        return {
            "recipe": r.name,
            "method": r.method,
            "model": r.model,
            "batch": r.batch,
            "depths": r.depths,
            "dtype": r.dtype,
            "device": self.device.type,
            "repeats": self.repeats,
        }
