"""`pmsfl run`: train and say what came of it, or say what it would cost."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from pmsfl.engine.cost import Estimate, estimate
from pmsfl.engine.distributed import executor_title
from pmsfl.engine.processes import launched, leads
from pmsfl.engine.settings import pick_device
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.report.console import (
    UsageError,
    byte_rows,
    count,
    emit_json,
    human,
    human_bytes,
    human_seconds,
    note,
    number,
    pairs,
    percent,
    say,
    shape,
    table,
)
from pmsfl.report.listing import aggregation, evaluations, privacy_line
from pmsfl.report.progress import Watcher, depth_line, memory_line
from pmsfl.run import Run, train


@dataclass(frozen=True)
class Choice:
    """What to train and where."""

    recipe: str
    changes: tuple[str, ...]
    method: str | None
    device: str
    threads: int | None

    def apply_threads(self) -> None:
        """Set torch's threads, where asked to."""
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"--threads {self.threads}: take at least 1")
        if self.threads is not None:
            torch.set_num_threads(self.threads)


def play(choice: Choice, out: Path | None, resume: bool, executor: str, dry: bool, as_json: bool) -> None:
    """Train, or only say what it would cost."""
    choice.apply_threads()
    if not leads():
        follow_along(choice, executor, dry)
    elif dry:
        dry_run(choice, resume, as_json)
    else:
        train_and_tell(choice, out, resume, executor, as_json)


# --- training


def follow_along(choice: Choice, executor: str, dry: bool) -> None:
    """A process that torchrun started beside the first: its share of the work, without a word."""
    if not dry:
        train(choice.recipe, executor=executor, device=choice.device)


def train_and_tell(choice: Choice, out: Path | None, resume: bool, executor: str, as_json: bool) -> None:
    """Train, with progress and a result for people; with as_json they go to stderr and JSON to stdout."""
    stream = sys.stderr if as_json else sys.stdout
    with Watcher(stream, executor_title(executor, launched())) as watcher:
        done = train(
            choice.recipe,
            choice.changes,
            out=out,
            resume=resume,
            executor=executor,
            device=choice.device,
            listener=watcher.listener(),
            method=choice.method,
        )
    show_result(done, stream)
    write_report(done, stream)
    if as_json:
        emit_json(done.result)


def write_report(done: Run, stream: TextIO | None) -> None:
    """The run as a page to look at; a run that is trained does not fail because its page cannot be written."""
    from pmsfl.report.page import write_page

    try:
        say(f"report: {write_page(done)}", stream)
    except (OSError, PmsflError) as e:
        note(f"no report: {e}")


def rewrite_report(path: Path) -> None:
    """`pmsfl report`: write the page of a run, finished or not, again."""
    from pmsfl.report.page import write_page

    say(f"report: {write_page(Run.open(path))}")


def _other_masks(done: Run) -> str | None:
    """The accuracy with masks taken in the ways the recipe did not ask for."""
    ways = (done.result or {}).get("accuracy_by_mask") or {}
    others = [f"{mode} {percent(found['accuracy'])}" for mode, found in ways.items() if mode != done.recipe.eval_mask]
    return ", ".join(others) or None


def show_result(done: Run, stream: TextIO | None) -> None:
    """What a finished run reached and what it cost."""
    result: dict[str, Any] = done.result or {}
    evaluated = evaluations(done.metrics)
    deviation = evaluated[-1]["evaluation"]["deviation"] if evaluated else None
    entropy = result["mask_entropy"]
    say("", stream)
    items = [
        ("accuracy", f"{percent(result['accuracy'], deviation)}  (mean of clients ± sd over masks)"),
        ("weighted", f"{percent(result['accuracy_weighted'])}  (clients weighted by test samples)"),
        ("global model", f"{percent(result['accuracy_global'])}  (on the global test)"),
        ("global θ", f"{percent(result['accuracy_local_global'])}  (on the clients' own tests)"),
        ("other masks", _other_masks(done)),
        ("mask entropy", None if entropy is None else f"{number(entropy, 3)} bit"),
        ("disagree", None if result["disagree"] is None else number(result["disagree"], 3)),
        ("privacy", privacy_line(done.metrics)),
        ("time", human_seconds(result["seconds"])),
        ("directory", result["run"]),
    ]
    pairs("result", items, stream)
    say("", stream)
    table("bytes on the wire", ("message", "up", "down", "both"), byte_rows(result["bytes"]), stream)
    say(f"look closer with: pmsfl show {result['run']}", stream)


# --- cost


