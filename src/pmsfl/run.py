"""Play a recipe: rounds, evaluations, checkpoints, resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from pmsfl.data.federation import Federation
from pmsfl.engine.bank import Bank
from pmsfl.engine.channels import guaranteed
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.cost import client_costs
from pmsfl.engine.distributed import DistributedExecutor, check_shareable
from pmsfl.engine.evaluate import Evaluation, Evaluator, evaluate_when_due
from pmsfl.engine.health import warnings
from pmsfl.engine.memory_plan import ran_out
from pmsfl.engine.metrics import RoundMetrics, check_finite, over_turns
from pmsfl.engine.plan import round_of
from pmsfl.engine.processes import Processes, launched, own_device, together
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.settings import pick_device
from pmsfl.engine.spending import Spending
from pmsfl.engine.state import State
from pmsfl.engine.transcribe import Transcriber, check_recording
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.follow import Assignment, follow
from pmsfl.recipe import Recipe
from pmsfl.recipe_files import nearest
from pmsfl.rundir import RUNS, RunDirectory, differences, versions
from pmsfl.tensorfile import TensorFileError, read_tensors
from pmsfl.totals import Totals, metrics_line
from pmsfl.wire.ledger import Ledger


class Executor(Protocol):
    """Plays rounds."""

    name: str
    transcriber: Transcriber | None

    def round(self, state: State) -> tuple[State, RoundMetrics]:
        """One round."""
        ...


EXECUTORS: dict[str, type[CohortExecutor] | type[ReferenceExecutor]] = {
    "cohort": CohortExecutor,
    "reference": ReferenceExecutor,
}


class Interrupted(PmsflError):
    """Ctrl-C: the last complete round is on disk."""


@dataclass(frozen=True)
class Progress:
    """What a listener hears after every round."""

    round: int  # rounds completed
    rounds: int
    metrics: RoundMetrics
    evaluation: Evaluation | None
    bytes_total: int
    seconds: float  # since the run began, over all resumes
    samples_per_second: float


@dataclass
class Listener:
    """What a run tells while it goes; the default says nothing."""

    on_start: Callable[[World, State, RunDirectory], None] = lambda world, state, directory: None
    on_round: Callable[[Progress], None] = lambda progress: None
    on_note: Callable[[str], None] = lambda line: None


@dataclass
class Run:
    """A run directory with its recipe, its metrics and its result."""

    path: Path
    recipe: Recipe
    result: dict[str, Any] | None = None  # what `--json` prints; None until the run is complete
    device: str = "cpu"
    _world: World | None = field(default=None, repr=False)  # the one it was trained in

    @staticmethod
    def open(path: str | Path, device: str = "cpu") -> Run:
        """A run that is on disk."""
        directory = RunDirectory.open(Path(path))
        return Run(directory.path, directory.recipe(), directory.read_json("result.json"), device)

    @property
    def directory(self) -> RunDirectory:
        """Its files."""
        return RunDirectory(self.path)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per round."""
        return self.directory.metrics()

    @cached_property
    def world(self) -> World:
        """Data, model and keys of the run."""
        return self._world or World(self.recipe, pick_device(self.device))

    def state(self) -> State:
        """The state of the newest checkpoint."""
        bank = Bank.empty(self.world, self.directory.bank_file)
        found = self.directory.load_checkpoint(lambda tensors, _: State.from_tensors(self.world, tensors, bank))
        if found is None:
            raise PmsflError(f"{self.path} has no checkpoint yet")
        return found


