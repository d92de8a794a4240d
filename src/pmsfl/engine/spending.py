"""How often each client and each of its records has been shown to the server.

Counts follow from the plans alone: who takes part, for how many steps, is keyed and does not depend on the data. So
they are the same under every executor and after a resume, and they only grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pmsfl.engine.plan import RoundPlan
from pmsfl.recipe import Recipe

if TYPE_CHECKING:
    from pmsfl.engine.world import World


@dataclass(frozen=True)
class Spent:
    """One client's releases so far."""

    uploads: int = 0  # of what it learned; a late one may still arrive
    own: int = 0  # of any one record's smashed data, at most
    squares: int = 0  # Σ over steps of (times any one record is in the batch)², at most
    rows: int = 0  # of smashed data in all
    masks: int = 0  # fresh masks that any one record was seen under, at most

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.uploads + other.uploads,
            self.own + other.own,
            self.squares + other.squares,
            self.rows + other.rows,
            self.masks + other.masks,
        )


def participation(recipe: Recipe, samples: int, steps: int) -> Spent:
    """What one round of so many steps shows of a client that holds `samples`."""
    batch = recipe.batch
    own = -(-steps * batch // samples)  # one shuffled order after another: each has a record once
    if samples % batch == 0:
        squares = own  # batches end where orders end
    elif samples > batch:
        squares = own + 2 * (own // 2)  # a batch may span two orders and have a record twice
    else:
        squares = own * min(own, -(-batch // samples) + 1)
    return Spent(1, own, squares, steps * batch, 1 if recipe.mask_per == "round" else own)


@dataclass(frozen=True)
class Spending:
    """Every client's releases after some rounds."""

    clients: Mapping[int, Spent] = field(default_factory=dict)

    @staticmethod
    def of(world: World, rounds: int) -> Spending:
        """After the first `rounds` rounds."""
        spending = Spending()
        for t in range(rounds):
            spending = spending.after(world, world.plan(t))
        return spending

    def after(self, world: World, plan: RoundPlan) -> Spending:
        """One round later."""
        new = {
            c: self.clients.get(c, Spent()) + participation(world.recipe, int(world.sizes[c]), steps)
            for c, steps in zip(plan.clients, plan.steps, strict=True)
        }
        return Spending({**self.clients, **new})

    def observations(self, world: World) -> tuple[float, int] | None:
        """Mean and most over records: how often the server saw the same one under a fresh mask. None without masks."""
        if not world.method.samples_masks:
            return None
        held = max(int(sum(world.sizes)), 1)
        if world.recipe.mask_per == "round":
            seen = sum(s.masks * int(world.sizes[c]) for c, s in self.clients.items())
        else:
            seen = sum(s.rows for s in self.clients.values())
        return seen / held, max((s.masks for s in self.clients.values()), default=0)
