"""Small deployments in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pmsfl.data.federation import Federation
from pmsfl.deploy.data import SiteData
from pmsfl.deploy.roster import Roster
from pmsfl.deploy.server import ServerSide
from pmsfl.deploy.settings import Guard, Patience
from pmsfl.deploy.site import SiteSide
from pmsfl.engine.plan import Keys
from pmsfl.recipe import Recipe

from ..conftest import tiny_federation, tiny_recipe

NAMES = ("a", "b", "c")
QUICK = Patience(2, 5.0, 3.0, 3.0, 10.0, 1.0, 64)


def three(**changes: Any) -> Federation:
    """Three clients of different sizes."""
    return tiny_federation(**({"sizes": (17, 12, 23)} | changes))


def recipe(**changes: Any) -> Recipe:
    return tiny_recipe(**({"eval_every": 3, "checkpoint_every": 1} | changes))


def data_of(federation: Federation, k: int) -> SiteData:
    """One client's rows, numbered anew: all that its site has."""
    rows = np.concatenate((federation.train[k], federation.test[k]))
    places = np.arange(len(rows), dtype=np.int64)
    split = len(federation.train[k])
    return SiteData(federation.x[rows], federation.y[rows], places[:split], places[split:])


def server_of(
    path: Path, wanted: Recipe, federation: Federation, patience: Patience = QUICK, **more: Any
) -> ServerSide:
    """A server that normalises as the simulation does."""
    shape = tuple(federation.x.shape[1:])
    names = NAMES[: federation.clients]
    roster = Roster(names, {}, shape, federation.classes, federation.mean, federation.std)
    return ServerSide(path / "run", wanted, names, patience, roster=roster, **more)


def sites_of(
    path: Path, wanted: Recipe, federation: Federation, fixed: bool = True, guard: Guard | None = None, **more: Any
) -> dict[str, SiteSide]:
    """A site for each client. fixed: with the simulation's keys."""
    keys = Keys.of_seed(wanted.seed) if fixed else None
    names = NAMES[: federation.clients]
    return {
        name: SiteSide(path / name, data_of(federation, k), guard=guard, keys=keys, **more)
        for k, name in enumerate(names)
    }
