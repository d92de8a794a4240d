"""`pmsfl.run`: a run as its user expects it, page included."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pmsfl.data.federation import Federation
from pmsfl.engine.processes import leads
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.report.page import write_page
from pmsfl.run import Listener, Run, train


def run(
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
    """Train a recipe, write its report.html, and return the finished Run.

    recipe: a Recipe, a shipped recipe's name or a TOML file; overrides: `key=value` texts; changes: keys, as in
    `run("demo", method="splitfed", seed=1)`; a Recipe is resolved and keeps the rates of the method that it was
    loaded for, whatever `method` says. out: the run directory, a free one under runs/ by default.
    federation: your own, instead of what the recipe's `data` names. resume: go on with the run in `out`, or with
    the newest unfinished one of this recipe. executor: "cohort" or "reference"; device: "auto", "cpu" or "cuda".
    In a script that torchrun starts, its processes share the cohort; the first one alone writes and listens.
    """
    listener = listener or Listener()
    done = train(
        recipe,
        overrides,
        out=out,
        resume=resume,
        executor=executor,
        device=device,
        listener=listener,
        federation=federation,
        **changes,
    )
    if not leads():
        return done
    try:
        listener.on_note(f"report: {write_page(done)}")
    except (OSError, PmsflError) as e:  # a run that is trained does not fail because its page cannot be written
        listener.on_note(f"no report: {e}")
    return done
