"""The cohort executor: all sampled clients at once, one vmap per depth, one top step on the union.

Nothing is encoded; the ledger gets the lengths that the same messages have on the wire.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.engine.client import Bottoms, Finished
from pmsfl.engine.metrics import RoundMetrics, collect
from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.protocol import Wire, count
from pmsfl.engine.server import Batches, Server, Uploads
from pmsfl.engine.state import Memory, State
from pmsfl.engine.world import World
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction, Kind
from pmsfl.wire.tensors import round_trip


class CohortExecutor:
    """Plays a round on stacked clients."""

    name = "cohort"

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.world, self.ledger = world, ledger
        self.wire = Wire(world)
        self.vectorised = world.why_looped is None
        self.rounds_cut = world.cut_codec != world.codec

    def round(self, state: State) -> tuple[State, RoundMetrics]:
        """One round: the next state, and what was seen on the way."""
        w = self.world
        w.model.train()
        plan = w.plan(state.round)
        server = Server(w, state, plan)
        groups = {d: self.begin(state, plan, d, places) for d, places in plan.groups.items()}
        steps = {d: [plan.steps[i] for i in places] for d, places in plan.groups.items()}
        for step in range(max(plan.steps)):
            active = {d: sum(r > step for r in steps[d]) for d in groups}
            self.step(server, groups, {d: a for d, a in active.items() if a}, step)
        done = {d: b.finish() for d, b in groups.items()}
        done = {d: f.take(self._on_time(plan, d)) for d, f in done.items()} if any(plan.late) else done
        uploads, memories = self._upload(plan, done)
        return server.finish(uploads, memories), collect(w, server, list(done.values()), plan)

    def begin(self, state: State, plan: RoundPlan, depth: int, places: list[int]) -> Bottoms:
        """The clients of one depth, ready for their first step."""
        w = self.world
        count(self.ledger, Direction.DOWN, self.wire.start_bytes(depth), len(places))
        view = w.plain_view(depth)
        return Bottoms(
            w,
            plan.round,
            [plan.clients[i] for i in places],
            depth,
            [plan.steps[i] for i in places],
            w.sent(state.shared, depth),
            state.plain[view.sent],
            state.bank,
            self.vectorised,
        )

    def step(self, server: Server, groups: dict[int, Bottoms], active: dict[int, int], step: int) -> None:
        """One step of the active clients (the first of each group) and of the server."""
        smashed, labels = {}, {}
        for d, a in active.items():
            q, labels[d] = groups[d].forward(step, a)
            smashed[d] = self._over_wire(q)
            costs = self.wire.step_bytes(tuple(q.shape[1:]))
            count(self.ledger, Direction.DOWN, {Kind.GRADIENT: costs.pop(Kind.GRADIENT)}, a)
            count(self.ledger, Direction.UP, costs, a)

        def answer(features: Batches, places: dict[int, list[int]]) -> tuple[Batches, Tensor]:
            return self._answer(groups, features, places)

        gradients = server.step(step, smashed, labels, answer if self.world.u_shape else None)
        for d, gradient in gradients.items():
            groups[d].backward(self._over_wire(gradient))

    def _over_wire(self, t: Tensor) -> Tensor:
        """What the other side would receive."""
        return round_trip(t, self.world.cut_codec) if self.rounds_cut else t

    def _answer(
        self, groups: dict[int, Bottoms], features: Batches, places: dict[int, list[int]]
    ) -> tuple[Batches, Tensor]:
        gradients, losses = {}, torch.zeros((), dtype=self.world.dtype, device=self.world.device)
        for d, f in features.items():
            gradient, loss = groups[d].answer(self._over_wire(f), places[d])
            gradients[d], losses = self._over_wire(gradient), losses + loss
            cost = self.wire.feature_bytes(tuple(f.shape[1:]))
            count(self.ledger, Direction.DOWN, {Kind.FEATURES: cost}, len(f))
            count(self.ledger, Direction.UP, {Kind.FEATURE_GRADIENT: cost}, len(f))
        return gradients, losses

    def _upload(self, plan: RoundPlan, done: dict[int, Finished]) -> tuple[Uploads, dict[int, Memory]]:
        w = self.world
        uploads, memories = Uploads.empty(w, len(plan.clients)), dict[int, Memory]()
        for depth, places in plan.groups.items():
            on_time = [places[row] for row in self._on_time(plan, depth)]
            at = torch.tensor(on_time, dtype=torch.int64, device=w.device)
            d, view = done[depth], w.plain_view(depth)
            p = d.values.shape[1]
            uploads.values[at, :p], uploads.contributes[at, :p] = d.values, d.contributes
            uploads.plain[at.unsqueeze(1), view.sent] = d.plain
            uploads.plain_held[at.unsqueeze(1), view.sent] = True
            for row, i in enumerate(on_time):
                count(self.ledger, Direction.UP, self.wire.finish_bytes(d, row))
                memories[plan.clients[i]] = d.memories[row]
        return uploads, memories

    @staticmethod
    def _on_time(plan: RoundPlan, depth: int) -> list[int]:
        """Rows of a depth group whose upload counts."""
        return [row for row, i in enumerate(plan.groups[depth]) if plan.on_time[i]]
