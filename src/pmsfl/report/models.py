"""`pmsfl check-model`: a user's model under the magnifying glass."""

from __future__ import annotations

from math import prod
from typing import Any

from pmsfl.models.check import ModelReport, check_model
from pmsfl.report.console import UsageError, count, emit_json, human, human_bytes, pairs, say, shape, table

ELEMENT = 4  # bytes of a float32


def check(target: str, input_shape: str, classes: int, as_json: bool) -> None:
    """Check a model and print what was found; a model that cannot be used raises PmsflError."""
    if classes < 2:
        raise UsageError(f"--classes {classes}: take at least 2")
    sizes = parse_shape(input_shape)
    found = check_model(target, sizes, classes)
    if as_json:
        emit_json(as_dict(target, sizes, classes, found))
    else:
        _show(target, sizes, classes, found)


def parse_shape(text: str) -> tuple[int, ...]:
    """'3,32,32' → (3, 32, 32)."""
    try:
        sizes = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise UsageError(f"--input-shape {text!r}: write the shape of one sample, like 3,32,32")
    return sizes


def as_dict(target: str, sizes: tuple[int, ...], classes: int, found: ModelReport) -> dict[str, Any]:
    """The report in plain types."""
    return {
        "model": target,
        "input_shape": sizes,
        "classes": classes,
        "depth": found.depth,
        "masked": [{"name": n, "shape": s, "size": p} for n, s, p in found.masked],
        "plain_parameters": found.plain_parameters,
        "cuts": [
            {
                "depth": c.depth,
                "masked": c.masked,
                "plain": c.plain,
                "smashed_shape": c.smashed_shape,
                "smashed_bytes": prod(c.smashed_shape) * ELEMENT,
                "flops_per_sample": c.flops_per_sample,
                "memory": c.memory_bytes(ELEMENT),
            }
            for c in found.cuts
        ],
        "vectorised": found.vectorised,
        "reason": found.reason,
    }


def _show(target: str, sizes: tuple[int, ...], classes: int, found: ModelReport) -> None:
    masked = sum(size for _, _, size in found.masked)
    items = [
        ("model", f"{target} on {shape(sizes)}, {classes} classes"),
        ("masked", f"{count(masked)} weights in {len(found.masked)} layers"),
        ("not masked", f"{count(found.plain_parameters)} parameters (biases, norms, embeddings, head)"),
        ("cuts", f"after block 1 to {found.depth}"),
        ("clients", "run vectorised" if found.vectorised else f"run one by one: {found.reason}"),
    ]
    pairs("the model is usable", items)
    say()
    table("what is masked", ("weight", "shape", "coordinates"), [(n, shape(s), count(p)) for n, s, p in found.masked])
    headers = ("cut after", "masked", "other", "smashed", "bytes/sample", "FLOPs/sample", "client memory")
    rows = []
    for c in found.cuts:
        smashed = human_bytes(prod(c.smashed_shape) * ELEMENT)
        counts = (count(c.masked), count(c.plain), shape(c.smashed_shape), smashed)
        memory = human_bytes(c.memory_bytes(ELEMENT))
        rows.append((f"block {c.depth}", *counts, human(c.flops_per_sample, "FLOPs"), memory))
    table("where it can be cut, and what that costs a client (forward and backward, batches of 32)", headers, rows)
    if ":" in target:
        say(f"train it with: pmsfl run -c model={target}")
