"""What a run changes, as plain tensors. A round takes a State and returns a new one; the old stays valid, so an
interrupted round costs nothing but itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pmsfl.engine.optim import RowOptimiser
from pmsfl.engine.world import World
from pmsfl.masks.aggregate import Counts


@dataclass(frozen=True)
class Memory:
    """What one client keeps between its rounds: only its personal coordinates, not a whole row."""

    indices: Tensor  # int64, sorted: its personal coordinates
    values: Tensor  # what it trains there (scores or weights)
    participations: int = 0  # since the initial agreement ended
    plain: Tensor | None = None  # its own norms, where norms are local
    optimiser: dict[str, Tensor] = field(default_factory=dict)  # where client_state is persistent


@dataclass(frozen=True)
class State:
    """Server and clients after `round` rounds. shared: θ (or weights) of every block; see World.shares_top."""

    round: int
    shared: Tensor  # [P]
    plain: Tensor  # [Q]
    masked_optimiser: RowOptimiser  # of the server's blocks, rows [1, P − P_cut]
    plain_optimiser: RowOptimiser  # of the server's plain parameters, rows [1, Q − Q_cut]
    counts: Counts | None = None
    bank: dict[int, Memory] = field(default_factory=dict)

    @staticmethod
    def initial(world: World) -> State:
        """The state before round 0."""
        shared = world.initial_shared.clone()
        if not world.shares_top:  # the server trains ordinary weights
            p = world.masked_size(world.cut)
            shared = torch.cat((shared[:p], world.frozen[p:]))
        masked, plain = server_optimisers(world)
        return State(0, shared, world.initial_plain.clone(), masked, plain)

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything as named tensors, for a checkpoint."""
        out = {"round": torch.tensor(self.round), "shared": self.shared, "plain": self.plain}
        for name, optimiser in (("masked", self.masked_optimiser), ("plain", self.plain_optimiser)):
            out |= {f"optimiser.{name}.{k}": v for k, v in optimiser.tensors().items()}
        if self.counts is not None:
            out |= {"counts.alpha": self.counts[0], "counts.beta": self.counts[1]}
        for client, m in self.bank.items():
            out[f"client.{client}.indices"] = m.indices.to(torch.int32)
            out[f"client.{client}.values"] = m.values
            out[f"client.{client}.participations"] = torch.tensor(m.participations)
            if m.plain is not None:
                out[f"client.{client}.plain"] = m.plain
            out |= {f"client.{client}.optimiser.{k}": v for k, v in m.optimiser.items()}
        return out

    @staticmethod
    def from_tensors(world: World, tensors: dict[str, Tensor]) -> State:
        """The inverse of `to_tensors`, on the world's device."""
        t = {name: value.to(world.device) for name, value in tensors.items()}
        masked, plain = server_optimisers(world)
        for name, optimiser in (("masked", masked), ("plain", plain)):
            optimiser.load({k: t[f"optimiser.{name}.{k}"] for k in ("first", "second", "steps")})
        counts = (t["counts.alpha"], t["counts.beta"]) if "counts.alpha" in t else None
        return State(int(t["round"]), t["shared"], t["plain"], masked, plain, counts, _bank_from_tensors(t))


def _bank_from_tensors(t: dict[str, Tensor]) -> dict[int, Memory]:
    bank = {}
    clients = sorted({int(name.split(".")[1]) for name in t if name.startswith("client.")})
    for c in clients:
        own = f"client.{c}."
        optimiser = own + "optimiser."
        bank[c] = Memory(
            t[own + "indices"].long(),
            t[own + "values"],
            int(t[own + "participations"]),
            t.get(own + "plain"),
            {n.removeprefix(optimiser): v for n, v in t.items() if n.startswith(optimiser)},
        )
    return bank


def server_optimisers(world: World) -> tuple[RowOptimiser, RowOptimiser]:
    """Fresh optimisers of the server's blocks and of its plain parameters.

    Scores on the server are trained like a client's: Adam, no weight decay.
    """
    r = world.recipe
    masked = world.frozen[world.masked_size(world.cut) :].unsqueeze(0)
    plain = world.initial_plain[world.plain_size(world.cut) : world.server_plain_end].unsqueeze(0)
    if world.server_masks():
        first = RowOptimiser.fresh("adam", masked)
    else:
        first = RowOptimiser.fresh(r.server_optimiser, masked, r.momentum, r.weight_decay)
    return first, RowOptimiser.fresh(r.server_optimiser, plain, r.momentum, r.weight_decay)
