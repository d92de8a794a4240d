"""The cohort executor: all sampled clients at once, one vmap per depth, one top step on the union.

Nothing is encoded; the ledger gets the lengths that the same messages have on the wire.
"""

from __future__ import annotations

import torch

from pmsfl.engine.client import Bottoms, Finished
from pmsfl.engine.metrics import RoundMetrics, collect
from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.protocol import Wire, count
from pmsfl.engine.server import Server, Uploads
from pmsfl.engine.state import State
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
        uploads = self._upload(plan, done)
        memories = {
            c: m for d, b in groups.items() for c, m in zip(b.clients, done[d].memories, strict=True) if m is not None
        }
        return server.finish(uploads, memories), collect(w, server, list(done.values()), plan)

    def begin(self, state: State, plan: RoundPlan, depth: int, places: list[int]) -> Bottoms:
        """The clients of one depth, ready for their first step."""
        w = self.world
        count(self.ledger, Direction.DOWN, self.wire.start_bytes(depth), len(places))
        return Bottoms(
            w,
            plan.round,
            [plan.clients[i] for i in places],
            depth,
            [plan.steps[i] for i in places],
            state.shared[: w.masked_size(depth)],
            state.plain[: w.plain_size(depth)],
            state.bank,
            self.vectorised,
        )

    def step(self, server: Server, groups: dict[int, Bottoms], active: dict[int, int], step: int) -> None:
        """One step of the active clients (the first of each group) and of the server."""
        smashed, labels = {}, {}
        for d, a in active.items():
            smashed[d], labels[d] = groups[d].forward(step, a)
            if self.rounds_cut:
                smashed[d] = round_trip(smashed[d], self.world.cut_codec)
            costs = self.wire.step_bytes(tuple(smashed[d].shape[1:]))
            count(self.ledger, Direction.DOWN, {Kind.GRADIENT: costs.pop(Kind.GRADIENT)}, a)
            count(self.ledger, Direction.UP, costs, a)
        gradients = server.step(step, smashed, labels)
        for d, gradient in gradients.items():
            back = round_trip(gradient, self.world.cut_codec) if self.rounds_cut else gradient
            groups[d].backward(back)

    def _upload(self, plan: RoundPlan, done: dict[int, Finished]) -> Uploads:
        w = self.world
        deepest = max(w.depths)
        k, p, q = len(plan.clients), w.masked_size(deepest), w.plain_size(deepest)
        values = torch.zeros(k, p, dtype=w.dtype, device=w.device)
        contributes = torch.zeros(k, p, dtype=torch.bool, device=w.device)
        plain = torch.zeros(k, q, dtype=w.dtype, device=w.device)
        for depth, places in plan.groups.items():
            at = torch.tensor(places, device=w.device)
            d = done[depth]
            values[at, : d.values.shape[1]] = d.values
            contributes[at, : d.values.shape[1]] = d.contributes
            plain[at, : d.plain.shape[1]] = d.plain
            for i in range(len(places)):
                count(self.ledger, Direction.UP, self.wire.finish_bytes(d, i))
        return Uploads(values, contributes, plain)
