"""The distributed executor: the cohort dealt to several processes, each with its clients and a copy of the top.

Every process has the same World and State. In a step the top's batch norms and gradients are summed over processes,
so that all copies of the top take the same step; at the end of a round everybody gets what every client ends with,
and does the rest for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pmsfl.engine.bank import pack_memory, unpack_memory
from pmsfl.engine.client import Bottoms, Finished
from pmsfl.engine.cohort import CohortExecutor, Playing
from pmsfl.engine.metrics import RoundMetrics
from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.processes import Processes
from pmsfl.engine.protocol import Start
from pmsfl.engine.record import Recorder
from pmsfl.engine.rows import Clock, cloned
from pmsfl.engine.server import Server
from pmsfl.engine.state import Memory, State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.models.context import ForwardContext, WholeBatch
from pmsfl.recipe import Recipe
from pmsfl.wire.ledger import Ledger


class SharedServer(Server):
    """A copy of the top that sees some rows of the union and moves as if it saw all."""

    processes: Processes
    active: dict[int, int]  # clients at work in this step, of all processes, by depth

    def _context(self, weights: Tensor | None, key: Tensor) -> ForwardContext:
        batch, clients, before = self.world.recipe.batch, list[int](), 0
        for d, n in self.active.items():
            clients += self.processes.deal(range(before, before + n), d) or [before]  # a stand-in's place is any
            before += n
        rows = torch.arange(batch, device=self.world.device)
        places = torch.tensor(clients, device=self.world.device).unsqueeze(1) * batch + rows
        whole = WholeBatch(self.processes.gather, self.processes.total, before * batch, places.flatten())
        return replace(super()._context(weights, key), whole=whole)

    def _totals(self, gradients: list[Tensor], clients: Tensor) -> tuple[list[Tensor], Tensor]:
        flat = torch.cat([*(g.flatten() for g in gradients), clients.reshape(1).to(self.world.dtype)])
        *parts, count = torch.split(self.processes.total(flat), [*(g.numel() for g in gradients), 1])
        return [p.reshape_as(g) for p, g in zip(parts, gradients, strict=True)], count.squeeze(0)


def check_shareable(recipe: Recipe) -> None:
    """PmsflError where several processes cannot play a recipe."""
    if recipe.record:
        raise PmsflError("record = true: no process sees all that crosses the wire; start one process without torchrun")
    if recipe.schedule == "sequential":
        raise PmsflError(
            "schedule = 'sequential' steps the top on one client after another, which leaves several processes "
            "nothing to share; start one process without torchrun, or take schedule=parallel"
        )


def executor_title(executor: str, processes: int) -> str:
    """What an executor is called that so many processes play together."""
    return executor if processes == 1 else f"distributed ({processes} processes)"


class DistributedExecutor(CohortExecutor):
    """Plays a round on stacked clients, some of them in each process."""

    def __init__(
        self, world: World, ledger: Ledger, processes: Processes, note: Callable[[str], None] = lambda line: None
    ) -> None:
        check_shareable(world.recipe)
        self.processes = processes
        self.name = executor_title("cohort", processes.size)
        super().__init__(world, ledger, note)

    def _recorder(self, note: Callable[[str], None]) -> Recorder | None:
        if self.world.device.type == "cuda" and self.world.recipe.capture != "off":
            note("steps run without a recording: they wait for other processes in between")
        return None

    # --- a round

    def _server(self, state: State, plan: RoundPlan, clock: Clock) -> Server:
        server = SharedServer(self.world, state, plan, clock)
        server.processes = self.processes
        return server

    def _bottoms(
        self, state: State, start: Start, plan: RoundPlan, clock: Clock, depth: int, places: list[int]
    ) -> Bottoms:
        """This process's clients of a depth. One that has none gets somebody else's first: the shapes are the same."""
        mine = self.processes.deal(places, depth) or places[:1]
        bottoms = super()._bottoms(state, start, plan, clock, depth, mine)
        batches = bottoms.rows.batches
        missing = plan.steps[places[0]] - batches.shape[1]  # a stand-in goes on as long as anybody
        bottoms.rows.batches = torch.cat((batches, batches[:, -1:].expand(-1, missing, -1)), 1)
        return bottoms

    def step(self, play: Playing, active: dict[int, int]) -> None:
        """One step of the active clients, here and elsewhere. Who has none of a depth lets a stand-in take part, as
        every process must, and models need not cope with batches of no rows."""
        assert isinstance(play.server, SharedServer)
        mine = {d: len(self.processes.deal(range(n), d)) for d, n in active.items()}
        groups = {d: play.groups[d].first(n) if n else _stand_in(play.groups[d]) for d, n in mine.items()}
        present = None
        if not all(mine.values()):
            like = play.server.rows.plain
            present = {d: like.new_ones(n) if n else like.new_zeros(1) for d, n in mine.items()}
        play.server.active = active
        self._union_step(play.server, groups, present)

    # --- the end of a round

    def finish(self, play: Playing) -> tuple[State, RoundMetrics]:
        """The end of a round, the same in every process."""
        play.server.rows.loss_sum.copy_(self.processes.total(play.server.rows.loss_sum))
        return super().finish(play)

    def _finished(self, play: Playing) -> dict[int, Finished]:
        return {d: self._gathered(b.finish(), d, play.plan.groups[d]) for d, b in play.groups.items()}

    def _gathered(self, own: Finished, depth: int, places: list[int]) -> Finished:
        """What all clients of a depth end with, from what this process's do."""
        mine = self.processes.deal(range(len(places)), depth)
        spread = partial(self._spread, mine=mine, clients=len(places))
        return Finished(
            spread(own.values),
            spread(own.contributes),
            spread(own.fresh),
            spread(own.plain),
            self._memories(own.memories[: len(mine)], depth, len(places)),
            None if own.entropy is None else spread(own.entropy),
            None if own.disagree is None else spread(own.disagree),
            None if own.at_clip is None else spread(own.at_clip),
        )

    def _spread(self, own: Tensor, mine: list[int], clients: int) -> Tensor:
        """Rows of all clients: each process fills in its own, the rest is 0, and so the sum is exact."""
        rows = own.new_zeros(clients, *own.shape[1:])
        if mine:
            rows[mine] = own
        return self.processes.total(rows)

    def _memories(self, own: list[Memory], depth: int, clients: int) -> list[Memory]:
        out: dict[int, Memory] = {}
        packed = [pack_memory(m, self.world, depth) for m in own]
        sizes = self.processes.gather(torch.tensor([len(p) for p in packed] + [0] * (clients - len(packed))))
        for rank, data in enumerate(self.processes.gather_bytes(b"".join(packed))):
            at, theirs = 0, replace(self.processes, rank=rank).deal(range(clients), depth)
            for place, size in zip(theirs, sizes[rank].tolist(), strict=False):
                out[place], at = unpack_memory(data[at : at + size], self.world), at + size
        return [out[i] for i in range(clients)]


def _stand_in(bottoms: Bottoms) -> Bottoms:
    """A copy of the first client: what it does counts for nothing and moves nobody."""
    return bottoms.on(cloned(bottoms.rows.first(1)), bottoms.clock)
