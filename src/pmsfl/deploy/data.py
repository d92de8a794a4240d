"""What a site trains on: its own file, or one owner of the recipe's data. It never leaves the site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pmsfl.data.arrays import load_npz
from pmsfl.data.source import Array, Ints
from pmsfl.data.split import split_matched
from pmsfl.deploy.roster import Facts, moments
from pmsfl.engine.settings import federation_of
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe


@dataclass(frozen=True, eq=False)
class SiteData:
    """Rows and labels, and which rows are for training and which for tests."""

    x: Array
    y: Ints
    train: Ints
    test: Ints

    def facts(self, depth: int | None) -> Facts:
        """What the server is told of it."""
        if not len(self.train):
            raise PmsflError("this site has no training rows; give it a file with some")
        mean, squares = moments(self.x, self.train)
        shape = tuple(self.x.shape[1:])
        return Facts(len(self.train), len(self.test), shape, int(self.y.max()) + 1, mean, squares, depth)


def load_site_data(source: str, recipe: Recipe) -> SiteData:
    """A path to an .npz with x and y (and is_test), or owner:NAME[@PATH] for one owner of the recipe's own data.

    The path is always this site's: what the recipe says about files is the server's business.
    """
    if source.startswith("owner:"):
        name, _, path = source.removeprefix("owner:").partition("@")
        return _one_owner(name, recipe.replace(data_path=path))
    found = load_npz(source)
    assert found.class_names is not None
    try:
        labels = np.array([int(name) for name in found.class_names], dtype=np.int64)
    except ValueError:
        raise PmsflError(f"{source}: labels are text; all sites must agree on numbers 0, 1, … instead") from None
    if labels.min() < 0:
        raise PmsflError(f"{source}: label {labels.min()} is negative; use numbers 0, 1, … that all sites agree on")
    y = labels[found.y]  # a file that lacks a class must not shift the others
    rows = np.arange(len(y), dtype=np.int64)
    if found.is_test is not None:
        return SiteData(found.x, y, rows[~found.is_test], rows[found.is_test])
    train, test = split_matched([rows], y, recipe.test_fraction, recipe.seed, order=found.window)
    return SiteData(found.x, y, train[0], test[0])


def _one_owner(name: str, recipe: Recipe) -> SiteData:
    federation = federation_of(recipe)
    if name not in federation.owners:
        some = ", ".join(federation.owners[:8])
        raise PmsflError(f"owner {name!r} is not in {federation.name}; there are {some}, …")
    k = federation.owners.index(name)
    rows = np.concatenate((federation.train[k], federation.test[k]))
    split = len(federation.train[k])
    places = np.arange(len(rows), dtype=np.int64)
    return SiteData(federation.x[rows], federation.y[rows], places[:split], places[split:])
