"""The World that each side builds. The server's has no rows, only how many each site holds; a site's has its own rows
and nobody else's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from pmsfl.data.federation import Federation
from pmsfl.data.source import Array, Ints
from pmsfl.deploy.roster import Manifest, Roster
from pmsfl.engine.plan import Keys
from pmsfl.engine.world import World
from pmsfl.recipe import Recipe


class Counted(Federation):
    """A federation of which this host has at most one client's rows: the others are only counted."""

    counted: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of training rows of each client."""
        return self.counted


def server_world(recipe: Recipe, roster: Roster) -> World:
    """The server's World: no rows at all."""
    assert roster.shape is not None
    rows = np.zeros((0, *roster.shape), np.float32)
    nobody = [np.zeros(0, np.int64) for _ in roster.sites]
    counted = _counted(roster, rows, np.zeros(0, np.int64), nobody, nobody, [max(1, n) for n in roster.sizes()])
    return World(roster.recipe(recipe), "cpu", counted)


def manifest_for(run: str, world: World, roster: Roster, client: int) -> Manifest:
    """The manifest of one site."""
    assert roster.classes is not None
    assert roster.shape is not None
    assert roster.mean is not None
    assert roster.std is not None
    text = world.recipe.to_toml()
    fixed = (roster.sites, client, roster.classes, roster.shape, roster.mean, roster.std)
    return Manifest(run, text, *fixed, frozen_hash(world), roster.secure_sums)


def site_world(recipe: Recipe, m: Manifest, x: Array, y: Ints, train: Ints, test: Ints, keys: Keys) -> World:
    """A site's World: its own rows, the others' left empty."""
    empty = np.zeros(0, np.int64)
    trains = [train if k == m.client else empty for k in range(len(m.sites))]
    tests = [test if k == m.client else empty for k in range(len(m.sites))]
    roster = Roster(m.sites, {}, m.shape, m.classes, m.mean, m.std)
    sizes = [len(train) if k == m.client else 1 for k in range(len(m.sites))]
    return World(recipe, "cpu", _counted(roster, x, y, trains, tests, sizes), keys)


def frozen_hash(world: World) -> str:
    """sha256 of the frozen weights and of the scores and norms everybody begins with."""
    digest = hashlib.sha256()
    for t in (world.frozen, world.initial_scores, world.initial_plain):
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _counted(
    roster: Roster, x: Array, y: Ints, train: Sequence[Ints], test: Sequence[Ints], sizes: Sequence[int]
) -> Federation:
    assert roster.classes is not None
    assert roster.mean is not None
    assert roster.std is not None
    federation = Counted(
        name="deployment",
        x=x,
        y=y,
        train=tuple(train),
        test=tuple(test),
        global_test=np.zeros(0, np.int64),
        classes=roster.classes,
        mean=roster.mean,
        std=roster.std,
        owners=roster.sites,
        global_test_is_official=False,
    )
    object.__setattr__(federation, "counted", tuple(sizes))
    return federation
