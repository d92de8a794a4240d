"""What a run changes, as plain tensors. A round takes a State and returns a new one; the old stays valid, so an
interrupted round costs nothing but itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pmsfl.engine.bank import GUEST, ROW, Bank
from pmsfl.engine.bank import Memory as Memory
from pmsfl.engine.optim import RowOptimiser
from pmsfl.engine.world import World
from pmsfl.masks.aggregate import Counts


@dataclass(frozen=True)
class State:
    """Server and clients after `round` rounds. shared: θ (or weights) of every block; see World.shares_top."""

    round: int
    shared: Tensor  # [P]
    plain: Tensor  # [Q]
    masked_optimiser: RowOptimiser  # of the server's blocks, rows [1, P − P_cut]
    plain_optimiser: RowOptimiser  # of the server's plain parameters, rows [1, Q − Q_cut]
    counts: Counts | None
    bank: Bank

    @staticmethod
    def initial(world: World, bank_file: Path | None = None) -> State:
        """The state before round 0. bank_file: where the clients' memories go, should they need a file."""
        shared = world.initial_shared.clone()
        if not world.shares_top:  # the server trains ordinary weights
            p = world.masked_size(world.cut)
            shared = torch.cat((shared[:p], world.frozen[p:]))
        masked, plain = server_optimisers(world)
        return State(0, shared, world.initial_plain.clone(), masked, plain, None, Bank.empty(world, bank_file))

    def to_tensors(self, whole: bool = False) -> dict[str, Tensor]:
        """Everything as named tensors, for a checkpoint. whole: see Bank.to_tensors."""
        out = {"round": torch.tensor(self.round), "shared": self.shared, "plain": self.plain}
        for name, optimiser in (("masked", self.masked_optimiser), ("plain", self.plain_optimiser)):
            out |= {f"optimiser.{name}.{k}": v for k, v in optimiser.tensors().items()}
        if self.counts is not None:
            out |= {"counts.alpha": self.counts[0], "counts.beta": self.counts[1]}
        return out | self.bank.to_tensors(whole)

    @staticmethod
    def from_tensors(world: World, tensors: Mapping[str, Tensor], bank: Bank | None = None) -> State:
        """The inverse of `to_tensors`, on the world's device. bank: any of this run, for where rows are kept."""
        bank = (Bank.empty(world) if bank is None else bank).restored(tensors)
        t = {name: value.to(world.device) for name, value in tensors.items() if not name.startswith((ROW, GUEST))}
        masked, plain = server_optimisers(world)
        for name, optimiser in (("masked", masked), ("plain", plain)):
            optimiser.load({k: t[f"optimiser.{name}.{k}"] for k in ("first", "second", "steps")})
        counts = (t["counts.alpha"], t["counts.beta"]) if "counts.alpha" in t else None
        return State(int(t["round"]), t["shared"], t["plain"], masked, plain, counts, bank)


def server_optimisers(world: World) -> tuple[RowOptimiser, RowOptimiser]:
    """Fresh optimisers of the server's blocks and of its plain parameters.

    Scores on the server are trained like a client's.
    """
    r = world.recipe
    masked = world.frozen[world.masked_size(world.cut) :].unsqueeze(0)
    plain = world.initial_plain[world.plain_size(world.cut) : world.server_plain_end].unsqueeze(0)
    if world.server_masks():
        first = RowOptimiser.fresh("adam", masked, shrinkage=r.score_decay)
    else:
        first = RowOptimiser.fresh(r.server_optimiser, masked, r.momentum, r.weight_decay)
    return first, RowOptimiser.fresh(r.server_optimiser, plain, r.momentum, r.weight_decay)
