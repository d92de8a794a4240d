"""`pmsfl bench step`: one step of the whole cohort against an eager loop over the same clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from pmsfl.bench.baseline import ClientLoop, baseline_precision, check_comparable, fastest_kernels
from pmsfl.bench.flops import floor_of
from pmsfl.bench.profile import profile_steps
from pmsfl.bench.setting import Setting
from pmsfl.bench.synthetic import cohort_of, whole_cohort
from pmsfl.bench.timing import peak_memory, ratio, reset_peak_memory, seconds_of, take_turns
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.wire.ledger import Ledger

STEPS = 10  # in a block


def play_steps(executor: CohortExecutor, state: State, steps: int) -> float:
    """Seconds of the first steps of a round, the whole cohort at work: batches gathered and augmented, masks drawn,
    bottoms, top, optimisers. What begins the round is not in it (`bench round` has it)."""
    world, play = executor.world, executor.begin(state)
    assert steps <= min(play.plan.steps), "the federation was dealt too few samples"

    def go() -> None:
        for _ in range(steps):
            executor.step(play, play.plan.active[0])

    return seconds_of(go, world.device)


def measure_step(setting: Setting, profiled: bool = False, steps: int = STEPS) -> dict[str, Any]:
    """Ours and the loop in both its forms, taking turns."""
    clients = cohort_of(setting.recipe)
    recipe, federation = whole_cohort(setting.recipe, clients, steps)
    world = World(recipe, setting.device, federation)
    check_comparable(world)
    state, executor = State.initial(world), CohortExecutor(world, Ledger())

    peaks = []

    def ours() -> float:
        seconds = play_steps(executor, state, steps)
        peaks.append(peak_memory(setting.device))
        return seconds

    reset_peak_memory(setting.device)
    blocks = {
        "ours": ours,
        "sequential": _block(world, ClientLoop.sequential, steps),
        "union": _block(world, ClientLoop.union, steps),
    }
    times = take_turns(blocks, setting.repeats, steps)
    result: dict[str, Any] = {"bench": "step"} | setting.about() | {"clients": clients, "data": federation.name}
    result |= ratio(times["sequential"], times["ours"]) | ratio(times["union"], times["ours"], "ratio_union")
    result |= times["ours"].as_dict("ms_step") | times["sequential"].as_dict("ms_baseline")
    result |= times["union"].as_dict("ms_baseline_union")
    result |= floor_of(world).as_dict(times["ours"].median)
    result |= {
        "baseline_precision": baseline_precision(world),
        "steps_per_block": steps,
        "memory_peak": peaks[0],  # before there was any loop
        "seconds_warmup": {name: t.seconds_warmup for name, t in times.items()},
    }
    if profiled:
        result["profile"] = profile_steps(ours, steps, setting.device).as_dict()
    return result


def _block(world: World, step: Callable[[ClientLoop], Tensor], steps: int) -> Callable[[], float]:
    """Blocks of one form of the loop, which is built when it is its turn."""

    @cache
    def loop() -> ClientLoop:
        return ClientLoop(world)

    def play() -> None:
        for _ in range(steps):
            step(loop())

    def block() -> float:
        with fastest_kernels():
            return seconds_of(play, world.device)

    return block