def dry_run(choice: Choice, resume: bool, as_json: bool) -> None:
    """Plan every round, time a few steps, train nothing."""
    if resume:
        raise UsageError("--dry-run plans a new run; leave out --resume")
    recipe = Recipe.load(choice.recipe, choice.changes, method=choice.method)
    world = World(recipe, pick_device(choice.device))
    for line in (*world.federation.notes, *world.notes()):
        note(line)
    found = estimate(world)
    if as_json:
        emit_json(estimate_as_dict(world, found))
    else:
        show_estimate(world, found)


def depth_costs(world: World, found: Estimate) -> list[dict[str, Any]]:
    """What each cut in use costs a client."""
    element = 8 if world.recipe.dtype == "float64" else 4
    return [
        {
            "depth": depth,
            "clients": world.depths.count(depth),
            "masked": cost.masked,
            "plain": cost.plain,
            "smashed_shape": cost.smashed_shape,
            "flops_per_sample": cost.flops_per_sample,
            "memory": cost.memory_bytes(element),
        }
        for depth, cost in found.costs.per_depth.items()
    ]


def estimate_as_dict(world: World, found: Estimate) -> dict[str, Any]:
    """The estimate in plain types; what was not measured is None."""
    r, measured = world.recipe, found.measured
    return {
        "recipe": r.name,
        "method": r.method,
        "preset": r.preset,
        "aggregate": r.aggregate,
        "damping": r.damping if r.aggregate == "damped" else None,
        "rounds": r.rounds,
        "clients": world.federation.clients,
        "device": world.device.type,
        "bytes": found.bytes_planned,
        "bytes_bounded": found.bytes_bounded,
        "memory": measured and measured.memory_bytes,
        "memory_plan": {
            "device": found.memory.device,
            "host": found.memory.host,
            "bank": found.memory.bank,
            "bank_file": found.memory.bank_file,
            "free": found.memory.free,
            "fits": found.memory.fits,
        },
        "client_memory": found.costs.memory_bytes,
        "client_flops": found.costs.flops_per_round,
        "depths": depth_costs(world, found),
        "seconds_per_step": measured and measured.seconds_per_step,
        "steps": found.steps_total,
        "seconds_training": measured and measured.seconds_training,
        "seconds_evaluation": measured and measured.seconds_evaluation,
        "seconds": measured and measured.seconds_total,
    }


def show_estimate(world: World, found: Estimate) -> None:
    """The estimate as tables."""
    r = world.recipe
    items = [
        ("recipe", f"{r.name}, {r.rounds} rounds, method {r.method}, preset {r.preset}"),
        ("aggregate", aggregation(r)),
        ("clients", f"{world.federation.clients}, {len(world.plan(0).clients)} per round"),
        ("depth", depth_line(world.depths)),
        ("device", world.device.type),
        ("memory", memory_line(found.memory, world.device.type)),
        ("client", f"{human_bytes(found.costs.memory_bytes)} at most, {_flops(found.costs.flops_per_round)} a round"),
        *_measured_lines(found),
    ]
    pairs("a dry run: nothing is trained", items)
    say()
    headers = ("depth", "clients", "masked", "other", "smashed", "FLOPs/sample", "memory")
    rows = []
    for c in depth_costs(world, found):
        sizes = (count(c["masked"]), count(c["plain"]), shape(c["smashed_shape"]))
        rows.append((c["depth"], c["clients"], *sizes, _flops(c["flops_per_sample"]), human_bytes(c["memory"])))
    table("a client, by depth of its cut", headers, rows)
    title = "planned bytes (without personal indices and evaluations)"
    table(title, ("message", "up", "down", "both"), byte_rows(found.bytes_planned))
    if found.bytes_bounded:
        say(f"about {' and '.join(found.bytes_bounded)}: entropy-coded, so what stands there is the most they can take")


def _measured_lines(found: Estimate) -> list[tuple[str, str]]:
    m = found.measured
    if m is None:
        return [("measured", f"nothing: {found.steps_total} steps that do not fit into memory were not tried")]
    whole = f"{human_seconds(m.seconds_training)} of training and {human_seconds(m.seconds_evaluation)} of evaluations"
    return [
        ("measured", f"{human_bytes(m.memory_bytes)} after a few steps and a part of an evaluation"),
        ("time", f"{human_seconds(m.seconds_per_step)} per step, {found.steps_total} steps"),
        ("in all", f"about {whole}"),
    ]


def _flops(value: float) -> str:
    return human(value, "FLOPs")
