"""Adaptive splitting (Algorithm 1, line 2): each client's depth from its memory and its FLOP budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pmsfl.engine.plan import round_steps
from pmsfl.errors import PmsflError
from pmsfl.models.inspect import cut_cost
from pmsfl.models.split import SplitModel
from pmsfl.recipe import Recipe
from pmsfl.recipe_files import nearest


@dataclass(frozen=True)
class Budget:
    """What a client can spend: memory for training, and FLOPs for one round's local work."""

    name: str
    megabytes: float
    gigaflops: float


# Rough classes, for planning: training memory an app may hold, and about a minute of sustained arithmetic.
DEVICE_CLASSES = {
    b.name: b
    for b in (
        Budget("sensor", 2.0, 2.0),
        Budget("watch", 32.0, 60.0),
        Budget("phone", 512.0, 3_000.0),
        Budget("laptop", 4_096.0, 60_000.0),
        Budget("server", 65_536.0, 6_000_000.0),
    )
}


def parse_budgets(spec: str) -> list[Budget]:
    """The budgets in 'watch,phone,64/20': classes by name, or MB/GFLOP pairs."""
    budgets = []
    for entry in (e.strip() for e in spec.split(",") if e.strip()):
        if entry in DEVICE_CLASSES:
            budgets.append(DEVICE_CLASSES[entry])
            continue
        try:
            megabytes, gigaflops = (float(part) for part in entry.split("/"))
        except ValueError:
            hint = nearest(entry, DEVICE_CLASSES)
            raise PmsflError(f"budgets: {entry!r} is neither MB/GFLOP nor a device class; {hint}") from None
        budgets.append(Budget(entry, megabytes, gigaflops))
    if not budgets:
        known = ", ".join(DEVICE_CLASSES)
        raise PmsflError(f"depths = 'auto' needs budgets: device classes ({known}) or MB/GFLOP pairs such as 64/20")
    return budgets


def depths_by_budget(
    recipe: Recipe, model: SplitModel, input_shape: tuple[int, ...], sizes: Sequence[int]
) -> tuple[int, ...]:
    """The deepest cut each client can afford; budgets are dealt over the clients in turn."""
    budgets = parse_budgets(recipe.budgets)
    deepest = model.depth - 1 if recipe.labels == "u-shape" else model.depth
    costs = [cut_cost(model, input_shape, d, recipe.batch) for d in range(1, deepest + 1)]
    depths = []
    for client, samples in enumerate(sizes):
        budget = budgets[client % len(budgets)]
        work = round_steps(recipe, samples) * recipe.batch
        fitting = [
            c.depth
            for c in costs
            if c.memory_bytes() <= budget.megabytes * 1e6 and c.flops_per_sample * work <= budget.gigaflops * 1e9
        ]
        if not fitting:
            least = costs[0]
            raise PmsflError(
                f"client {client} ({budget.name}: {budget.megabytes:g} MB, {budget.gigaflops:g} GFLOP a round) cannot "
                f"train even the first block: that takes {least.memory_bytes() / 1e6:.1f} MB and "
                f"{least.flops_per_sample * work / 1e9:.1f} GFLOP; raise its budget, or lower epochs or batch"
            )
        depths.append(max(fitting))
    return tuple(depths)
