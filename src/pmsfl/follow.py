"""A run in a process that is not the first: it plays the same rounds, writes nothing and says nothing.

The first process resolves the recipe, has the run directory and tells the others what to play, so that they need
neither its arguments nor its disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pmsfl.data.federation import Federation
from pmsfl.engine.distributed import DistributedExecutor
from pmsfl.engine.evaluate import Evaluator, evaluate_when_due
from pmsfl.engine.metrics import check_finite
from pmsfl.engine.processes import Processes
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.wire.ledger import Ledger


@dataclass(frozen=True)
class Assignment:
    """What the first process has set up. result: of a run that is complete already."""

    path: Path
    recipe: str  # as TOML
    result: dict[str, Any] | None


def follow(
    processes: Processes, device: torch.device, federation: Federation | None
) -> tuple[Assignment, World, dict[str, Any]]:
    """Play what the first process says, to the end: also the world it was played in, and the result."""
    assignment: Assignment | None = processes.tell()
    if assignment is None:
        raise PmsflError("the first process could not start the run; its own message says why")
    world = World(Recipe.from_toml(assignment.recipe, "recipe"), device, federation)
    if assignment.result is not None:
        return assignment, world, assignment.result
    _play(world, processes, State.from_tensors(world, processes.tell_tensors()))
    result: dict[str, Any] = processes.tell()
    return assignment, world, result


def _play(world: World, processes: Processes, state: State) -> None:
    ledger = Ledger()
    executor, evaluator = DistributedExecutor(world, ledger, processes), Evaluator(world, ledger, processes)
    while state.round < world.recipe.turns:
        state, _ = executor.round(state)
        check_finite(state, world.recipe)
        evaluate_when_due(evaluator, state)
