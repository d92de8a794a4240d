"""The client's half of a round, for K clients of one depth at once: K = 1 under `reference`, a whole depth group
under `cohort`. P masked coordinates and Q plain parameters of that depth; A ≤ K clients still at work.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from pmsfl.engine.optim import RowOptimiser
from pmsfl.engine.plan import keeps_optimiser, personal_from, stays
from pmsfl.engine.rows import ClientRows, Clock
from pmsfl.engine.state import Memory
from pmsfl.engine.world import World
from pmsfl.masks.bernoulli import keep_mask, share_at_clip
from pmsfl.masks.personal import disagree
from pmsfl.masks.random import Stream, fold, uniform
from pmsfl.methods.depthfl import exit_loss
from pmsfl.privacy.cut import distance_correlation, reconstruction_loss, reversed_gradient
from pmsfl.privacy.mechanisms import noised_mean


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
    at_clip: Tensor | None  # [K]: share of coordinates whose θ is at c or 1 − c

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
            None if self.at_clip is None else self.at_clip[rows],
        )


class Bottoms:
    """K clients' bottoms through one round. `rows` and `clock` are all that a step reads and moves."""

    def __init__(
        self,
        world: World,
        clock: Clock,
        round_: int,
        clients: list[int],
        depth: int,
        steps: list[int],
        shared: Tensor,
        plain: Tensor,
        bank: Mapping[int, Memory],
        vectorised: bool,
    ) -> None:
        self._furnish(world, depth, vectorised)
        self.clock, self.round, self.clients = clock, round_, clients
        self.layers = world.layout.layers(depth)
        self.sent = shared
        self.memories = [bank.get(c) for c in clients]
        self.personal = world.kept_from_start(depth).repeat(len(clients), 1)
        trained = world.method.start(shared).repeat(len(clients), 1)
        self._recall(trained)
        self.start = trained.clone()
        self.before = world.method.theta(self.start)
        self.rows = self._rows(steps, trained, plain)

    @staticmethod
    def hollow(world: World, depth: int, vectorised: bool) -> Bottoms:
        """Nobody yet: only `on` gives it clients, and only for a step."""
        bottoms = object.__new__(Bottoms)
        bottoms._furnish(world, depth, vectorised)
        return bottoms

    def _furnish(self, world: World, depth: int, vectorised: bool) -> None:
        """What a step needs beside its tensors."""
        self.world, self.depth, self.vectorised = world, depth, vectorised
        self.frozen = world.frozen[: world.masked_size(depth)]
        self.view = world.plain_view(depth)

    def _recall(self, trained: Tensor) -> None:
        """Personal coordinates come from the client's own memory."""
        for i, m in enumerate(self.memories):
            if m is not None and len(m.indices):
                self.personal[i, m.indices] = True
                trained[i, m.indices] = m.values

    def _rows(self, steps: list[int], trained: Tensor, sent: Tensor) -> ClientRows:
        w = self.world
        local = [None if m is None else m.plain for m in self.memories]
        rows = self.empty_rows(len(steps), max(steps))
        rows.ids.copy_(torch.tensor(self.clients))
        rows.trained.copy_(trained)
        rows.plain.copy_(torch.stack([w.client_plain(sent, self.depth, own) for own in local]))
        for i, (c, n) in enumerate(zip(self.clients, steps, strict=True)):
            rows.batches[i, :n] = w.batch_rows(c, self.round, n)
        if rows.round_draw is not None:
            drawn = uniform(w.keys.client(Stream.FORWARD, rows.ids, self.round), trained.shape[1], w.dtype)
            rows.round_draw.copy_(keep_mask(w.method.forward_theta(self.start), drawn))
        if keeps_optimiser(w.recipe, self.round - 1):
            self._recall_optimisers(rows)
        return rows

    def empty_rows(self, clients: int, steps: int) -> ClientRows:
        """Room for so many clients and steps: zeros."""
        w, r = self.world, self.world.recipe
        batches = torch.zeros(clients, steps, r.batch, dtype=torch.int64, device=w.device)
        trained = torch.zeros(clients, w.masked_size(self.depth), dtype=w.dtype, device=w.device)
        plain = torch.zeros(clients, len(self.view.index), dtype=w.dtype, device=w.device)
        if w.method.trains == "scores":
            masked = RowOptimiser.fresh("adam", trained, shrinkage=r.score_decay)
        else:
            masked = RowOptimiser.fresh(r.client_optimiser, trained, r.momentum, r.weight_decay)
        others = RowOptimiser.fresh(r.client_optimiser, plain, r.momentum, r.weight_decay)
        one_draw = r.mask_per == "round" and w.method.samples_masks
        return ClientRows(
            batches[:, 0, 0].clone(), batches, trained, plain, masked, others, trained.clone() if one_draw else None
        )

    def _recall_optimisers(self, rows: ClientRows) -> None:
        for i, m in enumerate(self.memories):
            for name, optimiser in _optimisers(rows):
                for k, v in optimiser.tensors().items():
                    if m is not None and f"{name}.{k}" in m.optimiser:
                        v[i] = m.optimiser[f"{name}.{k}"]

    # --- steps

    def first(self, active: int) -> Bottoms:
        """Only the clients still at work, on the same memory."""
        return self.on(self.rows.first(active), self.clock)

    def on(self, rows: ClientRows, clock: Clock) -> Bottoms:
        """The same clients' step on other tensors."""
        other = copy.copy(self)
        other.rows, other.clock = rows, clock
        return other

    def forward(self) -> tuple[Tensor, Tensor]:
        """Smashed data [K, B, ...] and the labels [K, B] that may leave; keeps the graph for `backward`."""
        vectors, x, dropout = self.set_out()
        self._views = self.world.layout.bottom(*vectors, self.depth)
        return self.arrive(*self.world.run_blocks(self._views, x, 0, self.depth, dropout, self.vectorised))

    def set_out(self) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        """What the blocks run on: the clients' weights [K, P] and plain parameters [K, Q], inputs [K, B, ...], keys for
        dropout [K]."""
        w, rows, clock = self.world, self.rows, self.clock
        self._batch = rows.batches.index_select(1, clock.step.reshape(1)).squeeze(1)
        x = self.inputs()
        trained = self._each_sample(rows.trained.detach()) if w.noises_gradients else rows.trained.detach()
        self._masked = trained.requires_grad_(w.method.trains != "nothing")
        self._plain = rows.plain.detach().requires_grad_(self.view.trains)
        self._head_gradient: Tensor | None = None
        effective = w.method.effective(self._masked, self.frozen, self._uniform())
        plain, dropout = self._plain[:, : self.view.bottom], self._keys(Stream.DROPOUT)
        if w.noises_gradients:
            samples = torch.arange(x.shape[1], device=x.device)
            plain, dropout = self._each_sample(plain), fold(dropout.unsqueeze(1), samples).flatten()
            x = x.flatten(0, 1).unsqueeze(1)
        self._x = x
        return (effective, plain), x, dropout

    def inputs(self) -> Tensor:
        """The step's samples [K, B, ...] as the model takes them, augmented."""
        return self.world.inputs(self._batch, self._keys(Stream.AUGMENT))

    def arrive(self, out: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """What `forward` returns, from the last block's output [K, B, ...] and the exits' logits [K, d, B, classes]."""
        w = self.world
        if w.noises_gradients:
            out = out.reshape(*self._batch.shape, *out.shape[2:])
        with w.precision():
            self._smashed = w.method.leaving(out, self._keys(Stream.NOISE))
        self._local_loss = self._own_loss(logits)
        return self._smashed.detach(), w.public_y[self._batch]

    def _own_loss(self, logits: Tensor | None) -> Tensor | None:
        """What a client minimises beside the server's loss, summed over clients; None: nothing."""
        w, r = self.world, self.world.recipe
        losses = []
        if logits is not None:
            ramp = self.clock.ramp.to(w.dtype)
            losses.append(exit_loss(logits.to(w.dtype), w.y[self._batch], ramp, r.label_smoothing))
        if r.guard:
            images = w.run_guards(self._views, reversed_gradient(self._smashed, r.guard), self.vectorised)
            losses.append(reconstruction_loss(images.to(w.dtype), self._x))
        if r.no_peek:
            losses.append(r.no_peek * distance_correlation(self._x, self._smashed.to(w.dtype)).sum())
        return sum(losses[1:], losses[0]) if losses else None

    def _keys(self, stream: Stream) -> Tensor:
        return self.world.keys.client(stream, self.rows.ids, self.clock.round, self.clock.step)

    def _uniform(self) -> Tensor | None:
        w = self.world
        if not w.method.samples_masks:
            return None
        drawn = self.rows.round_draw
        if drawn is None:
            drawn = uniform(self._keys(Stream.FORWARD), self.rows.trained.shape[1], w.dtype)
        return self._each_sample(drawn) if w.noises_gradients else drawn

    # --- one score gradient per sample: every sample is a client with a batch of one, and a row of scores of its own

    def _each_sample(self, rows: Tensor) -> Tensor:
        """[K, m] -> [K·B, m]."""
        return rows.repeat_interleave(self.rows.batches.shape[2], 0)

    def _private(self, gradients: Tensor) -> Tensor:
        """The noised mean [K, P] of the samples' clipped gradients [K·B, P] (what comes down has the 1/B in it)."""
        r, keys = self.world.recipe, fold(self._keys(Stream.NOISE), 2)  # 0 and 1 are the smashed data's
        batch = self.rows.batches.shape[2]
        own = (gradients * batch).reshape(-1, batch, gradients.shape[1])
        return noised_mean(own, r.score_gradient_clip, r.score_gradient_noise, keys)

    def answer(self, features: Tensor, places: list[int] | None) -> tuple[Tensor, Tensor]:
        """The U-shape's middle: the head and the loss are here.

        features [a, B, ...] of the clients at `places` (None: all); returns dL/dfeatures as the mean over each
        client's own batch, and each client's loss [a]. The labels never leave.
        """
        w = self.world
        chosen = slice(None) if places is None else places
        head = self._plain[chosen, self.view.bottom :].detach().requires_grad_()
        inputs = features.detach().requires_grad_()
        y = w.y[self._batch[chosen]]

        def one(views: dict[str, Tensor], f: Tensor) -> Tensor:
            out: Tensor = functional_call(w.model, views, (f, w.model.depth))
            return out

        with w.precision():
            logits = w.over_clients(one, (w.layout.head(head), inputs), self.vectorised).to(w.dtype)
        smoothing = w.recipe.label_smoothing
        each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none", label_smoothing=smoothing)
        losses = each.reshape(y.shape).mean(1)
        gradient, own = torch.autograd.grad(losses.sum(), (inputs, head))
        if places is None:
            self._head_gradient = own
        else:
            if self._head_gradient is None:
                self._head_gradient = torch.zeros_like(self._plain[:, self.view.bottom :])
            self._head_gradient[places] = own
        return gradient, losses.detach()

    def backward(self, gradient: Tensor) -> None:
        """Backpropagate dL/dq [K, B, ...] of the last forward pass and take one optimiser step."""
        backward_together([(self, gradient)])

    @property
    def leaves(self) -> list[Tensor]:
        """What the last forward pass can be differentiated by."""
        return [t for t in (self._masked, self._plain) if t.requires_grad and t.numel()]

    def outcomes(self, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What the last forward pass ended in, each with its derivative of the loss; empty: nothing to train."""
        if not self.leaves or not self._smashed.requires_grad:
            return []
        both = [(self._smashed, gradient)]
        if self._local_loss is not None:
            both.append((self._local_loss, torch.ones_like(self._local_loss)))
        return both

    def descend(self, gradients: Sequence[Tensor]) -> None:
        """One optimiser step, given the derivatives by `leaves`."""
        for leaf, grad in zip(self.leaves, gradients, strict=True):
            if leaf is self._masked:
                grad = self._private(grad) if self.world.noises_gradients else grad
                self.rows.masked_optimiser.step(self.rows.trained, grad, self.clock.lr_masked)
                self.world.method.project(self.rows.trained)
            else:
                self._step_plain(grad)

    def _step_plain(self, grad: Tensor) -> None:
        if self._head_gradient is not None:
            grad = torch.cat((grad[:, : self.view.bottom], self._head_gradient), 1)
        plain = self.rows.plain
        before = plain.clone()
        self.rows.plain_optimiser.step(plain, grad, self.clock.lr_plain)
        if not self.view.trains_all:  # weight decay must not move what is frozen
            plain.copy_(torch.where(self.view.trained, plain, before))

    # --- end of the round

    def finish(self) -> Finished:
        """Choose personal coordinates, draw the upload, write the clients' memories."""
        w, trained = self.world, self.rows.trained
        method = w.method
        participations = torch.tensor([self._participations(m) for m in self.memories])
        after = method.theta(trained)
        grown = self.personal
        if after is not None and self.before is not None:
            noise = None
            if w.recipe.personal_order == "random":
                keys = w.keys.client(Stream.UPLOAD, self.rows.ids, self.round, 1)
                noise = uniform(keys, after.shape[1], w.dtype)
            grown = method.grow_personal(self.before, after, self.personal, participations, self.layers, noise)
        drawn = self.upload_chance() if method.samples_masks else None
        noise_keys = w.keys.client(Stream.NOISE, self.rows.ids, self.round, -1)
        return Finished(
            method.upload(method.protect_update(self.start, trained, ~grown, noise_keys), drawn),
            ~grown,
            grown & ~self.personal,
            self.rows.plain[:, self.view.shared_places],
            [self._memory(i, grown[i], int(p)) for i, p in enumerate(participations)],
            None if after is None or not method.samples_masks else self._entropy(method.entropy(trained)),
            None if after is None or self.before is None else self._disagreement(self.before, after),
            None if after is None or not method.samples_masks else share_at_clip(trained, w.recipe.clip),
        )

    def upload_chance(self) -> Tensor:
        """The uniform numbers that uploads are drawn with: [K, P]."""
        return self.world.upload_chance(self.rows.ids, self.round, self.rows.trained.shape[1])

    def _participations(self, memory: Memory | None) -> int:
        before = 0 if memory is None else memory.participations
        r = self.world.recipe
        return before + (self.round >= personal_from(r) and not stays(r, self.round))

    def _memory(self, i: int, personal: Tensor, participations: int) -> Memory:
        indices = personal.nonzero().squeeze(1)
        optimiser: dict[str, Tensor] = {}
        if keeps_optimiser(self.world.recipe, self.round):
            for name, o in _optimisers(self.rows):
                optimiser |= {f"{name}.{k}": v[i].clone() for k, v in o.tensors().items()}
        plain = self.rows.plain[i, self.view.local_places] if len(self.view.local_places) else None
        return Memory(indices, self.rows.trained[i, indices], participations, plain, optimiser)

    def _entropy(self, bits: Tensor) -> Tensor:
        per_layer = [bits[:, s.offset : s.offset + s.size].mean(1) for s in self.layers]
        return torch.stack(per_layer, 1) if per_layer else bits

    def _disagreement(self, before: Tensor, after: Tensor) -> Tensor:
        """Of the coordinates each client still shared, the share that crossed 0.5; 0 where it shared none."""
        shared = ~self.personal
        return (disagree(before, after) & shared).sum(1) / shared.sum(1).clamp_min(1)


def backward_together(work: Sequence[tuple[Bottoms, Tensor]]) -> None:
    """`backward` of clients that went through shared blocks together: their graph is walked once."""
    ends = [(bottoms, bottoms.outcomes(gradient)) for bottoms, gradient in work]
    ends = [(bottoms, outcomes) for bottoms, outcomes in ends if outcomes]
    if not ends:
        return
    outputs, weights = zip(*(pair for _, outcomes in ends for pair in outcomes), strict=True)
    leaves = [leaf for bottoms, _ in ends for leaf in bottoms.leaves]
    found = iter(torch.autograd.grad(outputs, leaves, weights, materialize_grads=True))
    for bottoms, _ in ends:
        bottoms.descend(list(islice(found, len(bottoms.leaves))))


def _optimisers(rows: ClientRows) -> tuple[tuple[str, RowOptimiser], tuple[str, RowOptimiser]]:
    return ("masked", rows.masked_optimiser), ("plain", rows.plain_optimiser)
