"""The server's half of a round: the top's step on the union of the clients' batches, and the merge."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.rows import Clock, ServerRows
from pmsfl.engine.settings import learning_rate
from pmsfl.engine.state import Memory, State, server_optimisers
from pmsfl.engine.world import World
from pmsfl.masks.aggregate import merge
from pmsfl.masks.bernoulli import keep_mask
from pmsfl.masks.compensate import compensate
from pmsfl.masks.random import Stream, fold, permutation, uniform
from pmsfl.models.context import ForwardContext, forward_context

Batches = dict[int, Tensor]  # depth -> [A, B, ...] of the clients cut there, shallow first
Places = dict[int, list[int]] | None  # which clients of each depth group; None: all
# features of the clients at some places -> dL/dfeatures, and the sum of their losses
Answer = Callable[[Batches, Places], tuple[Batches, Tensor]]


@dataclass
class Uploads:
    """What came up at the end of a round, in the order of the plan; zeros and False past a client's depth."""

    values: Tensor  # [K, P]
    contributes: Tensor  # [K, P] bool
    plain: Tensor  # [K, Q]
    plain_held: Tensor  # [K, Q] bool

    @staticmethod
    def empty(world: World, clients: int) -> Uploads:
        """Nothing uploaded yet, for any depth in use."""
        floats = torch.zeros(clients, world.masked_size(max(world.depths)), dtype=world.dtype, device=world.device)
        plain = torch.zeros(clients, world.layout.plain_size, dtype=world.dtype, device=world.device)
        return Uploads(floats, floats.bool(), plain, plain.bool())


