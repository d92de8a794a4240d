"""A trained run's own messages: one more round is played from its newest checkpoint, and what is sent in it is kept.

They may be kept in a file, so that a run on one machine can be measured on another, which has the coder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.plan import round_of
from pmsfl.engine.settings import pick_device
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.run import Run
from pmsfl.tensorfile import read_tensors, write_tensors
from pmsfl.wire.codecs import Codec
from pmsfl.wire.ledger import Ledger

ROUNDS = 6  # of the demo, where no run is given: past the agreement, so that personal indices travel
KIND = "messages of one round"  # what such a file says that it holds


@dataclass(frozen=True)
class Sample:
    """What K clients of one depth send in a round, on the CPU."""

    theta: Tensor  # [P] as the clients received it
    bits: Tensor  # [K, P] bool: the masks that they drew last
    contributes: Tensor  # [K, P] bool: what of them goes up
    fresh: Tensor  # [K, P] bool: coordinates that became personal in this round
    smashed: Tensor  # [B, ...] of one client's last step
    gradient: Tensor  # [B, ...]


class Tapped(CohortExecutor):
    """Keeps what went over the cut in the last step, as it was before any codec."""

    def step(self, play: Any, active: dict[int, int]) -> None:
        self.seen: list[Tensor] = []
        super().step(play, active)

    def _over_wire(self, t: Tensor, codec: Codec) -> Tensor:
        self.seen.append(t.detach())
        return super()._over_wire(t, codec)


def messages_of(path: Path | None, device: str = "auto") -> tuple[Sample, dict[str, Any]]:
    """The messages of a run (of the demo, trained for it, without one; or of a kept file), and what they come from."""
    if path is not None and path.is_file():
        return load_messages(path)
    run = None if path is None else Run.open(path, device)
    world, state, source = _trained_demo(device) if run is None else _trained_run(run, device)
    if world.method.uploads != "bits":
        raise PmsflError(f"method = {world.recipe.method!r} uploads no mask bits: take a run of pm-sfl")
    if world.method.upload_masks > 1:
        raise PmsflError(
            f"upload_masks = {world.recipe.upload_masks}: codecs of masks are measured on single ones; take a run with "
            "upload_masks = 1"
        )
    r = world.recipe
    about = {
        "source": source,
        "recipe": r.name,
        "method": r.method,
        "model": r.model,
        "data": world.federation.name,
        "device": world.device.type,
        "round": round_of(r, state.round),
        "indices_in_run": {} if run is None else _in_the_run(run),
    }
    return take_sample(world, state), about


def keep_messages(file: Path, sample: Sample, about: dict[str, Any]) -> None:
    """Write messages to a file that `load_messages` reads."""
    tensors = {f.name: getattr(sample, f.name) for f in fields(Sample)}
    write_tensors(file, tensors, {"kind": KIND, "about": json.dumps(about)})


def load_messages(file: Path) -> tuple[Sample, dict[str, Any]]:
    """Messages that `keep_messages` wrote."""
    tensors, metadata = read_tensors(file)
    names = {f.name for f in fields(Sample)}
    if metadata.get("kind") != KIND or set(tensors) != names:
        raise PmsflError(f"{file} holds no messages: give a run's directory, or a file that --keep wrote")
    sample = Sample(**tensors)
    try:
        about = json.loads(metadata["about"])
    except (KeyError, ValueError):
        about = None
    if not isinstance(about, dict) or not _fits_together(sample):
        raise PmsflError(f"{file}: its messages do not fit together; write it anew with --keep")
    return sample, about


def _fits_together(s: Sample) -> bool:
    masks = (s.bits, s.contributes, s.fresh)
    floats = (s.theta, s.smashed, s.gradient)
    return (
        s.bits.ndim == 2
        and s.theta.shape == s.bits.shape[1:]
        and s.smashed.shape == s.gradient.shape
        and all(m.shape == s.bits.shape and m.dtype == torch.bool for m in masks)
        and all(f.is_floating_point() for f in floats)
    )


def take_sample(world: World, state: State) -> Sample:
    """Play the round after a state, and keep what its clients of the deepest cut send."""
    executor = Tapped(world, Ledger())
    play = executor.begin(state)
    for active in play.plan.active:
        executor.step(play, active)
    depth = max(play.groups)
    done = play.groups[depth].finish()
    kept = (play.starts[depth].shared, done.values > 0.5, done.contributes, done.fresh)
    return Sample(*(t.cpu().contiguous() for t in (*kept, executor.seen[0][0], executor.seen[-1][0])))


def _trained_run(run: Run, device: str) -> tuple[World, State, str]:
    recipe = run.recipe.replace(capture="off")  # tensors are looked at on their way
    run._world = World(recipe, pick_device(device))
    return run.world, run.state(), str(run.path)


def _trained_demo(device: str) -> tuple[World, State, str]:
    world = World(Recipe.load("demo", rounds=ROUNDS + 1, capture="off", agreement=0.0), pick_device(device))
    executor, state = CohortExecutor(world, Ledger()), State.initial(world)
    for _ in range(ROUNDS):
        state, _ = executor.round(state)
    return world, state, f"the demo after {ROUNDS} rounds, trained for this; give a RUN for a longer one"


def _in_the_run(run: Run) -> dict[str, float]:
    """What personal indices took of the mask's bytes over all rounds of a run, and in its last quarter."""
    lines = run.metrics
    parts = {"of_mask_in_run": lines, "of_mask_in_last_quarter": lines[-(len(lines) // 4) :]}
    out = {}
    for name, part in parts.items():
        masks = sum(line["bytes"].get("mask.up", 0) for line in part)
        if masks:
            out[name] = sum(line["bytes"].get("personal.up", 0) for line in part) / masks
    return out
