"""Evaluation: a statistics pass over training data for the mask being evaluated, then every client's test set.

Accuracy is measured twice: each client with its own θ (personal coordinates laid over the global ones), and the
global model. Clients are vectorised in chunks; ragged sets are padded, and padding weighs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from pmsfl.engine.passes import Inputs, Passes
from pmsfl.engine.plan import evaluates_after
from pmsfl.engine.processes import Processes
from pmsfl.engine.state import Memory, State
from pmsfl.engine.statistics import Statistics
from pmsfl.engine.world import World
from pmsfl.masks.random import Stream, uniform
from pmsfl.models.norm import StaticBN
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction, Kind, length

ROWS_AT_ONCE = 2048  # samples in one launch; per client at most ROWS_PER_CLIENT of them
ROWS_PER_CLIENT = 128
MODES = ("sampled", "expected", "threshold")


Batch = tuple[Tensor, Tensor, bool]  # rows [K, B], which of them are real [K, B], and whether all are


@dataclass(frozen=True)
class Evaluation:
    """Accuracies in percent. Per client: NaN where a client has no test data."""

    per_client: np.ndarray  # [N], each client with its own θ
    per_client_global: np.ndarray  # [N], the global model on the same test sets
    accuracy: float  # unweighted mean of per_client
    accuracy_weighted: float
    accuracy_global: float  # the global model on the global test
    deviation: float  # of `accuracy` over the evaluated masks
    # what other ways to take the masks give: mode -> (accuracy, accuracy_global)
    by_mask: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def accuracy_local_global(self) -> float:
        """The global θ on the clients' own tests: what personalisation has to beat."""
        tested = self.per_client_global[~np.isnan(self.per_client_global)]
        return float(tested.mean()) if len(tested) else math.nan


@dataclass
class Job:
    """Clients to run together: their rows of weights, their depth, and the samples each takes."""

    clients: list[int]
    depth: int
    masked: Tensor  # [K, P_d] or [P_d] shared by all
    plain: Tensor  # [K, Q_d] or [Q_d]
    rows: list[Tensor]


