"""The client's half of a round, for K clients of one depth at once: K = 1 under `reference`, a whole depth group
under `cohort`. P masked coordinates and Q plain parameters of that depth; A ≤ K clients still at work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from pmsfl.engine.optim import RowOptimiser
from pmsfl.engine.state import Memory
from pmsfl.engine.world import World, learning_rate
from pmsfl.masks.bernoulli import entropy_bits, keep_mask
from pmsfl.masks.personal import disagree
from pmsfl.masks.random import Stream, uniform
from pmsfl.methods.depthfl import exit_loss


@dataclass(frozen=True)
class Finished:
    """What K clients end a round with."""

    values: Tensor  # [K, P] to upload
    contributes: Tensor  # [K, P] bool: what of it goes up
    fresh: Tensor  # [K, P] bool: coordinates that became personal in this round
    plain: Tensor  # [K, q]: the shared plain parameters, in the order of PlainView.shared
    memories: list[Memory]
    entropy: Tensor | None  # [K, layers]: mean entropy of the masks each samples, in bits
    disagree: Tensor | None  # [K]: share of coordinates that crossed 0.5

    def take(self, rows: list[int]) -> Finished:
        """Only some of the clients."""
        return Finished(
            self.values[rows],
            self.contributes[rows],
            self.fresh[rows],
            self.plain[rows],
            [self.memories[i] for i in rows],
            None if self.entropy is None else self.entropy[rows],
            None if self.disagree is None else self.disagree[rows],
        )


class Bottoms:
    """K clients' bottoms through one round."""

    def __init__(
        self,
        world: World,
        round_: int,
        clients: list[int],
        depth: int,
        steps: list[int],
        shared: Tensor,
        plain: Tensor,
        bank: Mapping[int, Memory],
        vectorised: bool,
    ) -> None:
        self.world, self.round, self.depth = world, round_, depth
        self.clients, self.vectorised = clients, vectorised
        self.ids = torch.tensor(clients, device=world.device)
        self.layers = world.layout.layers(depth)
        self.frozen = world.frozen[: world.masked_size(depth)]
        self.memories = [bank.get(c) for c in clients]
        self.trained = world.method.start(shared).repeat(len(clients), 1)
        self.view = world.plain_view(depth)
        self.plain = torch.stack(
            [world.client_plain(plain, depth, None if m is None else m.plain) for m in self.memories]
        )
        self.personal = world.kept_from_start(depth).repeat(len(clients), 1)
        self._recall()
        self.start = self.trained.clone()
        self._round_draw: Tensor | None = None  # with mask_per = "round": gives the same mask in every step
        self.before = world.method.theta(self.start)
        self._plan_batches(steps)
        self._start_optimisers()

    def _recall(self) -> None:
        """Personal coordinates come from the client's own memory."""
        for i, m in enumerate(self.memories):
            if m is None:
                continue
            self.personal[i, m.indices] = True
            self.trained[i, m.indices] = m.values

    def _plan_batches(self, steps: list[int]) -> None:
        w = self.world
        longest = max(steps)
        self.rows = torch.zeros(len(steps), longest, w.recipe.batch, dtype=torch.int64, device=w.device)
        for i, (c, r) in enumerate(zip(self.clients, steps, strict=True)):
            self.rows[i, :r] = w.batch_rows(c, self.round, r)

    def _start_optimisers(self) -> None:
        r = self.world.recipe
        masks = self.world.method.trains == "scores"
        if masks:
            self.masked_optimiser = RowOptimiser.fresh("adam", self.trained)
        else:
            self.masked_optimiser = RowOptimiser.fresh(r.client_optimiser, self.trained, r.momentum, r.weight_decay)
        self.plain_optimiser = RowOptimiser.fresh(r.client_optimiser, self.plain, r.momentum, r.weight_decay)
        rounds = r.rounds
        self.lr_plain = learning_rate(r.lr_client, r.lr_schedule, self.round, rounds)
        self.lr_masked = learning_rate(r.lr_score, r.score_schedule, self.round, rounds) if masks else self.lr_plain
        if r.client_state == "persistent":
            for i, m in enumerate(self.memories):
                for name, optimiser in self._optimisers():
                    for k, v in optimiser.tensors().items():
                        if m is not None and f"{name}.{k}" in m.optimiser:
                            v[i] = m.optimiser[f"{name}.{k}"]

    def _optimisers(self) -> tuple[tuple[str, RowOptimiser], tuple[str, RowOptimiser]]:
        return ("masked", self.masked_optimiser), ("plain", self.plain_optimiser)

    # --- steps

    def forward(self, step: int, active: int) -> tuple[Tensor, Tensor]:
        """Smashed data [A, B, ...] and the labels [A, B] that may leave; keeps the graph for `backward`."""
        w, ids = self.world, self.ids[:active]
        self._rows = self.rows[:active, step]
        x = w.inputs(self._rows, w.keys.client(Stream.AUGMENT, ids, self.round, step))
        self._masked = self.trained[:active].detach()
        self._plain = self.plain[:active].detach()
        self._masked.requires_grad_(w.method.trains != "nothing")
        self._plain.requires_grad_(bool(self.view.trained.any()))
        self._head_gradient: Tensor | None = None
        effective = w.method.effective(self._masked, self.frozen, self._uniform(ids, step))
        smashed = self._run(effective, x, w.keys.client(Stream.DROPOUT, ids, self.round, step))
        self._smashed = w.method.smash(smashed, w.keys.client(Stream.NOISE, ids, self.round, step))
        return self._smashed.detach(), w.public_y[self._rows]

    def _run(self, effective: Tensor, x: Tensor, dropout: Tensor) -> Tensor:
        w = self.world
        plain = self._plain[:, : self.view.bottom]
        self._local_loss: Tensor | None = None
        if not w.method.exits:
            return w.run_bottoms(effective, plain, x, self.depth, dropout, self.vectorised)
        smashed, logits = w.run_bottoms_with_exits(effective, plain, x, self.depth, dropout, self.vectorised)
        self._local_loss = exit_loss(logits, w.y[self._rows], self.round, w.recipe.rounds)
        return smashed

    def _uniform(self, ids: Tensor, step: int) -> Tensor | None:
        w = self.world
        if not w.method.samples_masks:
            return None
        if w.recipe.mask_per == "batch":
            return uniform(w.keys.client(Stream.FORWARD, ids, self.round, step), self.trained.shape[1], w.dtype)
        if self._round_draw is None:
            drawn = uniform(w.keys.client(Stream.FORWARD, self.ids, self.round), self.trained.shape[1], w.dtype)
            self._round_draw = keep_mask(torch.sigmoid(self.start), drawn)
        return self._round_draw[: len(ids)]

    def answer(self, features: Tensor, places: list[int]) -> tuple[Tensor, Tensor]:
        """The U-shape's middle: the head and the loss are here.

        features [a, B, ...] of the clients at `places`; returns dL/dfeatures as the mean over each client's own
        batch, and the sum of the clients' losses. The labels never leave.
        """
        w = self.world
        head = self._plain[places][:, self.view.bottom :].detach().requires_grad_()
        inputs = features.detach().requires_grad_()
        y = w.y[self._rows[places]]

        def one(views: dict[str, Tensor], f: Tensor) -> Tensor:
            out: Tensor = functional_call(w.model, views, (f, w.model.depth))
            return out

        logits = w.over_clients(one, (w.layout.head(head), inputs), self.vectorised)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
        gradient, own = torch.autograd.grad(loss, (inputs, head))
        if self._head_gradient is None:
            self._head_gradient = torch.zeros_like(self._plain[:, self.view.bottom :])
        self._head_gradient[places] = own
        return gradient, loss.detach()

    def backward(self, gradient: Tensor) -> None:
        """Backpropagate dL/dq [A, B, ...] of the last forward pass and take one optimiser step."""
        leaves = [t for t in (self._masked, self._plain) if t.requires_grad and t.numel()]
        outputs, weights = [self._smashed], [gradient]
        if self._local_loss is not None:
            outputs, weights = [*outputs, self._local_loss], [*weights, torch.ones_like(self._local_loss)]
        if not leaves or not self._smashed.requires_grad:
            return
        grads = torch.autograd.grad(outputs, leaves, weights, materialize_grads=True)
        for leaf, grad in zip(leaves, grads, strict=True):
            if leaf is self._masked:
                self.masked_optimiser.step(self.trained, grad, self.lr_masked)
                self.world.method.project(self.trained)
            else:
                self._step_plain(grad)

    def _step_plain(self, grad: Tensor) -> None:
        if self._head_gradient is not None:
            grad = torch.cat((grad[:, : self.view.bottom], self._head_gradient), 1)
        still = ~self.view.trained
        before = self.plain[:, still]
        self.plain_optimiser.step(self.plain, grad, self.lr_plain)
        self.plain[:, still] = before  # weight decay must not move what is frozen

    # --- end of the round

    def finish(self) -> Finished:
        """Choose personal coordinates, draw the upload, write the clients' memories."""
        w = self.world
        method = w.method
        participations = torch.tensor([self._participations(m) for m in self.memories])
        after = method.theta(self.trained)
        grown = self.personal
        if after is not None and self.before is not None:
            noise = None
            if w.recipe.personal_order == "random":
                keys = w.keys.client(Stream.UPLOAD, self.ids, self.round, 1)
                noise = uniform(keys, after.shape[1], w.dtype)
            grown = method.grow_personal(self.before, after, self.personal, participations, self.layers, noise)
        drawn = None
        if method.samples_masks:
            keys = w.keys.client(Stream.UPLOAD, self.ids, self.round)
            drawn = uniform(keys, self.trained.shape[1], w.dtype)
        noise_keys = w.keys.client(Stream.NOISE, self.ids, self.round, -1)
        return Finished(
            method.upload(method.protect_update(self.start, self.trained, noise_keys), drawn),
            ~grown,
            grown & ~self.personal,
            self.plain[:, self.view.shared],
            [self._memory(i, grown[i], int(p)) for i, p in enumerate(participations)],
            None if after is None or not method.samples_masks else self._entropy(after),
            None if after is None or self.before is None else self._disagreement(self.before, after),
        )

    def _participations(self, memory: Memory | None) -> int:
        r = self.world.recipe
        before = 0 if memory is None else memory.participations
        return before + (self.round >= math.ceil(r.agreement * r.rounds - 1e-9))

    def _memory(self, i: int, personal: Tensor, participations: int) -> Memory:
        r = self.world.recipe
        indices = personal.nonzero().squeeze(1)
        optimiser: dict[str, Tensor] = {}
        if r.client_state == "persistent":
            for name, o in self._optimisers():
                optimiser |= {f"{name}.{k}": v[i].clone() for k, v in o.tensors().items()}
        plain = self.plain[i, self.view.local] if bool(self.view.local.any()) else None
        return Memory(indices, self.trained[i, indices], participations, plain, optimiser)

    def _entropy(self, theta: Tensor) -> Tensor:
        bits = entropy_bits(theta)
        per_layer = [bits[:, s.offset : s.offset + s.size].mean(1) for s in self.layers]
        return torch.stack(per_layer, 1) if per_layer else bits

    def _disagreement(self, before: Tensor, after: Tensor) -> Tensor:
        """Of the coordinates each client still shared, the share that crossed 0.5; 0 where it shared none."""
        shared = ~self.personal
        return (disagree(before, after) & shared).sum(1) / shared.sum(1).clamp_min(1)