class Server:
    """The top through one round. It never changes the state it was given; a step moves `rows` alone."""

    def __init__(self, world: World, state: State, plan: RoundPlan, clock: Clock) -> None:
        self.world, self.state, self.plan, self.clock = world, state, plan, clock
        self.p, self.q = world.masked_size(world.cut), world.plain_size(world.cut)
        self.frozen = world.frozen[self.p :]
        self.scores = world.server_masks()
        self.samples = sum(plan.steps) * world.recipe.batch
        shared = state.shared[self.p :]
        masked = (world.method.start(shared) if self.scores else shared.clone()).unsqueeze(0)
        # scores start from the global θ each round, so their moments start anew too
        optimiser = server_optimisers(world)[0] if self.scores else copy.deepcopy(state.masked_optimiser)
        self.rows = ServerRows(
            masked,
            state.plain[self.q : world.server_plain_end].clone().unsqueeze(0),
            optimiser,
            copy.deepcopy(state.plain_optimiser),
            torch.zeros((), dtype=torch.float64, device=world.device),
            self._round_draw(masked),
        )

    def _round_draw(self, masked: Tensor) -> Tensor | None:
        """With one mask per round: what repeats its first mask in every step."""
        w = self.world
        if w.recipe.mask_per != "round" or not (self.scores and w.method.samples_masks):
            return None
        first = uniform(w.keys.at(Stream.SERVER, self.plan.round), masked.shape[1], w.dtype).unsqueeze(0)
        return keep_mask(w.method.forward_theta(masked), first)

    def on(self, rows: ServerRows, clock: Clock) -> Server:
        """The same step on other tensors."""
        other = copy.copy(self)
        other.rows, other.clock = rows, clock
        return other

    # --- a step

    def step(
        self, smashed: Batches, labels: Batches, answer: Answer | None = None, present: Batches | None = None
    ) -> Batches:
        """One server step; dL/dq for every client, as the mean over its own batch (Eq. 4).

        answer: asks the clients for dL/dfeatures where they hold the head (the U-shape).
        present: 1 for a client, 0 for one that only fills its place, per depth [A]; None: all are there.
        """
        key = self.world.keys.at(Stream.SERVER, self.clock.round, self.clock.step)
        if self.world.recipe.schedule == "sequential":
            return self._sequential(key, smashed, labels, answer)
        return self._update(key, smashed, labels, answer, None, present)

    def _sequential(self, key: Tensor, smashed: Batches, labels: Batches, answer: Answer | None) -> Batches:
        """One step per client batch, in a random order that is new every time."""
        places = [(d, i) for d, q in smashed.items() for i in range(len(q))]
        order = permutation(self.world.keys.at(Stream.ORDER, self.clock.round, self.clock.step), len(places))
        out = {d: torch.empty_like(q) for d, q in smashed.items()}
        for turn, at in enumerate(order.tolist()):
            d, i = places[at]
            one_q, one_y = {d: smashed[d][i : i + 1]}, {d: labels[d][i : i + 1]}
            out[d][i] = self._update(fold(key, turn + 1), one_q, one_y, answer, {d: [i]})[d][0]
        return out

    def _update(
        self,
        key: Tensor,
        smashed: Batches,
        labels: Batches,
        answer: Answer | None,
        places: Places,
        present: Batches | None = None,
    ) -> Batches:
        w, rows = self.world, self.rows
        trains = not self.scores or w.method.trains == "scores"
        masked = rows.masked.detach().requires_grad_(trains and rows.masked.numel() > 0)
        plain = rows.plain.detach().requires_grad_(rows.plain.numel() > 0)
        inputs = {d: q.detach().requires_grad_() for d, q in smashed.items()}
        there = [q.new_ones(q.shape[0], dtype=w.dtype) if present is None else present[d] for d, q in smashed.items()]
        count = torch.cat(there)
        weights = None if present is None else count.repeat_interleave(w.recipe.batch)
        with forward_context(self._context(weights, key)), w.precision():
            out = self._forward(self.weights(masked, key), plain, inputs)
        leaves = [t for t in (masked, plain) if t.requires_grad]
        clients = count.sum()  # every batch is full: n_union / n_k
        target, weight = self._objective(out, smashed, labels, answer, places, weights)
        grads = torch.autograd.grad(target, [*leaves, *inputs.values()], weight, materialize_grads=True)
        own, clients = self._totals(list(grads[: len(leaves)]), clients)
        share = self._rate_share(clients)
        for leaf, grad in zip(leaves, own, strict=True):
            if leaf is masked:
                rows.masked_optimiser.step(rows.masked, grad / clients, self.clock.lr_server_masked * share)
                if self.scores:
                    w.method.project(rows.masked)
            else:
                rows.plain_optimiser.step(rows.plain, grad / clients, self.clock.lr_server_plain * share)
        return dict(zip(inputs, grads[len(leaves) :], strict=True))

    def _rate_share(self, clients: Tensor) -> Tensor | float:
        """What of the learning rate a step takes. The last steps of a round see the largest clients alone: at the full
        rate the top would lean towards whoever came last."""
        rule = self.world.recipe.union_rate
        if rule == "constant":
            return 1.0
        share = clients.double() / self.world.cohort
        return share.sqrt() if rule == "sqrt" else share

    def _context(self, weights: Tensor | None, key: Tensor) -> ForwardContext:
        return ForwardContext(weights, dropout_key=fold(key, 1), batch=self.world.recipe.batch)

    def _totals(self, gradients: list[Tensor], clients: Tensor) -> tuple[list[Tensor], Tensor]:
        """The top's gradients and the number of clients over the whole union: these, unless others have a part."""
        return gradients, clients

    def _objective(
        self,
        out: Tensor,
        smashed: Batches,
        labels: Batches,
        answer: Answer | None,
        places: Places,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """What to differentiate, and with which weight: the sum of the clients' mean losses, or their answer.

        It is the mean over the union times the number of clients, so what comes back to a client is the mean over
        its own batch without a further rounding.
        """
        batch = self.world.recipe.batch
        if answer is None:
            flat = torch.cat([labels[d].flatten() for d in smashed])
            smoothing = self.world.recipe.label_smoothing
            losses = F.cross_entropy(out.to(self.world.dtype), flat, reduction="none", label_smoothing=smoothing)
            loss = (losses if weights is None else losses * weights).sum()
            self.rows.loss_sum.add_(loss.detach())
            return loss / batch, None
        parts = torch.split(out.detach(), [q.shape[0] * batch for q in smashed.values()])
        features = {d: f.reshape(-1, batch, *f.shape[1:]) for d, f in zip(smashed, parts, strict=True)}
        gradients, losses = answer(features, places)
        self.rows.loss_sum.add_(losses * batch)
        gradient = torch.cat([gradients[d].flatten(0, 1) for d in smashed])
        return out, gradient

    def weights(self, masked: Tensor, key: Tensor) -> Tensor:
        """The weights the server's blocks run with, [P − P_cut]."""
        method, how = self.world.method, self.world.recipe.top_mask
        if not self.scores:
            return masked[0]
        if not method.samples_masks:
            return method.effective(masked, self.frozen, None)[0]
        if how == "expected":
            return method.masked(self.frozen, method.forward_theta(masked[0]))
        if how == "threshold":
            return method.thresholded(masked[0], self.frozen)
        return method.effective(masked, self.frozen, self._uniform(key, masked))[0]

    def _uniform(self, key: Tensor, masked: Tensor) -> Tensor:
        """Uniforms of one forward pass [1, P − P_cut]."""
        if self.rows.round_draw is not None:
            return self.rows.round_draw
        return uniform(key, masked.shape[1], self.world.dtype).unsqueeze(0)

    def _forward(self, masked: Tensor, plain: Tensor, inputs: Batches) -> Tensor:
        """Logits of the union, or its features where the head is on the clients."""
        w = self.world
        flat = {d: q.flatten(0, 1) for d, q in inputs.items()}
        first = min(flat)
        joins = {d: q for d, q in flat.items() if d != first}
        views = (w.layout.trunk if w.u_shape else w.layout.top)(masked, plain[0], w.cut)
        last = w.model.depth if w.u_shape else None
        out: Tensor = functional_call(w.model, views, (flat[first], first, last, joins))
        return out

    # --- the end of the round

    def finish(self, uploads: Uploads, memories: dict[int, Memory]) -> State:
        """Merge what came up and return the next state."""
        w, state = self.world, self.state
        weights = self._weights()
        fresh_prior = self.plan.round % (w.recipe.beta_reset * w.recipe.merges) == 0
        shared, counts = state.shared.clone(), None if fresh_prior else state.counts
        if w.method.uploads != "nothing":
            p = uploads.values.shape[1]
            unsettled = learning_rate(1.0, "late", self.plan.round, w.recipe.turns, w.recipe.rest_from)
            shared[:p], counts = w.method.merge(
                shared[:p], uploads.values, uploads.contributes, weights, counts, unsettled
            )
        plain, _ = merge(state.plain, uploads.plain, uploads.plain_held, w.method.float_aggregator, weights)
        return State(
            state.round + 1,
            self._with_server(shared, self._server_shared(), self.p, self._holders()),
            self._with_server(plain, self.rows.plain[0], self.q, uploads.plain_held.sum(0)),
            copy.deepcopy(self.rows.masked_optimiser),  # the rows may serve the next round too
            copy.deepcopy(self.rows.plain_optimiser),
            counts,
            state.bank | memories,
        )

    def _holders(self) -> Tensor:
        """How many clients on time hold, and do not keep to themselves by design, each coordinate: [P]."""
        w = self.world
        holders = torch.zeros(len(w.frozen), device=w.device)
        if w.method.uploads != "nothing":
            for depth, on_time in zip(self.plan.depths, self.plan.on_time, strict=True):
                holders[: w.masked_size(depth)] += ~w.kept_from_start(depth) * on_time
        return holders

    def _with_server(self, vector: Tensor, server: Tensor, start: int, holders: Tensor) -> Tensor:
        """Put the server's part in: what no client shares, and Eq. 9's share of what some do."""
        w = self.world
        end = start + len(server)
        clients, held = vector[start:end], holders[start:end]
        scores = w.method.compensates and w.recipe.compensation
        if w.mixed and (scores or (w.method.trains == "weights" and w.recipe.merge == "all")):
            mine = compensate(clients, server, held, sum(self.plan.on_time))
        else:
            mine = torch.where(held > 0, clients, server)
        return torch.cat((vector[:start], mine, vector[end:]))

    def _weights(self) -> Tensor:
        w = self.world
        sizes = [float(w.sizes[c]) if w.recipe.weighting == "samples" else 1.0 for c in self.plan.clients]
        return torch.tensor(sizes, dtype=w.dtype, device=w.device)

    def _server_shared(self) -> Tensor:
        """The server's blocks in the form the shared vector has: θ for scores, else as trained."""
        masked = self.rows.masked[0]
        theta = self.world.method.theta(masked) if self.scores else None
        return masked if theta is None else theta
