"""The cohort executor: all sampled clients at once, one vmap per depth, one top step on the union.

Nothing is encoded; the ledger gets the lengths that the same messages have on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pmsfl.engine.client import Bottoms, Finished, backward_together
from pmsfl.engine.compile import inductor
from pmsfl.engine.metrics import RoundMetrics, collect
from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.protocol import Start, Wire, count
from pmsfl.engine.record import Recorder
from pmsfl.engine.rows import Clock
from pmsfl.engine.server import Batches, Places, Server, Uploads
from pmsfl.engine.state import Memory, State
from pmsfl.engine.together import forward_together
from pmsfl.engine.transcribe import RoundTape, Transcriber
from pmsfl.engine.world import World
from pmsfl.wire.codecs import Codec
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction, Kind
from pmsfl.wire.tensors import round_trip


@dataclass
class Playing:
    """A round under way."""

    plan: RoundPlan
    server: Server
    groups: dict[int, Bottoms]  # by depth, shallow first
    starts: dict[int, Start]  # by depth


class CohortExecutor:
    """Plays a round on stacked clients."""

    name = "cohort"
    transcriber: Transcriber | None = None  # keeps what crosses the wire, where somebody wants it
    tape: RoundTape | None = None  # of the round under way

    def __init__(self, world: World, ledger: Ledger, note: Callable[[str], None] = lambda line: None) -> None:
        self.world, self.ledger = world, ledger
        self.wire = Wire(world)
        self.vectorised = world.why_looped is None
        self.recorder = self._recorder(note)

    def _recorder(self, note: Callable[[str], None]) -> Recorder | None:
        """Recordings of the step, where they pay: on a GPU."""
        r, w = self.world.recipe, self.world
        if w.device.type != "cuda" or r.capture == "off":
            return None
        if r.schedule == "sequential":
            note("steps run without a recording: schedule = 'sequential' draws the order of its server steps anew")
            return None
        if w.noises_gradients:
            note("steps run without a recording: every sample has a score gradient of its own (score_gradient_noise)")
            return None
        return Recorder(w, self._union_step, note, inductor if r.capture == "auto" and self.vectorised else None)

    def round(self, state: State) -> tuple[State, RoundMetrics]:
        """One round: the next state, and what was seen on the way."""
        play = self.begin(state)
        for active in play.plan.active:
            self.step(play, active)
        return self.finish(play)

    def begin(self, state: State) -> Playing:
        """The round after `state`, ready for its first step."""
        w = self.world
        w.model.train()
        plan, clock = w.plan(state.round), w.clock(state.round)
        starts = {d: self.wire.start(w.sent(state.shared, d), d) for d in plan.groups}
        groups = {d: self._bottoms(state, starts[d], plan, clock, d, p) for d, p in plan.groups.items()}
        self._count_start(plan, starts)
        self._count_steps(plan)
        self.tape = None if self.transcriber is None else self.transcriber.of_round(plan)
        if self.tape is not None:
            self._tell_start(self.tape, state, plan, starts)
        server = self._server(state, plan, clock)
        if self.recorder is not None and self.tape is None:
            self.recorder.move_in(server, groups)
        return Playing(plan, server, groups, starts)

    def finish(self, play: Playing) -> tuple[State, RoundMetrics]:
        """The end of a round whose steps are done."""
        if self.recorder is not None and self.tape is None:
            self.recorder.move_out()
        plan, done = play.plan, self._finished(play)
        done = {d: f.take(self._on_time(plan, d)) for d, f in done.items()} if any(plan.late) else done
        uploads, memories = self._upload(play, done)
        if self.tape is not None:
            self.tape.close()
        return play.server.finish(uploads, memories), collect(self.world, play.server, list(done.values()), plan)

    def _finished(self, play: Playing) -> dict[int, Finished]:
        return {d: b.finish() for d, b in play.groups.items()}

    def _server(self, state: State, plan: RoundPlan, clock: Clock) -> Server:
        return Server(self.world, state, plan, clock)

    def _bottoms(
        self, state: State, start: Start, plan: RoundPlan, clock: Clock, depth: int, places: list[int]
    ) -> Bottoms:
        w = self.world
        view = w.plain_view(depth)
        return Bottoms(
            w,
            clock,
            plan.round,
            [plan.clients[i] for i in places],
            depth,
            [plan.steps[i] for i in places],
            start.shared,
            state.plain[view.sent],
            state.bank,
            self.vectorised,
        )

    def _tell_start(self, tape: RoundTape, state: State, plan: RoundPlan, starts: dict[int, Start]) -> None:
        for client, depth in zip(plan.clients, plan.depths, strict=True):
            tape.start(client, starts[depth].shared, state.plain[self.world.plain_view(depth).sent])

    def _count_start(self, plan: RoundPlan, starts: dict[int, Start]) -> None:
        for depth, places in plan.groups.items():
            count(self.ledger, Direction.DOWN, starts[depth].costs, len(places))

    def _count_steps(self, plan: RoundPlan) -> None:
        """The bytes of all steps: every batch is full, so they are known before the first."""
        w = self.world
        for depth, places in plan.groups.items():
            times = sum(plan.steps[i] for i in places)
            costs = self.wire.step_bytes((w.recipe.batch, *w.smashed_shapes[depth]))
            count(self.ledger, Direction.DOWN, {Kind.GRADIENT: costs.pop(Kind.GRADIENT)}, times)
            count(self.ledger, Direction.UP, costs, times)
            if w.u_shape:
                shape = (w.recipe.batch, *w.smashed_shapes[w.model.depth])
                count(self.ledger, Direction.DOWN, {Kind.FEATURES: self.wire.feature_bytes(shape, up=False)}, times)
                count(
                    self.ledger, Direction.UP, {Kind.FEATURE_GRADIENT: self.wire.feature_bytes(shape, up=True)}, times
                )

    def step(self, play: Playing, active: dict[int, int]) -> None:
        """One step of the active clients (the first of each depth) and of the server."""
        if self.recorder is not None and self.tape is None:
            self.recorder.step(active)
        else:
            self._union_step(play.server, {d: play.groups[d].first(a) for d, a in active.items()})

    def _union_step(self, server: Server, groups: dict[int, Bottoms], present: Batches | None = None) -> None:
        """present: see Server.step."""
        sent, labels = forward_together(self.world, groups)
        smashed = {d: self._over_wire(q, self.world.cut_codec) for d, q in sent.items()}

        def answer(features: Batches, places: Places) -> tuple[Batches, Tensor]:
            return self._answer(groups, features, places, present)

        gradients = server.step(smashed, labels, answer if self.world.u_shape else None, present)
        gradients = {d: self._over_wire(g, self.world.gradient_codec) for d, g in gradients.items()}
        if self.tape is not None:
            for d, clients in groups.items():
                for i in range(len(smashed[d])):
                    self.tape.step(clients.clients[i], smashed[d][i], labels[d][i], gradients[d][i])
        backward_together([(groups[d], gradient) for d, gradient in gradients.items()])
        server.clock.step += 1

    def _over_wire(self, t: Tensor, codec: Codec) -> Tensor:
        """What the other side would receive of [A, B, ...]: a message per client."""
        return t if codec == self.world.codec else round_trip(t, codec, stacked=True)

    def _answer(
        self, groups: dict[int, Bottoms], features: Batches, places: Places, present: Batches | None
    ) -> tuple[Batches, Tensor]:
        gradients, total = {}, torch.zeros((), dtype=self.world.dtype, device=self.world.device)
        for d, f in features.items():
            received = self._over_wire(f, self.world.cut_codec)
            gradient, losses = groups[d].answer(received, None if places is None else places[d])
            if present is not None:
                gradient = gradient * present[d].reshape(-1, *(1,) * (gradient.ndim - 1)).to(gradient.dtype)
                losses = losses * present[d]
            gradients[d], total = self._over_wire(gradient, self.world.gradient_codec), total + losses.sum()
        return gradients, total

    def _upload(self, play: Playing, done: dict[int, Finished]) -> tuple[Uploads, dict[int, Memory]]:
        w, plan = self.world, play.plan
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
                count(self.ledger, Direction.UP, self.wire.finish_bytes(d, row, play.starts[depth].shared))
                memories[plan.clients[i]] = d.memories[row]
                if self.tape is not None:
                    self.tape.upload(plan.clients[i], d.values[row], d.contributes[row], d.plain[row])
        return uploads, memories

    @staticmethod
    def _on_time(plan: RoundPlan, depth: int) -> list[int]:
        """Rows of a depth group whose upload counts."""
        return [row for row, i in enumerate(plan.groups[depth]) if plan.on_time[i]]
