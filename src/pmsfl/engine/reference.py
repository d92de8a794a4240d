"""The reference executor: one client after another within each step, every message encoded and decoded.

Slow and obvious: the oracle of all the others.
"""

from __future__ import annotations

import torch

from pmsfl.engine.client import Bottoms, Finished
from pmsfl.engine.metrics import RoundMetrics, collect
from pmsfl.engine.protocol import Wire, count_encoded
from pmsfl.engine.server import Server, Uploads
from pmsfl.engine.state import Memory, State
from pmsfl.engine.world import World
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction


class ReferenceExecutor:
    """Plays a round by the book."""

    name = "reference"

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.world, self.ledger = world, ledger
        self.wire = Wire(world)

    def round(self, state: State) -> tuple[State, RoundMetrics]:
        """One round: the next state, and what was seen on the way."""
        w = self.world
        w.model.train()
        plan = w.plan(state.round)
        server = Server(w, state, plan)
        clients = [
            self._begin(state, i, c, d, r)
            for i, (c, d, r) in enumerate(zip(plan.clients, plan.depths, plan.steps, strict=True))
        ]
        for step in range(max(plan.steps)):
            active = [i for i, r in enumerate(plan.steps) if r > step]
            self._step(server, clients, plan.clients, plan.depths, active, step)
        done = [b.finish() for b in clients]
        uploads = self._upload(state, plan.clients, plan.depths, done)
        memories = {c: m for c, d in zip(plan.clients, done, strict=True) if (m := d.memories[0])}
        return server.finish(uploads, memories), collect(w, server, done, plan)

    def _begin(self, state: State, i: int, client: int, depth: int, steps: int) -> Bottoms:
        w = self.world
        shared, plain = state.shared[: w.masked_size(depth)], state.plain[: w.plain_size(depth)]
        data = self.wire.write_start(state.round, client, shared, plain)
        count_encoded(self.ledger, Direction.DOWN, data)
        shared, plain = self.wire.read_start(data, depth, shared, plain)
        return Bottoms(w, state.round, [client], depth, [steps], shared, plain, state.bank, vectorised=False)

    def _step(
        self,
        server: Server,
        bottoms: list[Bottoms],
        clients: tuple[int, ...],
        depths: tuple[int, ...],
        active: list[int],
        step: int,
    ) -> None:
        round_ = server.plan.round
        inbox = {}
        for i in active:
            smashed, labels = bottoms[i].forward(step, 1)
            data = self.wire.write_step(round_, clients[i], step, smashed[0], labels[0])
            inbox[i] = self.wire.read_step(count_encoded(self.ledger, Direction.UP, data))
        by_depth = {d: [i for i in active if depths[i] == d] for d in sorted({depths[i] for i in active})}
        gradients = server.step(
            step,
            {d: torch.stack([inbox[i][0] for i in group]) for d, group in by_depth.items()},
            {d: torch.stack([inbox[i][1] for i in group]) for d, group in by_depth.items()},
        )
        for d, group in by_depth.items():
            for place, i in enumerate(group):
                gradient = gradients[d][place]
                data = self.wire.write_gradient(round_, clients[i], step, gradient)
                count_encoded(self.ledger, Direction.DOWN, data)
                bottoms[i].backward(self.wire.read_gradient(data, tuple(gradient.shape)).unsqueeze(0))

    def _upload(self, state: State, clients: tuple[int, ...], depths: tuple[int, ...], done: list[Finished]) -> Uploads:
        w = self.world
        deepest = max(w.depths)
        k, p, q = len(clients), w.masked_size(deepest), w.plain_size(deepest)
        values = torch.zeros(k, p, dtype=w.dtype, device=w.device)
        contributes = torch.zeros(k, p, dtype=torch.bool, device=w.device)
        plain = torch.zeros(k, q, dtype=w.dtype, device=w.device)
        for i, (client, depth) in enumerate(zip(clients, depths, strict=True)):
            data = self.wire.write_finish(state.round, client, done[i], 0)
            count_encoded(self.ledger, Direction.UP, data)
            known = self._remembered(state.bank.get(client), depth)
            a, b = w.masked_size(depth), w.plain_size(depth)
            values[i, :a], contributes[i, :a], plain[i, :b], _ = self.wire.read_finish(data, depth, known)
        return Uploads(values, contributes, plain)

    def _remembered(self, memory: Memory | None, depth: int) -> torch.Tensor:
        """What the server remembers of a client's personal set: it was sent once, when it grew."""
        w = self.world
        known = w.method.personal_at_start(w.layout.layers(depth), w.masked_size(depth)).to(w.device)
        if memory is not None:
            known[memory.indices] = True
        return known