def train(
    recipe: Recipe | str | Path = "demo",
    overrides: Iterable[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    executor: str = "cohort",
    device: str = "auto",
    listener: Listener | None = None,
    federation: Federation | None = None,
    **changes: Any,
) -> Run:
    """Train a recipe and return the finished Run; see `pmsfl.run`, which also writes its page."""
    listener = listener or Listener()
    if executor not in EXECUTORS:
        raise PmsflError(f"executor = {executor!r}: {nearest(executor, EXECUTORS)}")
    if launched() > 1 and executor != "cohort":
        raise PmsflError(f"executor = {executor!r} plays in one process: start it without torchrun")
    at = own_device(pick_device(device))
    with together(at) as processes, contextlib.ExitStack() as held:
        if processes.rank:
            assignment, world, result = follow(processes, at, federation)
            return Run(assignment.path, world.recipe, result, at.type, world)
        try:
            directory, resolved = _resolve(recipe, list(overrides), out, resume, changes)
            if processes.size > 1:
                check_shareable(resolved)
            world = World(resolved, at, federation)
            check_recording(world)
            directory = directory or RunDirectory.create(resolved, None if out is None else Path(out))
            held.enter_context(directory.locked())
            trainer = _Trainer(world, directory, executor, listener, processes)
        except BaseException:
            processes.tell(None)  # the others wait to hear what to play
            raise
        finished = directory.read_json("result.json") if trainer.state.round >= resolved.turns else None
        processes.tell(Assignment(directory.path, resolved.to_toml(), finished))
        if finished is not None:
            listener.on_note(f"{directory.path} is complete: nothing to resume")
            return Run(directory.path, resolved, finished, world.device.type, world)
        return trainer.play()


def _resolve(
    recipe: Recipe | str | Path, overrides: list[str], out: str | Path | None, resume: bool, changes: dict[str, Any]
) -> tuple[RunDirectory | None, Recipe]:
    """The recipe to play, and the directory to go on in, if there is one."""
    if resume:
        directory = _find_resumable(recipe, out, overrides, changes)
        return directory, directory.recipe()
    if not isinstance(recipe, Recipe):
        return None, Recipe.load(recipe, overrides, **changes)
    return None, recipe.overridden(overrides, **changes)


def _find_resumable(
    recipe: Recipe | str | Path, out: str | Path | None, overrides: list[str], changes: dict[str, Any]
) -> RunDirectory:
    if overrides or {k: v for k, v in changes.items() if v is not None and k != "method"}:
        raise PmsflError("a resumed run keeps its recipe: leave out -c, or start a new run")
    method = changes.get("method")
    if out is not None:
        directory = RunDirectory.open(Path(out))
        theirs = directory.recipe().method
        if method not in (None, theirs):
            raise PmsflError(f"{out} is a run of {theirs}, not of {method}: leave out -m, or start a new run")
        return directory
    name = recipe.name if isinstance(recipe, Recipe) else Path(recipe).stem
    found = []
    for path in RUNS.glob(f"{name}-*"):
        if not (path / "recipe.toml").exists() or (path / "result.json").exists():
            continue
        directory = RunDirectory.open(path)
        mine = directory.recipe()
        if mine.name == name and method in (None, mine.method):
            found.append((path.stat().st_mtime, directory))
    if not found:
        of = name if method is None else f"{name} with {method}"
        raise PmsflError(f"no unfinished run of {of} under {RUNS}/; name its directory with --out")
    return max(found, key=lambda pair: pair[0])[1]


class _Trainer:
    """One call of `run`."""

    def __init__(
        self, world: World, directory: RunDirectory, executor: str, listener: Listener, processes: Processes
    ) -> None:
        self.world, self.directory, self.listener, self.processes = world, directory, listener, processes
        self.recipe = world.recipe
        self.totals = Totals()
        self.state = State.initial(world, directory.bank_file)
        self.kept: dict[int, object] = {}  # round of a checkpoint -> handles of its clients' rows
        self._restore()
        self.executor: Executor
        if processes.size > 1:
            self.executor = DistributedExecutor(world, self.totals.ledger, processes, listener.on_note)
        else:
            self.executor = EXECUTORS[executor](world, self.totals.ledger, listener.on_note)
        if self.recipe.record:
            self.executor.transcriber = Transcriber(world, directory.transcript_folder, listener.on_note)
        self.evaluator = Evaluator(world, self.totals.ledger, processes)
        self.saved = self.state.round
        self.warned: set[str] = set()
        self.spending = Spending.of(world, self.state.round)
        self.promised = guaranteed(world)

    def _restore(self) -> None:
        federation = self.world.federation
        now = versions(self.world.device, federation.fingerprint())
        now["samples"] = federation.samples_fingerprint()
        then = self.directory.read_json("versions.json")
        if then is None:
            self.directory.write_json("versions.json", now)
        else:
            for line in differences(then, now):
                self.listener.on_note(line)
        bank = self.state.bank
        found = self.directory.load_checkpoint(
            lambda tensors, about: (State.from_tensors(self.world, tensors, bank), Totals.of(about)),
            self.listener.on_note,
        )
        if found is not None:
            self.state, self.totals = found
        if bank.is_durable:
            self._claim_rows(bank)
        self.directory.cut_metrics(self.rounds_done)

    @property
    def rounds_done(self) -> int:
        """Whole rounds so far: a run stops and saves between them only."""
        return round_of(self.recipe, self.state.round)

    def _claim_rows(self, bank: Bank) -> None:
        """Rows that older checkpoints refer to stay as they are, too."""
        for done, file in self.directory.checkpoints():
            with contextlib.suppress(TensorFileError):  # a damaged one has nothing to lose
                self.kept[done] = bank.claims(read_tensors(file)[0])

    def play(self) -> Run:
        """All rounds that are missing, then the result."""
        for line in (*self.world.federation.notes, *self.world.notes()):
            self.listener.on_note(line)
        if self.world.why_looped and self.executor.name != "reference":
            self.listener.on_note(f"clients run one by one: {self.world.why_looped}")
        self.listener.on_start(self.world, self.state, self.directory)
        if self.processes.size > 1:
            self.processes.tell_tensors(self.state.to_tensors(whole=True))
        try:
            while self.state.round < self.recipe.turns:
                self._round()
        except KeyboardInterrupt:
            self._save()
            raise Interrupted(f"interrupted {self._how_far}") from None
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            self._save()
            why = ". ".join(str(error).split(". ")[:3])  # torch goes on about every other process
            raise PmsflError(
                f"out of memory on {self.world.device.type} ({why}): make room, or start a run with a smaller batch, "
                f"cohort or width; stopped {self._how_far}"
            ) from error
        result = self._result()
        self.directory.write_json("result.json", result)
        self.processes.tell(result)
        return Run(self.directory.path, self.recipe, result, self.world.device.type, self.world)

    @property
    def _how_far(self) -> str:
        done = f"after round {self.rounds_done} of {self.recipe.rounds}"
        return f"{done}; go on with: pmsfl run --resume --out {self.directory.path}"

    def _round(self) -> None:
        before, began = self.totals.ledger.snapshot(), self.state.round
        try:
            self._play_round(before)
        except BaseException:  # whatever stopped it, its bytes must not be counted twice
            if self.state.round == began:
                self.totals.ledger.load(before.as_dict(), before.messages_as_dict())
            raise

    def _play_round(self, before: Ledger) -> None:
        began = time.perf_counter()
        state, spending, turns = self.state, self.spending, list[RoundMetrics]()
        for _ in range(self.recipe.merges):
            with self.directory.writing("bank.bin or a transcript"):
                state, turn = self.executor.round(state)
            check_finite(state, self.recipe)
            turns.append(turn)
            spending = spending.after(self.world, self.world.plan(state.round - 1))
        trained = time.perf_counter() - began
        done, metrics = round_of(self.recipe, state.round), over_turns(turns)
        evaluation = evaluate_when_due(self.evaluator, state)
        t = self.totals.after(done, trained, time.perf_counter() - began, evaluation)
        line = metrics_line(metrics, t.ledger.difference(before).as_dict())
        line |= {"seconds": round(t.seconds, 3)} | ({"evaluation": t.last} if evaluation is not None else {})
        line |= self._exposure(spending, evaluation is not None)
        self.directory.append_metrics(line)
        # From here on the round counts. A line without its checkpoint is cut off when the run resumes.
        self.totals, self.state, self.spending = t, state, spending
        if done == self.recipe.rounds or done % self.recipe.checkpoint_every == 0:
            self._save()
        self._warn(line)
        speed = metrics.samples / max(trained, 1e-9)
        self.listener.on_round(
            Progress(done, self.recipe.rounds, metrics, evaluation, t.ledger.total, t.seconds, speed)
        )

    def _save(self) -> None:
        if self.state.round == self.saved:
            return
        with self.directory.writing(self.directory.bank_file.name):
            self.state.bank.sync()
        self.directory.save_checkpoint(
            self.rounds_done, self.state.to_tensors(), self.totals.metadata(), self.recipe.keep_checkpoints
        )
        self.saved = self.state.round
        on_disk = {done for done, _ in self.directory.checkpoints()}
        kept = self.kept | {self.rounds_done: self.state.bank}
        self.kept = {done: rows for done, rows in kept.items() if done in on_disk}

    def _exposure(self, spending: Spending, evaluated: bool) -> dict[str, Any]:
        """How often records were seen so far and, with an evaluation, the ε that was spent."""
        seen = spending.observations(self.world)
        line: dict[str, Any] = {"observations": None if seen is None else {"mean": seen[0], "max": seen[1]}}
        if evaluated and self.promised:
            delta = self.recipe.dp_delta
            spent = {c.name: {"epsilon": c.most(spending, delta), "unit": c.unit} for c in self.promised}
            line["privacy"] = {"delta": delta, "channels": spent}
        return line

    def _warn(self, line: dict[str, Any]) -> None:
        """What is wrong with the masks: a line for each kind of trouble, when it first shows."""
        method = self.world.method
        for kind, text in warnings(self.recipe, method.personalises, line).items():
            if kind not in self.warned and method.trains == "scores":
                self.warned.add(kind)
                self.listener.on_note(f"round {line['round']}: {text}")

    def _recording(self) -> dict[str, Any] | None:
        """What compiling and capturing steps has cost in this process; None where they are played as they are."""
        recorder = getattr(self.executor, "recorder", None)
        return None if recorder is None else {k: round(v, 3) for k, v in asdict(recorder.counts).items()}

    def _result(self) -> dict[str, Any]:
        t, r, w = self.totals, self.recipe, self.world
        final = self.directory.metrics()[-1]
        costs = client_costs(w)
        return {
            "run": str(self.directory.path),
            "method": r.method,
            "recipe": r.name,
            "preset": r.preset,
            "executor": self.executor.name,
            "recording": self._recording(),
            "device": w.device.type,
            "seed": r.seed,
            "data": w.federation.name,
            "clients": w.federation.clients,
            "rounds": r.rounds,
            "accuracy": t.last["accuracy"],
            "accuracy_deviation": t.last["deviation"],
            "accuracy_best": t.best,
            "accuracy_weighted": t.last["accuracy_weighted"],
            "accuracy_global": t.last["accuracy_global"],
            "accuracy_local_global": t.last["accuracy_local_global"],
            "accuracy_by_mask": t.last.get("by_mask"),
            "seconds": round(t.seconds, 3),
            "seconds_training": round(t.seconds_training, 3),
            "mask_entropy": final["mask_entropy"],
            "disagree": final["disagree"],
            "at_clip": final["at_clip"],
            "observations": final["observations"],
            "privacy": final.get("privacy"),
            "client_flops": costs.flops_per_round,
            "client_memory": costs.memory_bytes,
            "bytes": t.ledger.as_dict(),
        }
