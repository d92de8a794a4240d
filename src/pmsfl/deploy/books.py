"""A deployment's run directory: recipe, roster, metrics and checkpoints, in the files of an ordinary run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pmsfl.deploy.roster import Roster
from pmsfl.engine.evaluate import Evaluation
from pmsfl.engine.metrics import RoundMetrics, check_finite
from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.spending import Spending, Spent
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.recipe import Recipe
from pmsfl.rundir import ROSTER, RunDirectory
from pmsfl.totals import Totals, metrics_line
from pmsfl.wire.ledger import Ledger

STATUS = "status.json"


class Books:
    """Opens or begins a run, and writes down what counts."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.recipe = directory.recipe()
        self.totals = Totals()
        self.spending = Spending()
        self.saved = 0
        self.began = time.perf_counter()

    @staticmethod
    def open(path: Path, recipe: Recipe, sites: Sequence[str]) -> tuple[Books, Roster]:
        """The run at `path`, begun now if there is none."""
        if (path / "recipe.toml").exists():
            directory = RunDirectory.open(path)
        else:
            directory = RunDirectory.create(recipe, path)
        books = Books(directory)
        known = directory.read_json(ROSTER)
        roster = Roster(tuple(sites)) if known is None else Roster.of(known)
        return books, roster

    def save_roster(self, roster: Roster) -> None:
        """Who takes part is fixed from here on."""
        self.directory.write_json(ROSTER, roster.as_dict())

    def restore(self, world: World, note: Callable[[str], None]) -> State:
        """The state of the newest whole checkpoint, or the first one."""
        found = self.directory.load_checkpoint(
            lambda tensors, about: (State.from_tensors(world, tensors), Totals.of(about), _spent(about)), note
        )
        state = State.initial(world)
        if found is not None:
            state, self.totals, self.spending = found
        self.directory.cut_metrics(state.round)
        self.saved = state.round
        self.began = time.perf_counter()
        return state

    @property
    def oldest(self) -> int:
        """The oldest round that the run may have to go back to."""
        return min((r for r, _ in self.directory.checkpoints()), default=0)

    def shown(self, client: int, rows: int, times: int) -> None:
        """An evaluation has sent every training row of a client so many times."""
        before = self.spending.clients.get(client, Spent())
        more = Spent(own=times, squares=times, rows=rows * times, masks=times)
        self.spending = Spending({**self.spending.clients, client: before + more})

    def write_round(
        self,
        world: World,
        state: State,
        metrics: RoundMetrics,
        plan: RoundPlan,
        evaluation: Evaluation | None,
        before: Ledger,
        more: dict[str, Any],
    ) -> dict[str, Any]:
        """One round's line; returns it."""
        check_finite(state, self.recipe)
        now = time.perf_counter()
        seconds, self.began = now - self.began, now
        t = self.totals.after(state.round, seconds, seconds, evaluation)
        line = metrics_line(metrics, t.ledger.difference(before).as_dict()) | {"seconds": round(t.seconds, 3)}
        if evaluation is not None:
            line["evaluation"] = t.last
        self.spending = self.spending.after(world, plan)
        seen = self.spending.observations(world)
        line["observations"] = None if seen is None else {"mean": seen[0], "max": seen[1]}
        line |= more
        self.directory.append_metrics(line)
        self.totals = t
        return line

    def checkpoint(self, state: State) -> None:
        """The state on disk, unless it is there already."""
        if state.round == self.saved:
            return
        about = self.totals.metadata() | {"spent": {str(c): asdict(s) for c, s in self.spending.clients.items()}}
        self.directory.save_checkpoint(state.round, state.to_tensors(), about, self.recipe.keep_checkpoints)
        self.saved = state.round

    def write_status(self, content: dict[str, Any]) -> None:
        """What `pmsfl deploy status` reads. A disk that is full must not stop a round."""
        with contextlib.suppress(Exception):
            self.directory.write_json(STATUS, content)


def _spent(about: dict[str, Any]) -> Spending:
    """What had been shown to the server when a checkpoint was written."""
    return Spending({int(c): Spent(**s) for c, s in about["spent"].items()})
