"""Federations to measure on: clients of one size, so that all of them are at work in every step. No files needed.

Speed does not hang on what the pixels show, so data that would have to be downloaded is replaced by random images of
its shape. Digits (in the package) and your own .npz are taken as they are and dealt anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pmsfl.data import Federation, Source, load_source
from pmsfl.data.federation import channel_stats
from pmsfl.recipe import Recipe

COHORT = 10  # clients in a step, where neither the recipe nor its data says how many
POOL = 50_000  # random images there are at most; clients may hold the same ones


@dataclass(frozen=True)
class Shape:
    """What data that needs files looks like: one sample, the classes, and what a client holds of it on average."""

    sample: tuple[int, int, int]
    classes: int
    per_client: int


SHAPES = {
    "cifar100": Shape((3, 32, 32), 100, 500),
    "cifar10": Shape((3, 32, 32), 10, 500),
    "leaf": Shape((1, 28, 28), 62, 200),
    "mmhar": Shape((1, 64, 64), 17, 153),
    "sonichar": Shape((1, 64, 64), 17, 153),
    "radar": Shape((1, 140, 140), 19, 65),
}


def cohort_of(recipe: Recipe) -> int:
    """K of a recipe, without its data at hand."""
    if recipe.cohort:
        return recipe.cohort
    return max(int(recipe.participation * recipe.clients + 1e-9), 1) if recipe.clients else COHORT


def whole_cohort(recipe: Recipe, clients: int, steps: int) -> tuple[Recipe, Federation]:
    """Exactly K clients, all of them at work for `steps` steps of a round, and the recipe that takes them all."""
    samples = -(-steps * recipe.batch // recipe.epochs)
    resized = recipe.replace(clients=clients, cohort=clients, merges=1)
    return resized, _deal(_source(recipe, clients * samples), clients, samples, recipe.seed)


def whole_federation(recipe: Recipe) -> Federation:
    """As many clients as the recipe has, each with as many samples as its data has per client."""
    like = SHAPES.get(recipe.data)
    source = _source(recipe, POOL)
    clients = recipe.clients or (COHORT if source.owner is None else len(np.unique(source.owner)))
    samples = like.per_client if like else int(len(source.x) * (1.0 - recipe.test_fraction)) // clients
    return _deal(source, clients, min(samples, recipe.max_samples or samples), recipe.seed)


def _source(recipe: Recipe, rows: int) -> Source:
    """The recipe's own rows, or random images like them."""
    if recipe.data not in SHAPES:
        return load_source(recipe.data, recipe.data_path or None)
    like = SHAPES[recipe.data]
    rng = np.random.default_rng(recipe.seed)
    rows = min(rows, POOL)
    x = rng.integers(0, 256, (rows, *like.sample), dtype=np.uint8)
    return Source(f"random images like {recipe.data}", x, rng.integers(0, like.classes, rows), like.classes)


def _deal(source: Source, clients: int, samples: int, seed: int) -> Federation:
    """Clients of `samples` rows each; clients may share rows. Nobody has a test: nothing is evaluated here."""
    rng = np.random.default_rng(seed)
    held = min(samples, len(source.x))
    none = np.zeros(0, np.int64)
    mean, std = channel_stats(source.x, np.arange(min(len(source.x), 4096)))
    return Federation(
        name=source.name,
        x=source.x,
        y=source.y,
        train=tuple(np.sort(rng.choice(len(source.x), held, replace=False)) for _ in range(clients)),
        test=(none,) * clients,
        global_test=none,
        classes=source.classes,
        mean=mean,
        std=std,
        owners=tuple(f"client {k}" for k in range(clients)),
        global_test_is_official=False,
    )
