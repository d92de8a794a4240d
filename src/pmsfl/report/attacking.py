"""`pmsfl attack`: what a curious server could see of a run's images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pmsfl.privacy.attacks import BUDGETS, chosen_attacks
from pmsfl.privacy.cases import Case
from pmsfl.privacy.picture import grid, write_png
from pmsfl.privacy.recorded import as_recorded
from pmsfl.privacy.same_view import same_view
from pmsfl.privacy.suite import Outcome, Verdict, meaning, run_suite
from pmsfl.report.console import MISSING, UsageError, emit_json, human_seconds, note, number, say, table
from pmsfl.run import Run

SHOWN = 12  # images in a row of the picture


def attack(
    path: Path, names: str, images: int, observations: str, budget: str, compare: bool, device: str, as_json: bool
) -> None:
    """Run the suite on a finished run, print its table, write attacks.json and attacks.png.

    compare: on the bottom without its mask, too.
    """
    if images < 1:
        raise UsageError(f"--images {images}: take at least 1")
    chosen = chosen_attacks(names)
    run = Run.open(path, device)
    case = _case(run, images, observations)
    for line in case.notes:
        note(line)
    if not as_json:
        say(f"{case.view}\n{case.threat}\n")
    verdict = run_suite(case, chosen, BUDGETS[budget], lambda line: say(f"... {line}", sys.stderr), compare)
    picture, order = _draw(run, case, verdict)
    result = {
        "run": str(path),
        "observations": observations,
        "images": len(case.truth),
        "budget": budget,
        "device": run.world.device.type,
        **figures(verdict),
        "picture": str(picture),
        "picture_rows": order,
    }
    run.directory.write_json("attacks.json", result)
    if as_json:
        return emit_json(result)
    table("reconstructions, best first (SSIM: 1 is the image itself)", HEADERS, _rows(verdict))
    for o in verdict.attacks:
        if o.why_not is not None:
            say(f"not applicable: {o.name}: {o.why_not}")
    say(f"\n{meaning(verdict)}")
    say(f"picture: {picture}, from top to bottom: {', '.join(order)}")
    return say(f"figures: {run.path / 'attacks.json'}")


def _case(run: Run, images: int, observations: str) -> Case:
    if observations == "as-recorded":
        return as_recorded(run.world, run.directory.transcript_folder, images)
    return same_view(run.world, run.state(), images)


def figures(verdict: Verdict) -> dict[str, Any]:
    """The verdict for JSON: maximum, floor, unmasked reference, every attack."""
    best = verdict.best
    return {
        "max": None if best is None else round(best.score, 4),
        "max_attack": None if best is None else best.name,
        "floor": round(verdict.floor, 4),
        "unmasked": None if verdict.reference is None else round(verdict.reference, 4),
        "attacks": {o.name: {"role": o.role, **o.as_dict()} for o in verdict.tried},
        "unmasked_attacks": {o.name: o.as_dict() for o in verdict.unmasked if o.why_not is None},
        "not_applicable": {o.name: o.why_not for o in verdict.attacks if o.why_not is not None},
        "failed": verdict.failed,
        "meaning": meaning(verdict),
    }


HEADERS = ("", "attack", "SSIM", "matched", "PSNR", "time")


def _rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """Maximum first, then the unmasked reference, then everything in the order of its score."""
    best = verdict.best
    rows = [] if best is None else [_row("maximum", best)]
    reference = max((o for o in verdict.unmasked if o.why_not is None), key=lambda o: o.score, default=None)
    if reference is not None:
        rows.append(_row("without mask", reference))
    rows += [_row({"attack": ""}.get(o.role, o.role), o) for o in verdict.tried if o is not best]
    return rows


def _row(label: str, o: Outcome) -> tuple[str, ...]:
    took = human_seconds(o.seconds) if o.role != "floor" else MISSING
    return label, o.about, number(o.ssim, 3), number(o.ssim_matched, 3), number(o.psnr, 1), took


def _draw(run: Run, case: Case, verdict: Verdict) -> tuple[Path, list[str]]:
    """The picture's file and what its rows are, top to bottom."""
    shown = [o for o in (*verdict.unmasked, *verdict.attacks) if o.images is not None]
    rows = [case.truth[:SHOWN], *(o.images[:SHOWN] for o in shown if o.images is not None)]
    plain = len([o for o in verdict.unmasked if o.images is not None])
    order = ["the images", *(f"{o.name} without mask" if i < plain else o.name for i, o in enumerate(shown))]
    file = run.path / "attacks.png"
    with run.directory.writing(file.name):
        write_png(file, grid(rows), "rows: " + ", ".join(order))
    return file, order
