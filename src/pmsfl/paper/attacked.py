"""The second half of a cell that is attacked: the suite on what its training left, kept beside the training's log.

attack-PLAN.json   maximum, floor, unmasked reference, every attack, and what the cut costs
attack-PLAN.npz    the first images: the originals, what the strongest attack made of them, the floor

An attack counts as long as its plan is the one that is asked for. Training and attack are kept apart: whichever is
there is not played again.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pmsfl.engine.protocol import Wire
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.models.inspect import cut_cost
from pmsfl.models.registry import make_model
from pmsfl.paper.logs import alone
from pmsfl.privacy.attacks import Budget, chosen_attacks
from pmsfl.privacy.same_view import same_view
from pmsfl.privacy.suite import Verdict, run_suite
from pmsfl.recipe import Recipe
from pmsfl.report.attacking import figures
from pmsfl.run import Run
from pmsfl.rundir import RunDirectory, write_whole
from pmsfl.wire.codecs import Codec
from pmsfl.wire.messages import Kind, length

KEPT = 8  # images of each kind in a log


@dataclass(frozen=True)
class AttackPlan:
    """How hard a cell is attacked. name: in the names of its files; attacks: as `pmsfl attack --attacks` has them;
    compare: on the bottom without its mask, too."""

    name: str
    attacks: str
    images: int
    budget: Budget
    compare: bool = True

    def as_dict(self) -> dict[str, Any]:
        """What an attack's log must say to count."""
        return {
            "attacks": self.attacks,
            "images": self.images,
            "budget": asdict(self.budget),
            "compare": self.compare,
        }


def read_attack(folder: Path, plan: AttackPlan) -> dict[str, Any] | None:
    """What the attack on a cell reached; None where it was not played, or by another plan, or its log is damaged."""
    try:
        found = RunDirectory(folder).read_json(f"attack-{plan.name}.json")
    except PmsflError:
        return None
    whole = isinstance(found, dict) and found.keys() >= {"plan", "max", "max_attack", "floor", "unmasked", "costs"}
    return found if found is not None and whole and found["plan"] == plan.as_dict() else None


def read_pictures(folder: Path, plan: AttackPlan) -> dict[str, np.ndarray] | None:
    """Images [n, C, H, W] in [0, 1]: `truth`, `best` and `floor`; None where they are gone."""
    try:
        with np.load(folder / f"attack-{plan.name}.npz", allow_pickle=False) as file:
            return {k: file[k].astype(np.float32) / 255.0 for k in ("truth", "best", "floor")}
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def attackable(run: Path | None) -> bool:
    """Is the run there, trained to its end, with a checkpoint?"""
    return run is not None and (run / "result.json").exists() and bool(RunDirectory(run).checkpoints())


def attack_run(
    run: Path, folder: Path, plan: AttackPlan, plain: Recipe, device: str, tell: Callable[[str], None]
) -> None:
    """Play the suite on a finished run and keep what it reached in the log `folder`.

    plain: the recipe of the same row without stages at the cut, what costs are compared with.
    """
    began, opened = time.perf_counter(), Run.open(run, device)
    case = same_view(opened.world, opened.state(), plan.images)
    verdict = run_suite(case, chosen_attacks(plan.attacks), plan.budget, tell, plan.compare)
    if verdict.failed:
        raise PmsflError(f"{', '.join(verdict.failed)} broke off (see above): a maximum without them is none")
    result = {
        "plan": plan.as_dict(),
        "date": datetime.now(UTC).date().isoformat(),
        "device": opened.world.device.type,
        "seconds": round(time.perf_counter() - began, 2),
        "victims": f"{len(case.truth)} images; {case.view.origin}",
        **figures(verdict),
        "costs": cut_costs(opened.world, plain),
    }
    pictures = _pictures(verdict, case.truth)
    with alone(folder.parents[2]):
        (folder / f"attack-{plan.name}.npz").write_bytes(pictures)
        write_whole(folder / f"attack-{plan.name}.json", json.dumps(result, indent=1) + "\n")  # last: now it counts


def _pictures(verdict: Verdict, truth: Tensor) -> bytes:
    floor = max((o for o in verdict.tried if o.role == "floor"), key=lambda o: o.score)
    if verdict.best is None or verdict.best.images is None or floor.images is None:
        raise PmsflError("no attack could be tried: name more of them")
    kept = {"truth": truth, "best": verdict.best.images, "floor": floor.images}
    file = io.BytesIO()
    arrays: dict[str, Any] = {k: _bytes(v[:KEPT]) for k, v in kept.items()}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _bytes(images: Tensor) -> np.ndarray:
    return np.asarray((images.detach().float().cpu().clamp(0.0, 1.0) * 255.0).round().byte().numpy())


def cut_costs(world: World, plain: Recipe) -> dict[str, int]:
    """A client's FLOPs per sample and the bytes of one step across the cut, both ways; and both of `plain`, which
    has no stages, with fp32 on the wire."""
    r, shape = world.recipe, world.input_shape
    depth, bare = max(world.depths), make_model(plain, shape, world.federation.classes)
    own = cut_cost(world.model, shape, depth, 2)
    theirs = cut_cost(bare, shape, int(plain.depths), 2)
    step = Wire(world).step_bytes((r.batch, *own.smashed_shape))
    wide = (plain.batch, *theirs.smashed_shape)
    return {
        "client_flops": own.flops_per_sample,
        "client_flops_plain": theirs.flops_per_sample,
        "cut_bytes": step[Kind.SMASHED] + step[Kind.GRADIENT],
        "cut_bytes_plain": length(Kind.SMASHED, wide, Codec.FP32) + length(Kind.GRADIENT, wide, Codec.FP32),
    }