class Evaluator:
    """Evaluates states of one run."""

    def __init__(self, world: World, ledger: Ledger | None = None, processes: Processes | None = None) -> None:
        """processes: those that share the evaluated masks among them; all must evaluate the same states."""
        self.world = world
        self.ledger = ledger
        self.processes = processes or Processes()
        self.passes = Passes(world)
        norms = [m for m in world.model.modules() if isinstance(m, StaticBN)]
        self.norms = [m for m in norms if not m.name.startswith("guard.")]  # no evaluation runs a guard
        self.mode = world.recipe.eval_mask
        self.global_test = torch.from_numpy(world.federation.global_test).to(world.device)
        self._test_parts = list(torch.split(self.global_test, ROWS_PER_CLIENT))
        self._prepared: dict[tuple[int, ...], tuple[list[Tensor], list[Batch]]] = {}

    @property
    def draws(self) -> int:
        """How many masks an evaluation averages over."""
        return self.world.recipe.eval_masks if self.mode == "sampled" and self.world.method.samples_masks else 1

    def _batches(self, rows: list[Tensor]) -> list[Batch]:
        """A job's rows in batches; the same in every evaluation, so they are kept (with the rows, which name them)."""
        key = tuple(id(r) for r in rows)
        if key not in self._prepared:
            batches = [(batch, present, bool(present.all())) for batch, present in _batches(rows)]
            self._prepared[key] = rows, batches
        return self._prepared[key][1]

    def evaluate_every_way(self, state: State) -> Evaluation:
        """`evaluate`, and what the other ways to take the masks give; those are in no ledger, as nobody needs them."""
        asked = self.evaluate(state)
        if not self.world.method.samples_masks:
            return asked
        chosen, ledger, self.ledger = self.mode, self.ledger, None
        found = {chosen: asked}
        try:
            for mode in MODES:
                if mode != chosen:
                    self.mode = mode
                    found[mode] = self.evaluate(state)
        finally:
            self.mode, self.ledger = chosen, ledger
        return replace(asked, by_mask={m: (found[m].accuracy, found[m].accuracy_global) for m in MODES})

    @torch.no_grad()
    def evaluate(self, state: State) -> Evaluation:
        """Every client and the global model, averaged over the evaluated masks."""
        n = self.world.federation.clients
        own, shared, overall = np.zeros((self.draws, n)), np.zeros((self.draws, n)), np.zeros(self.draws)
        personal = state.bank.personalised
        self._count_statistics(self.draws * (1 + personal))
        for draw in range(self.processes.rank, self.draws, self.processes.size):
            jobs = self.global_jobs(state, draw, self.world.train_rows)
            statistics = self.statistics(state, draw, jobs)
            shared[draw] = self._accuracies(
                state, draw, statistics, self.global_jobs(state, draw, self.world.test_rows)
            )
            overall[draw] = self._global_test(state, draw, statistics)
            own[draw] = shared[draw]
            if personal:
                jobs = self.client_jobs(state, draw, self.world.train_rows)
                statistics = self.statistics(state, draw, jobs)
                own[draw] = self._accuracies(
                    state, draw, statistics, self.client_jobs(state, draw, self.world.test_rows)
                )
        own, shared, overall = (self._whole(part) for part in (own, shared, overall))
        sizes = np.array([len(t) for t in self.world.test_rows], dtype=float)
        mean = own.mean(0)
        tested = sizes > 0
        return Evaluation(
            np.where(tested, mean, np.nan),
            np.where(tested, shared.mean(0), np.nan),
            float(mean[tested].mean()) if tested.any() else math.nan,
            float((mean * sizes).sum() / sizes.sum()) if tested.any() else math.nan,
            float(overall.mean()),
            float(own[:, tested].mean(1).std()) if tested.any() else math.nan,
        )

    def _whole(self, part: np.ndarray) -> np.ndarray:
        """All masks' figures, from those this process evaluated and zeros."""
        whole: np.ndarray = self.processes.total(torch.from_numpy(part)).numpy()
        return whole

    # --- who runs with what

    def weights(self, trained: Tensor, draw: int, mode: str | None = None) -> Tensor:
        """The weights that `trained` (any prefix of all blocks) is evaluated with. mode: other than the evaluation's.

        One draw of uniforms serves everybody: clients then differ where their θ differ and nowhere else, so
        that statistics summed over all of them fit the mask of each.
        """
        w = self.world
        drawn = uniform(w.keys.at(Stream.EVALUATION, draw), trained.shape[-1], w.dtype)
        return w.method.evaluation_weights(trained, w.frozen[: trained.shape[-1]], drawn, mode or self.mode)

    def top_weights(self, state: State, draw: int) -> Tensor:
        """The weights of the server's blocks: as trained, or under the global model's mask."""
        w = self.world
        p = w.masked_size(w.cut)
        if not w.server_masks():
            return state.shared[p:]
        how = w.recipe.top_mask  # masks without chance are the same when they are evaluated
        return self.weights(w.method.start(state.shared), draw, None if how == "sampled" else how)[p:]

    def client_weights(self, state: State, client: int, draw: int) -> tuple[Tensor, Tensor]:
        """One client's own bottom: weights [P_d] and norms [Q_d]. Without a memory it has the global θ."""
        w = self.world
        depth = w.depths[client]
        trained = w.method.start(w.sent(state.shared, depth))
        memory = state.bank.get(client)
        if memory is not None:
            trained[memory.indices] = memory.values
        return self.weights(trained, draw), self.bottom_plain(state, depth, memory)

    def bottom_plain(self, state: State, depth: int, memory: Memory | None = None) -> Tensor:
        """The plain parameters of a bottom [Q_d]: the global ones, or with what a client kept of its own."""
        view = self.world.plain_view(depth)
        local = None if memory is None else memory.plain
        return self.world.client_plain(state.plain[view.sent], depth, local)[: view.bottom]

    def client_jobs(self, state: State, draw: int, rows: list[Tensor]) -> Iterator[Job]:
        """Every client with its own bottom, in chunks of one depth."""
        for depth, chunk in self._chunks(rows):
            pairs = [self.client_weights(state, c, draw) for c in chunk]
            masked, plain = (torch.stack(parts) for parts in zip(*pairs, strict=True))
            yield Job(chunk, depth, masked, plain, [rows[c] for c in chunk])

    def global_jobs(self, state: State, draw: int, rows: list[Tensor]) -> Iterator[Job]:
        """Every client's data under the global bottom."""
        w = self.world
        for depth, chunk in self._chunks(rows):
            trained = w.method.start(w.sent(state.shared, depth))
            masked = self.weights(trained, draw)
            yield Job(chunk, depth, masked, self.bottom_plain(state, depth), [rows[c] for c in chunk])

    def _chunks(self, rows: list[Tensor]) -> Iterator[tuple[int, list[int]]]:
        size = ROWS_AT_ONCE // ROWS_PER_CLIENT
        for depth in sorted(set(self.world.depths)):
            mine = [c for c, d in enumerate(self.world.depths) if d == depth and len(rows[c])]
            for i in range(0, len(mine), size):
                yield depth, mine[i : i + size]

    # --- passes

    def statistics(self, state: State, draw: int, jobs: Iterator[Job], always: bool = False) -> Statistics:
        """Batch-norm statistics over all clients' training data, bottom and top, for this mask.

        always: also where evaluation takes those of the test batch, which no exported model can.
        """
        statistics = Statistics(self.world)
        if not self.norms or (self.world.recipe.statistics == "batch" and not always):
            return statistics
        self.world.model.train()
        top = self.top_weights(state, draw)
        for job in jobs:
            for batch in self._batches(job.rows):
                out = self.passes(job.depth, True, self._inputs(state, top, job, batch))
                below, above = self.passes.names[job.depth]
                statistics.add(below, out.bottom, job.clients)
                statistics.add(above, out.top, None)
        return statistics

    def _inputs(
        self, state: State, top: Tensor, job: Job, batch: Batch, statistics: Statistics | None = None
    ) -> Inputs:
        rows, present, full = batch
        return Inputs(
            job.masked,
            job.plain,
            top,
            state.plain[self.world.plain_size(self.world.cut) :],
            rows,
            None if full else present,
            {} if statistics is None else statistics.buffers(job.clients),
            {} if statistics is None else statistics.top(),
        )

    def logits(
        self, state: State, draw: int, statistics: Statistics, job: Job, x: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows [K, B], which of them count [K, B], and logits [K, B, classes], batch by batch.

        x: samples the job's rows point into, where they are not the federation's.
        """
        top = self.top_weights(state, draw)
        self.world.model.train(self.world.recipe.statistics == "batch")
        for batch in self._batches(job.rows):
            out = self.passes(job.depth, False, self._inputs(state, top, job, batch, statistics), x)
            yield batch[0], batch[1], out.logits.reshape(*batch[0].shape, -1)

    def _accuracies(self, state: State, draw: int, statistics: Statistics, jobs: Iterator[Job]) -> np.ndarray:
        """Percent right per client, 0 where it has no rows."""
        out = np.zeros(self.world.federation.clients)
        for job in jobs:
            right = torch.zeros(len(job.clients), dtype=torch.int64, device=self.world.device)
            for batch, present, logits in self.logits(state, draw, statistics, job):
                right += ((logits.argmax(-1) == self.world.y[batch]) & present).sum(1)
            for c, rows, r in zip(job.clients, job.rows, right.tolist(), strict=True):
                out[c] = 100.0 * r / len(rows)
        return out

    def _global_test(self, state: State, draw: int, statistics: Statistics) -> float:
        """Percent right of the global model on the global test; with mixed depths, the mean over the cuts."""
        w = self.world
        rows = self.global_test
        if not len(rows):
            return math.nan
        parts = self._test_parts
        scores = []
        for depth in sorted(set(w.depths)):
            masked = self.weights(w.method.start(w.sent(state.shared, depth)), draw)
            right = 0
            size = ROWS_AT_ONCE // ROWS_PER_CLIENT
            for i in range(0, len(parts), size):
                job = Job([], depth, masked, self.bottom_plain(state, depth), parts[i : i + size])
                for batch, present, logits in self.logits(state, draw, statistics, job):
                    right += int(((logits.argmax(-1) == w.y[batch]) & present).sum())
            scores.append(100.0 * right / len(rows))
        return sum(scores) / len(scores)

    def _block(self, norm: StaticBN) -> int:
        """The block a norm belongs to, from 0; the server's own are behind all of them."""
        part, number = norm.name.split(".")[:2]
        model = self.world.model
        return int(number) if part == "blocks" else model.cut_after - 1 if part == "narrow" else model.depth

    def _count_statistics(self, passes: int) -> None:
        """Sums go up and statistics come down, once per client and pass, whichever process makes the pass."""
        w = self.world
        if self.ledger is None or not self.norms or w.recipe.statistics == "batch":
            return
        for depth in sorted(set(w.depths)):
            held = [m for m in self.norms if self._block(m) < depth]
            size = (2 * sum(m.features for m in held) + len(held),)
            cost = length(Kind.STATISTICS, size, w.codec)
            clients = sum(d == depth and len(rows) > 0 for d, rows in zip(w.depths, w.train_rows, strict=True))
            for direction in (Direction.UP, Direction.DOWN):
                self.ledger.add(Kind.STATISTICS, direction, cost * clients * passes, clients * passes)


def evaluate_when_due(evaluator: Evaluator, state: State) -> Evaluation | None:
    """The evaluation after a state's rounds, None where the recipe wants none; the last one is made every way."""
    r = evaluator.world.recipe
    if state.round == r.turns:
        return evaluator.evaluate_every_way(state)
    return evaluator.evaluate(state) if evaluates_after(r, state.round) else None


def _batches(rows: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows [K, B] and which of them are real [K, B]; each client's rows in equal batches, as few as will do."""
    longest = max(len(r) for r in rows)
    passes = -(-longest // ROWS_PER_CLIENT)
    shares = [-(-len(r) // passes) for r in rows]
    width = max(shares)
    for i in range(passes):
        batch = rows[0].new_zeros(len(rows), width)
        present = torch.zeros(len(rows), width, dtype=torch.bool, device=batch.device)
        for j, (r, share) in enumerate(zip(rows, shares, strict=True)):
            part = r[i * share : (i + 1) * share]
            batch[j, : len(part)] = part
            present[j, : len(part)] = True
        yield batch, present
