"""The server's half of a round: the top's step on the union of the clients' batches, and the merge."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.state import Memory, State, server_optimisers
from pmsfl.engine.world import World, learning_rate
from pmsfl.masks.aggregate import merge
from pmsfl.masks.compensate import compensate
from pmsfl.masks.random import Stream, fold, permutation, uniform
from pmsfl.models.context import ForwardContext, forward_context

Batches = dict[int, Tensor]  # depth -> [A, B, ...] of the clients cut there, shallow first


@dataclass
class Uploads:
    """What came up at the end of a round, in the order of the plan; zeros and False past a client's depth."""

    values: Tensor  # [K, P]
    contributes: Tensor  # [K, P]
    plain: Tensor  # [K, Q]


class Server:
    """The top through one round. It never changes the state it was given."""

    def __init__(self, world: World, state: State, plan: RoundPlan) -> None:
        self.world, self.state, self.plan = world, state, plan
        r = world.recipe
        self.p, self.q = world.masked_size(world.cut), world.plain_size(world.cut)
        self.frozen = world.frozen[self.p :]
        self.scores = world.server_masks()
        shared = state.shared[self.p :]
        self.masked = (world.method.start(shared) if self.scores else shared.clone()).unsqueeze(0)
        self.plain = state.plain[self.q :].clone().unsqueeze(0)
        self.masked_optimiser = copy.deepcopy(state.masked_optimiser)
        self.plain_optimiser = copy.deepcopy(state.plain_optimiser)
        if self.scores:  # scores start from the global θ each round, so their moments start anew too
            self.masked_optimiser = server_optimisers(world)[0]
        self.lr_plain = learning_rate(r.lr_server, r.lr_schedule, plan.round, r.rounds)
        self.lr_masked = self.lr_plain
        if self.scores:
            self.lr_masked = learning_rate(r.lr_score, r.score_schedule, plan.round, r.rounds)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=world.device)
        self.samples = 0

    # --- a step

    def step(self, step: int, smashed: Batches, labels: Batches) -> Batches:
        """One server step; dL/dq for every client, as the mean over its own batch (Eq. 4)."""
        if self.world.recipe.schedule == "parallel":
            return self._update(fold(self.world.keys.at(Stream.SERVER, self.plan.round), step), smashed, labels)
        return self._sequential(step, smashed, labels)

    def _sequential(self, step: int, smashed: Batches, labels: Batches) -> Batches:
        """One step per client batch, in a random order that is new every time."""
        places = [(d, i) for d, q in smashed.items() for i in range(len(q))]
        key = fold(self.world.keys.at(Stream.ORDER, self.plan.round), step)
        out = {d: torch.empty_like(q) for d, q in smashed.items()}
        for turn, at in enumerate(permutation(key, len(places)).tolist()):
            d, i = places[at]
            mask_key = fold(fold(self.world.keys.at(Stream.SERVER, self.plan.round), step), turn + 1)
            out[d][i] = self._update(mask_key, {d: smashed[d][i : i + 1]}, {d: labels[d][i : i + 1]})[d][0]
        return out

    def _update(self, key: Tensor, smashed: Batches, labels: Batches) -> Batches:
        w = self.world
        trains = not self.scores or w.method.trains == "scores"
        masked = self.masked.detach().requires_grad_(trains and self.masked.numel() > 0)
        plain = self.plain.detach().requires_grad_()
        inputs = {d: q.detach().requires_grad_() for d, q in smashed.items()}
        with forward_context(ForwardContext(dropout_key=fold(key, 1))):
            logits = self._forward(self.weights(masked, key), plain, inputs)
        y = torch.cat([labels[d].flatten() for d in smashed])
        loss = F.cross_entropy(logits, y)
        leaves = [t for t in (masked, plain) if t.requires_grad]
        grads = torch.autograd.grad(loss, [*leaves, *inputs.values()], materialize_grads=True)
        if masked.requires_grad:
            self.masked_optimiser.step(self.masked, grads[0], self.lr_masked)
            if self.scores:
                w.method.project(self.masked)
        self.plain_optimiser.step(self.plain, grads[len(leaves) - 1], self.lr_plain)
        self.loss_sum += loss.detach().double() * len(y)
        self.samples += len(y)
        clients = sum(len(q) for q in smashed.values())  # every batch is full: n_union / n_k
        return {d: g * clients for d, g in zip(inputs, grads[len(leaves) :], strict=True)}

    def weights(self, masked: Tensor, key: Tensor) -> Tensor:
        """The weights the server's blocks run with, [P − P_cut]."""
        if not self.scores:
            return masked[0]
        drawn = None
        if self.world.method.samples_masks:
            drawn = uniform(key, masked.shape[1], self.world.dtype).unsqueeze(0)
        return self.world.method.effective(masked, self.frozen, drawn)[0]

    def _forward(self, masked: Tensor, plain: Tensor, inputs: Batches) -> Tensor:
        w = self.world
        views = w.layout.top(masked, plain[0], w.cut)
        flat = {d: q.flatten(0, 1) for d, q in inputs.items()}
        first = min(flat)
        joins = {d: q for d, q in flat.items() if d != first}
        logits: Tensor = functional_call(w.model, views, (flat[first], first, None, joins))
        return logits

    # --- the end of the round

    def finish(self, uploads: Uploads, memories: dict[int, Memory]) -> State:
        """Merge what came up and return the next state."""
        w, state = self.world, self.state
        weights = self._weights()
        fresh_prior = self.plan.round % w.recipe.beta_reset == 0
        shared, counts = state.shared.clone(), None if fresh_prior else state.counts
        if w.method.uploads != "nothing":
            p = uploads.values.shape[1]
            if counts is not None:
                counts = (counts[0][:p], counts[1][:p])
            shared[:p], counts = w.method.merge(shared[:p], uploads.values, uploads.contributes, weights, counts)
        held = [w.masked_size(d) for d in self.plan.depths]
        shared = self._with_server(shared, self._server_shared(), held)
        return State(
            state.round + 1,
            shared,
            self._merge_plain(uploads.plain, weights),
            self.masked_optimiser,
            self.plain_optimiser,
            counts,
            state.bank | memories,
        )

    def _weights(self) -> Tensor:
        w = self.world
        sizes = [float(w.sizes[c]) if w.recipe.weighting == "samples" else 1.0 for c in self.plan.clients]
        return torch.tensor(sizes, dtype=w.dtype, device=w.device)

    def _server_shared(self) -> Tensor:
        """The server's blocks in the form the shared vector has: θ for scores, else as trained."""
        if not self.scores:
            return self.masked[0]
        theta = self.world.method.theta(self.masked[0])
        return self.masked[0] if theta is None else theta

    def _merge_plain(self, uploads: Tensor, weights: Tensor) -> Tensor:
        """Norms: the mean of those that hold them, damped like everything else."""
        w = self.world
        plain = self.state.plain.clone()
        if w.recipe.norms != "shared":
            return torch.cat((plain[: self.q], self.plain[0]))
        q = uploads.shape[1]
        sizes = torch.tensor([w.plain_size(d) for d in self.plan.depths], device=w.device)
        held = torch.arange(q, device=w.device) < sizes.unsqueeze(1)
        plain[:q], _ = merge(plain[:q], uploads, held, w.method.float_aggregator, weights)
        return self._with_server(plain, self.plain[0], [w.plain_size(d) for d in self.plan.depths])

    def _with_server(self, vector: Tensor, server: Tensor, held: list[int]) -> Tensor:
        """Put the server's part in: what no sampled client holds, and Eq. 9's share of what some hold.

        held: how many coordinates of the vector each sampled client holds.
        """
        w = self.world
        start = len(vector) - len(server)
        holders = torch.zeros(len(vector), device=w.device)
        for size in held:
            holders[:size] += 1
        clients, holders = vector[start:], holders[start:]
        if w.mixed and w.recipe.compensation and w.method.trains == "scores":
            mine = compensate(clients, server, holders, len(held))
        else:
            mine = torch.where(holders > 0, clients, server)
        return torch.cat((vector[:start], mine))
