"""One round on the server as it happens: who is in, who came in time, whose mask counts.

Nothing here waits or knows threads; `ServerSide` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pmsfl.deploy.checks import check_mask, placed, shares, within
from pmsfl.deploy.settings import Bounds
from pmsfl.engine.client import Finished
from pmsfl.engine.metrics import RoundMetrics, collect
from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.protocol import Wire, count_encoded
from pmsfl.engine.server import Server, Uploads
from pmsfl.engine.state import Memory, State
from pmsfl.engine.world import World
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction, Kind, WireError


class LiveRound:
    """A round under way. i counts the clients of the plan."""

    def __init__(self, world: World, state: State, plan: RoundPlan, ledger: Ledger, bounds: Bounds) -> None:
        world.model.train()
        self.world, self.state, self.plan, self.ledger, self.bounds = world, state, plan, ledger, bounds
        self.wire = Wire(world)
        self.clock = world.clock(state.round)
        self.server = Server(world, state, plan, self.clock)
        self.step = 0  # the step whose smashed data is being gathered
        self.inbox: dict[int, tuple[Tensor, Tensor]] = {}
        self.taken = dict.fromkeys(range(len(plan.clients)), 0)  # steps each has had
        self.out: dict[int, str] = {}
        self.done: dict[int, Finished] = {}
        self.scores: dict[int, float] = {}  # of the masks, see checks.mask_score
        self.uploads = Uploads.empty(world, len(plan.clients))
        self.memories: dict[int, Memory] = {}

    @property
    def sequential(self) -> bool:
        """Does the top step on every batch as it comes?"""
        return self.world.recipe.schedule == "sequential"

    def place(self, client: int) -> int | None:
        """A client's position in the plan; None: it has no part in this round."""
        return self.plan.clients.index(client) if client in self.plan.clients else None

    @property
    def inside(self) -> list[int]:
        """Who has not been left out."""
        return [i for i in range(len(self.plan.clients)) if i not in self.out]

    def missing(self) -> list[int]:
        """Whom the current step, or the end of the round, still waits for."""
        if self.stepping:
            return [i for i in self.inside if self.plan.steps[i] > self.step and i not in self.inbox]
        return [i for i in self.inside if i not in self.done]

    @property
    def stepping(self) -> bool:
        """Are there steps that everybody takes together still to come?"""
        return not self.sequential and self.step < max(self.plan.steps)

    @property
    def anyone_waits(self) -> bool:
        """Is somebody through with its steps?"""
        return bool(self.done)

    def too_few(self, least: int) -> str:
        """Why the round cannot end any more; '' while it can."""
        if len(self.inside) >= min(least, len(self.plan.clients)):
            return ""
        return f"only {len(self.inside)} of {len(self.plan.clients)} sites are left in the round"

    def give_up(self, reason: str) -> None:
        """The round does not count, for nobody."""
        for i in self.inside:
            LiveRound.leave_out(self, i, f"the round was given up: {reason}")

    def leave_out(self, i: int, reason: str) -> None:
        """A client is late or has failed: out until the next round, its mask dropped."""
        self.out.setdefault(i, reason)
        self.inbox.pop(i, None)
        if self.done.pop(i, None) is not None:
            self.uploads.contributes[i] = False
            self.uploads.values[i] = 0.0
            self.uploads.plain_held[i] = False
            self.uploads.plain[i] = 0.0
            self.memories.pop(self.plan.clients[i], None)

    # --- a start

    def start(self, i: int) -> bytes:
        """θ and norms for one client."""
        w, client, depth = self.world, self.plan.clients[i], self.plan.depths[i]
        shared, view = w.sent(self.state.shared, depth), w.plain_view(depth)
        data = self.wire.write_start(self.state.round, client, shared, self.state.plain[view.sent])
        return count_encoded(self.ledger, Direction.DOWN, data)

    # --- steps

    def read_step(self, i: int, step: int, data: bytes) -> tuple[Tensor, Tensor]:
        """One client's smashed data and labels, checked. WireError: not to be used, and nothing has changed."""
        w, client = self.world, self.plan.clients[i]
        expected = self.taken[i]
        if step != expected or step >= self.plan.steps[i] or (not self.sequential and step != self.step):
            raise WireError(
                f"step {step + 1} of client {client} is out of order: {expected + 1} of {self.plan.steps[i]} is due"
            )
        shape = (w.recipe.batch, *w.smashed_shapes[self.plan.depths[i]])
        for m in placed(data, self.wire.run, self.plan.round, client, step):
            if m.kind == Kind.SMASHED and (m.shape != shape or m.codec != w.cut_codec):
                raise WireError(f"SMASHED: {m.codec.name} of shape {m.shape}, expected {w.cut_codec.name} of {shape}")
        smashed, labels = self.wire.read_step(data)
        if labels.numel() and int(labels.min()) < 0:
            raise WireError(f"LABELS of client {client}: a class below 0")
        return within(smashed, self.bounds.smashed, "SMASHED"), labels

    def accept(self, i: int, batch: tuple[Tensor, Tensor], data: bytes) -> None:
        """Put what `read_step` returned into the current step."""
        self.inbox[i] = batch
        count_encoded(self.ledger, Direction.UP, data)

    def take_step(self) -> dict[int, bytes]:
        """One step of the top on all that is in the inbox; the gradient for each of them."""
        groups = {d: [i for i in places if i in self.inbox] for d, places in self.plan.groups.items()}
        groups = {d: group for d, group in groups.items() if group}
        step = self.taken[next(iter(self.inbox))]
        self.clock.step.fill_(step)
        gradients = self.server.step(
            {d: torch.stack([self.inbox[i][0] for i in group]) for d, group in groups.items()},
            {d: torch.stack([self.inbox[i][1] for i in group]) for d, group in groups.items()},
        )
        answers = {}
        for d, group in groups.items():
            for gradient, i in zip(gradients[d], group, strict=True):
                data = self.wire.write_gradient(self.plan.round, self.plan.clients[i], step, gradient)
                answers[i] = count_encoded(self.ledger, Direction.DOWN, data)
                self.taken[i] += 1
        self.inbox.clear()
        if not self.sequential:
            self.step += 1
        return answers

    # --- the end

    def go_on(self) -> bool:
        """After all uploads: is there more to come before the merge? Not here, see `SecureRound`."""
        return False

    def take(self, i: int, kind: int, data: bytes) -> None:
        """A message of a secure sum."""
        raise WireError("SECURE: this run has no secure sums")

    def reply(self, i: int, kind: int) -> bytes | None:
        """What it is answered with; None: nothing yet."""
        return None

    def offer(self) -> dict[str, Any]:
        """What sites are told at the start of a round beyond θ and norms."""
        return {}

    def _check_steps(self, i: int) -> None:
        if self.taken[i] != self.plan.steps[i]:
            raise WireError(
                f"the upload of client {self.plan.clients[i]} comes after {self.taken[i]} of {self.plan.steps[i]} steps"
            )

    def finish(self, i: int, info: Mapping[str, Any], data: bytes) -> None:
        """One client's upload, checked and entered. WireError: not used, and nothing has changed."""
        w, client, depth = self.world, self.plan.clients[i], self.plan.depths[i]
        self._check_steps(i)
        placed(data, self.wire.run, self.plan.round, client, 0)
        known = remembered(w, self.state, client)
        sent = self.wire.start(w.sent(self.state.shared, depth), depth).shared
        values, contributes, plain, personal = self.wire.read_finish(data, depth, known, sent)
        within(plain, self.bounds.values, "NORMS")
        score = 0.0
        if w.method.uploads == "bits":
            score = check_mask(values[contributes], sent[contributes], self.bounds, w.method.upload_masks)
        else:
            within(values, self.bounds.values, self.wire.shared_kind.name)
        finished = self._finished(i, info, values, contributes, plain)
        self._enter(i, values, contributes, plain)
        indices = personal.nonzero().squeeze(1)
        # What a site keeps is its own: the server knows where it is, never what it is.
        self.memories[client] = Memory(indices, torch.zeros(len(indices), dtype=w.dtype))
        self.done[i], self.scores[i] = finished, score
        count_encoded(self.ledger, Direction.UP, data)

    def _finished(
        self, i: int, info: Mapping[str, Any], values: Tensor, contributes: Tensor, plain: Tensor
    ) -> Finished:
        layers = len(self.world.layout.layers(self.plan.depths[i]))
        entropy = shares(info, "entropy", layers)
        disagree, at_clip = shares(info, "disagree", 1), shares(info, "at_clip", 1)
        row = contributes.unsqueeze(0)
        fresh = torch.zeros_like(row)
        health = None if entropy is None else entropy.unsqueeze(0)
        return Finished(values.unsqueeze(0), row, fresh, plain.unsqueeze(0), [], health, disagree, at_clip)

    def _enter(self, i: int, values: Tensor, contributes: Tensor, plain: Tensor) -> None:
        view = self.world.plain_view(self.plan.depths[i])
        self.uploads.values[i, : len(values)] = values
        self.uploads.contributes[i, : len(values)] = contributes
        self.uploads.plain[i, view.sent] = plain
        self.uploads.plain_held[i, view.sent] = True

    def actual(self) -> RoundPlan:
        """The plan with the steps that were made, and whoever has not uploaded as late."""
        clients = range(len(self.plan.clients))
        late, steps = tuple(i not in self.done for i in clients), tuple(self.taken[i] for i in clients)
        return dataclasses.replace(self.plan, late=late, steps=steps)

    def merge(self) -> tuple[State, RoundMetrics, RoundPlan]:
        """The next state from those that came through, what was seen on the way, and the round as it turned out."""
        self.server.plan = actual = self.actual()
        self.server.samples = sum(actual.steps) * self.world.recipe.batch
        state = self.server.finish(self.uploads, self.memories)
        done = [self.done[i] for i in sorted(self.done)]
        return state, collect(self.world, self.server, done, actual), actual


def remembered(world: World, state: State, client: int) -> Tensor:
    """What the server knows of a client's personal set: bool [P_d]."""
    known = world.kept_from_start(world.depths[client]).clone()
    memory = state.bank.get(client)
    if memory is not None:
        known[memory.indices] = True
    return known
