"""What a run will cost before it is played: bytes, memory, FLOPs per depth, and time from a short probe."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.memory_plan import MemoryPlan, peak_process_bytes, plan_memory
from pmsfl.engine.plan import RoundPlan, round_steps
from pmsfl.engine.protocol import Wire, count
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.models.inspect import CutCost, cut_cost, smashed_shape
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction, Kind

PROBE_STEPS, PROBE_SECONDS = 5, 20.0  # whichever comes first: nobody waits minutes for an estimate


@dataclass(frozen=True)
class ClientCosts:
    """The mean client's FLOPs in one round it takes part in, and the largest client's memory."""

    flops_per_round: int
    memory_bytes: int
    per_depth: dict[int, CutCost]


@dataclass(frozen=True)
class Measured:
    """What a short probe found."""

    memory_bytes: int  # of the whole process, or on the GPU: the peak that the probe reached
    seconds_per_step: float
    seconds_training: float
    seconds_evaluation: float

    @property
    def seconds_total(self) -> float:
        """Training and evaluations."""
        return self.seconds_training + self.seconds_evaluation


@dataclass(frozen=True)
class Estimate:
    """What `--dry-run` prints. Personal indices (a few bits per coordinate, once) are not planned."""

    costs: ClientCosts
    bytes_planned: dict[str, int]
    bytes_bounded: list[str]  # which of them are upper bounds, as lengths will depend on the data
    memory: MemoryPlan
    steps_total: int
    measured: Measured | None  # None: the probe would not fit into memory


def client_costs(world: World) -> ClientCosts:
    """Costs of every cut in use."""
    batch = world.recipe.batch
    per_depth = {d: cut_cost(world.model, world.input_shape, d, batch) for d in sorted(set(world.depths))}
    element = torch.empty((), dtype=world.dtype).element_size()
    flops = []
    for size, depth in zip(world.sizes, world.depths, strict=True):
        if size:
            flops.append(round_steps(world.recipe, size) * batch * per_depth[depth].flops_per_sample)
    memory = max(c.memory_bytes(element) for c in per_depth.values())
    return ClientCosts(sum(flops) // max(len(flops), 1), memory, per_depth)


def planned_bytes(world: World, plans: list[RoundPlan], costs: ClientCosts) -> Ledger:
    """The ledger the plans will fill, but for personal indices and what they save, and for evaluations. What is
    entropy-coded depends on the data: it enters with the most it can take."""
    ledger, wire = Ledger(), Wire(world)
    batch = world.recipe.batch
    for plan in plans:
        for depth, steps in zip(plan.depths, plan.steps, strict=True):
            count(ledger, Direction.DOWN, wire.start_bytes(depth))
            step = wire.step_bytes((batch, *costs.per_depth[depth].smashed_shape))
            if world.u_shape:
                shape = (batch, *smashed_shape(world.model, world.input_shape, world.model.depth))
                ledger.add(Kind.FEATURES, Direction.DOWN, wire.feature_bytes(shape, up=False) * steps, steps)
                ledger.add(Kind.FEATURE_GRADIENT, Direction.UP, wire.feature_bytes(shape, up=True) * steps, steps)
            ledger.add(Kind.GRADIENT, Direction.DOWN, step.pop(Kind.GRADIENT) * steps, steps)
            for kind, size in step.items():
                ledger.add(kind, Direction.UP, size * steps, steps)
            shared = int((~world.kept_from_start(depth)).sum())
            count(ledger, Direction.UP, wire.upload_bytes(shared, wire.norms_size(depth)))
    return ledger


def estimate(world: World) -> Estimate:
    """Plan every round (they are all known in advance) and time a few steps of the first, where they fit."""
    memory = plan_memory(world)  # before the probe, which would count as what is there already
    plans = [world.plan(t) for t in range(world.recipe.turns)]
    costs = client_costs(world)
    return Estimate(
        costs,
        planned_bytes(world, plans, costs).as_dict(),
        Wire(world).bounded,
        memory,
        sum(max(p.steps) for p in plans),
        _measure(world, plans) if memory.fits else None,
    )


def _measure(world: World, plans: list[RoundPlan]) -> Measured:
    seconds = _probe(world)
    work = sum(sum(p.steps) for p in plans)  # client steps: a step with fewer clients is cheaper
    evaluation = _probe_evaluation(world)
    return Measured(_peak_memory(world), seconds, seconds * work / len(plans[0].clients), evaluation)


def _peak_memory(world: World) -> int:
    """What the probe needed: steps of the whole cohort, and a part of an evaluation."""
    if world.device.type == "cuda":
        return torch.cuda.max_memory_allocated(world.device)
    return peak_process_bytes()


@torch.no_grad()
def _probe_evaluation(world: World, rows_at_most: int = 512) -> float:
    """Seconds of all evaluations, from the speed of a forward pass over a few clients' data."""
    state, evaluator = State.initial(world), Evaluator(world)
    rows = [r[:128] if c < 4 else r[:0] for c, r in enumerate(world.train_rows)]
    timed = min(sum(len(r) for r in rows), rows_at_most)
    began = time.perf_counter()
    statistics = evaluator.statistics(state, 0, evaluator.global_jobs(state, 0, rows))
    for job in evaluator.global_jobs(state, 0, rows):
        for _ in evaluator.logits(state, 0, statistics, job):
            pass
    per_row = (time.perf_counter() - began) / max(2 * timed, 1)
    f, r = world.federation, world.recipe
    own = world.method.uploads == "nothing" or (world.method.personalises and r.personal_ratio > 0)
    tests = sum(len(t) for t in f.test)
    passes = (2 if own else 1) * (sum(f.sizes) + tests) + len(set(world.depths)) * len(f.global_test)
    times = -(-r.rounds // r.eval_every)
    return per_row * passes * evaluator.draws * times


def _probe(world: World) -> float:
    """Seconds per step with the whole cohort at work, the first one left out where there is time for another."""
    executor = CohortExecutor(world, Ledger())
    play = executor.begin(State.initial(world))
    times = list[float]()
    while len(times) < min(PROBE_STEPS, max(min(play.plan.steps), 1)) and sum(times) < PROBE_SECONDS:
        began = time.perf_counter()
        executor.step(play, play.plan.active[0])
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:] or times)
