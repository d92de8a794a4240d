"""What a recipe's words mean to the engine: codecs, arithmetic, device, data, the rate of a round."""

from __future__ import annotations

import math

import torch

from pmsfl.data import load_federation
from pmsfl.data.federation import Federation
from pmsfl.errors import PmsflError
from pmsfl.methods.base import Trains
from pmsfl.recipe import Recipe
from pmsfl.wire.codecs import Codec

DTYPES = {"float32": torch.float32, "float64": torch.float64}
NATIVE = {"float32": Codec.FP32, "float64": Codec.FP64}
CODECS = {
    "fp32": Codec.FP32,
    "bf16": Codec.BF16,
    "fp16": Codec.FP16,
    "int8": Codec.QUANT8,
    "int4": Codec.QUANT4,
    "int2": Codec.QUANT2,
}
THETA_CODECS = {"u16": Codec.UNIT16, "u8": Codec.UNIT8, "entropy": Codec.CODED_UNIT}
MASK_CODECS = {"packed": Codec.PACKED_BITS, "entropy": Codec.CODED_BITS}


def federation_of(recipe: Recipe) -> Federation:
    """The federation a recipe names."""
    return load_federation(
        recipe.data,
        recipe.data_path or None,
        partition=recipe.partition,
        clients=recipe.clients or None,
        alpha=recipe.alpha,
        classes_per_client=recipe.classes_per_client,
        shards_per_client=recipe.shards_per_client,
        test_split=recipe.test_split,
        test_fraction=recipe.test_fraction,
        min_samples=recipe.min_samples,
        max_samples=recipe.max_samples or None,
        seed=recipe.seed,
        test_gap=recipe.test_gap,
    )


def kind_of_weights(frozen: str, trains: Trains) -> str:
    """What a recipe's `frozen` means for a method: who trains weights begins with Kaiming's under `signed-masks`."""
    return "kaiming" if frozen == "signed-masks" and trains == "weights" else frozen


def learning_rate(base: float, schedule: str, round_: int, rounds: int, rest_from: float) -> float:
    """The rate of a round: constant; half a cosine from `base` to almost nothing; or, late, that behind the share
    `rest_from` of the rounds alone."""
    if schedule == "constant":
        return base
    share = round_ / rounds
    if schedule == "late":
        share = max(0.0, (share - rest_from) / (1.0 - rest_from))
    return base * 0.5 * (1.0 + math.cos(math.pi * share))


def uses_half(recipe: Recipe, device: torch.device) -> bool:
    """Do forward passes run in bf16? By default on a GPU; never in double precision."""
    if recipe.precision == "bf16" and (recipe.dtype == "float64" or device.type != "cuda"):
        raise PmsflError("precision = 'bf16' needs a GPU and dtype = 'float32'; take precision = 'auto' or 'full'")
    return recipe.precision != "full" and recipe.dtype == "float32" and device.type == "cuda"


def pick_device(name: str) -> torch.device:
    """The device a user asked for; `auto` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise PmsflError("device = 'cuda': torch finds no GPU here; use --device cpu or auto")
    if name not in ("cpu", "cuda"):
        raise PmsflError(f"device = {name!r}: take auto, cpu or cuda")
    return torch.device(name)
