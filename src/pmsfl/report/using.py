"""`pmsfl export` and `pmsfl predict`: a trained model leaves its run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pmsfl.export import export_run
from pmsfl.export import predict as classify
from pmsfl.report.console import emit_json, number, pairs, percent, say, table
from pmsfl.run import Run

SHOWN = 20  # predictions on the screen


def export(path: Path, client: int | None, out: Path | None) -> None:
    """Write the model and an example, and say where they are."""
    done = export_run(Run.open(path), client, out)
    items = [("model", done.model_file), ("example", done.example_file), ("holds", done.description)]
    pairs("exported", items)
    say(f"try it with: cd {done.example_file.parent} && python {done.example_file.name}")


def predict(path: Path, file: Path, client: int | None, out: Path | None, as_json: bool) -> None:
    """Classify the samples of a file."""
    found = classify(Run.open(path), file, client)
    if out is not None:
        with out.open("wb") as f:  # numpy would append .npz to a name without it
            np.savez(f, labels=found.labels, probabilities=found.probabilities)
    if as_json:
        content = {"labels": found.labels, "probabilities": found.probabilities, "accuracy": found.accuracy}
        return emit_json({"run": path, "file": file, "client": client, "out": out} | content)
    best = found.probabilities.max(1)
    rows = [(i, int(label), number(best[i])) for i, label in enumerate(found.labels[:SHOWN])]
    table("", ("sample", "label", "probability"), rows)
    if len(found.labels) > SHOWN:
        say(f"and {len(found.labels) - SHOWN} more")
    if found.accuracy is not None:
        say(f"accuracy: {percent(found.accuracy)} of {len(found.labels)} samples")
    return say(f"saved in {out}" if out is not None else "save all of them with: --out FILE.npz")
