"""The reference executor: one client after another within each step, every message encoded and decoded.

Slow and obvious: the oracle of all the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pmsfl.engine.client import Bottoms, Finished
from pmsfl.engine.metrics import RoundMetrics, collect
from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.protocol import Wire, count_encoded
from pmsfl.engine.rows import Clock
from pmsfl.engine.server import Batches, Places, Server, Uploads
from pmsfl.engine.state import Memory, State
from pmsfl.engine.transcribe import RoundTape, Transcriber
from pmsfl.engine.world import World
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction


class ReferenceExecutor:
    """Plays a round by the book."""

    name = "reference"
    transcriber: Transcriber | None = None  # keeps what crosses the wire, where somebody wants it
    tape: RoundTape | None = None  # of the round under way

    def __init__(self, world: World, ledger: Ledger, note: Callable[[str], None] = lambda line: None) -> None:
        self.world, self.ledger = world, ledger
        self.wire = Wire(world)

    def round(self, state: State) -> tuple[State, RoundMetrics]:
        """One round: the next state, and what was seen on the way."""
        w = self.world
        w.model.train()
        plan = w.plan(state.round)
        clock = w.clock(state.round)
        server = Server(w, state, plan, clock)
        self.tape = None if self.transcriber is None else self.transcriber.of_round(plan)
        clients = [self._begin(state, plan, clock, i) for i in range(len(plan.clients))]
        for step in range(max(plan.steps)):
            active = [i for i, r in enumerate(plan.steps) if r > step]
            self._step(server, clients, active, step)
            clock.step += 1
        done = {i: b.finish() for i, b in enumerate(clients) if plan.on_time[i]}
        uploads = self._upload(state, plan, done, {i: clients[i].sent for i in done})
        if self.tape is not None:
            self.tape.close()
        memories = {plan.clients[i]: d.memories[0] for i, d in done.items()}
        return server.finish(uploads, memories), collect(w, server, list(done.values()), plan)

    def _begin(self, state: State, plan: RoundPlan, clock: Clock, i: int) -> Bottoms:
        w, client, depth = self.world, plan.clients[i], plan.depths[i]
        shared, view = w.sent(state.shared, depth), w.plain_view(depth)
        data = self.wire.write_start(state.round, client, shared, state.plain[view.sent])
        count_encoded(self.ledger, Direction.DOWN, data)
        shared, plain = self.wire.read_start(data, depth, shared)
        if self.tape is not None:
            self.tape.start(client, shared, plain)
        steps = [plan.steps[i]]
        return Bottoms(w, clock, state.round, [client], depth, steps, shared, plain, state.bank, vectorised=False)

    def _step(self, server: Server, bottoms: list[Bottoms], active: list[int], step: int) -> None:
        plan, inbox = server.plan, {}
        for i in active:
            smashed, labels = bottoms[i].forward()
            data = self.wire.write_step(plan.round, plan.clients[i], step, smashed[0], labels[0])
            inbox[i] = self.wire.read_step(count_encoded(self.ledger, Direction.UP, data))
        groups = {d: [i for i in places if i in inbox] for d, places in plan.groups.items()}
        groups = {d: group for d, group in groups.items() if group}

        def answer(features: Batches, places: Places) -> tuple[Batches, Tensor]:
            return self._answer(server, bottoms, groups, features, places, step)

        gradients = server.step(
            {d: torch.stack([inbox[i][0] for i in group]) for d, group in groups.items()},
            {d: torch.stack([inbox[i][1] for i in group]) for d, group in groups.items()},
            answer if self.world.u_shape else None,
        )
        for d, group in groups.items():
            for gradient, i in zip(gradients[d], group, strict=True):
                data = self.wire.write_gradient(plan.round, plan.clients[i], step, gradient)
                count_encoded(self.ledger, Direction.DOWN, data)
                received = self.wire.read_gradient(data, tuple(gradient.shape))
                if self.tape is not None:
                    self.tape.step(plan.clients[i], *inbox[i], received)
                bottoms[i].backward(received.unsqueeze(0))

    def _answer(
        self,
        server: Server,
        bottoms: list[Bottoms],
        groups: dict[int, list[int]],
        features: Batches,
        places: Places,
        step: int,
    ) -> tuple[Batches, Tensor]:
        """Features go down to the heads, their gradients come back, client by client."""
        round_, clients = server.plan.round, server.plan.clients
        gradients, losses = {}, torch.zeros((), dtype=self.world.dtype, device=self.world.device)
        for d, rows in features.items():
            answers = []
            chosen = groups[d] if places is None else [groups[d][place] for place in places[d]]
            for i, f in zip(chosen, rows, strict=True):
                data = self.wire.write_features(round_, clients[i], step, f, up=False)
                count_encoded(self.ledger, Direction.DOWN, data)
                received = self.wire.read_features(data, tuple(f.shape), up=False)
                gradient, loss = bottoms[i].answer(received.unsqueeze(0), None)
                losses = losses + loss.sum()
                data = self.wire.write_features(round_, clients[i], step, gradient[0], up=True)
                count_encoded(self.ledger, Direction.UP, data)
                answers.append(self.wire.read_features(data, tuple(f.shape), up=True))
            gradients[d] = torch.stack(answers)
        return gradients, losses

    def _upload(self, state: State, plan: RoundPlan, done: dict[int, Finished], received: dict[int, Tensor]) -> Uploads:
        """received: what each client began with; the server knows it too, as it wrote the message."""
        w = self.world
        uploads = Uploads.empty(w, len(plan.clients))
        for i, finished in done.items():
            client, depth = plan.clients[i], plan.depths[i]
            data = self.wire.write_finish(state.round, client, finished, 0, received[i])
            count_encoded(self.ledger, Direction.UP, data)
            known = self._remembered(state.bank.get(client), depth)
            p, view = w.masked_size(depth), w.plain_view(depth)
            sent = self.wire.start(w.sent(state.shared, depth), depth).shared
            values, contributes, plain, _ = self.wire.read_finish(data, depth, known, sent)
            uploads.values[i, :p], uploads.contributes[i, :p] = values, contributes
            uploads.plain[i, view.sent] = plain
            uploads.plain_held[i, view.sent] = True
            if self.tape is not None:
                self.tape.upload(client, values, contributes, plain)
        return uploads

    def _remembered(self, memory: Memory | None, depth: int) -> Tensor:
        """What the server remembers of a client's personal set: it was sent once, when it grew."""
        w = self.world
        known = w.kept_from_start(depth).clone()
        if memory is not None:
            known[memory.indices] = True
        return known
