"""`pmsfl bench scale`: what a step costs as the cohort grows."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from pmsfl.bench.setting import Setting
from pmsfl.bench.step import STEPS, play_steps
from pmsfl.bench.synthetic import whole_cohort
from pmsfl.bench.timing import Times, peak_memory, reset_peak_memory, take_turns
from pmsfl.data.federation import Federation
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.wire.ledger import Ledger

COHORTS = (10, 20, 50, 100)


def parse_cohorts(text: str) -> tuple[int, ...]:
    """'10,20' → (10, 20), at least two of them, ascending."""
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or sizes[0] < 1:
        raise PmsflError(f"clients = {text!r}: write two or more different numbers of clients, like 10,20,50,100")
    return sizes


def measure_scale(setting: Setting, cohorts: Sequence[int] = COHORTS, steps: int = STEPS) -> dict[str, Any]:
    """Milliseconds per step and memory of every cohort, smallest first. One at a time: memory is not to be shared."""
    sizes = []
    found: dict[int, Times] = {}
    for k in cohorts:
        gc.collect()
        reset_peak_memory(setting.device)
        recipe, federation = whole_cohort(setting.recipe, k, steps)
        found[k] = _time_cohort(setting, recipe, federation, steps)
        sizes.append(
            {
                "clients": k,
                **found[k].as_dict("ms_step"),
                "ms_per_client": found[k].median / k,
                "memory_peak": peak_memory(setting.device),
                "seconds_warmup": found[k].seconds_warmup,
            }
        )
    first, last = cohorts[0], cohorts[-1]
    return (
        {"bench": "scale"}
        | setting.about()
        | {f"ratio_{last}_over_{first}": found[last].median / found[first].median}
        | {"data": federation.name, "steps_per_block": steps, "cohorts": sizes}
    )


def _time_cohort(setting: Setting, recipe: Recipe, federation: Federation, steps: int) -> Times:
    world = World(recipe, setting.device, federation)
    state, executor = State.initial(world), CohortExecutor(world, Ledger())
    return take_turns({"ours": lambda: play_steps(executor, state, steps)}, setting.repeats, steps)["ours"]
