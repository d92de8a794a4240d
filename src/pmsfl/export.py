"""Take a trained model out of a run: as a plain module's state, or as predictions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pmsfl.data.arrays import load_samples
from pmsfl.engine.evaluate import Evaluator, Job
from pmsfl.engine.plan import round_of
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.run import Run
from pmsfl.tensorfile import write_tensors

EXAMPLE = '''"""Load the exported model and classify one batch. Needs pmsfl for the model's definition only."""

import json
from pathlib import Path

import torch

from pmsfl.models.registry import make_model
from pmsfl.recipe import Recipe
from pmsfl.tensorfile import read_tensors  # or safetensors.torch.load_file: the layout is the same

tensors, metadata = read_tensors(Path({file!r}))
about = json.loads(metadata["pmsfl"])
keys = ("model", "width", "stem_padding", "norm", "depths", "cut_channels", "cut_pool", "cut_sort")
recipe = Recipe(**{{k: about[k] for k in keys}})
model = make_model(recipe, tuple(about["input_shape"]), about["classes"])
model.load_state_dict(tensors)
model.eval()

x = torch.zeros(1, *about["input_shape"])  # your samples; images on the 0..1 scale
mean, std = (torch.tensor(about[k]).reshape(about["along"]) for k in ("mean", "std"))
print(model((x - mean) / std).softmax(-1))
'''


@dataclass(frozen=True)
class Exported:
    """Where an export went."""

    model_file: Path
    example_file: Path
    description: str


@dataclass(frozen=True)
class Prediction:
    """labels [n], probabilities [n, C], and percent right where the file has labels."""

    labels: np.ndarray
    probabilities: np.ndarray
    accuracy: float | None


def _checked_client(world: World, client: int | None) -> int | None:
    if client is not None and not 0 <= client < world.federation.clients:
        raise PmsflError(f"client {client}: this run has clients 0 to {world.federation.clients - 1}")
    return client


def _bottom(evaluator: Evaluator, state: State, client: int | None, draw: int) -> tuple[int, Tensor, Tensor]:
    """Depth, weights and norms of a client's bottom, or of the global one at the deepest cut in use."""
    w = evaluator.world
    if client is not None:
        return (w.depths[client], *evaluator.client_weights(state, client, draw))
    depth = max(w.depths)
    trained = w.method.start(w.sent(state.shared, depth))
    return depth, evaluator.weights(trained, draw), evaluator.bottom_plain(state, depth)


@torch.no_grad()
def model_state(run: Run, client: int | None = None, draw: int = 0) -> dict[str, Tensor]:
    """A SplitModel's whole state: a client's bottom under one evaluated mask, the top, and their statistics."""
    return _whole_state(run.world, run.state(), client, draw)


def _whole_state(w: World, state: State, client: int | None, draw: int) -> dict[str, Tensor]:
    evaluator = Evaluator(w)
    depth, masked, plain = _bottom(evaluator, state, _checked_client(w, client), draw)
    top = evaluator.top_weights(state, draw)
    cut_p, cut_q = w.masked_size(w.cut), w.plain_size(w.cut)
    whole = w.layout.top(
        torch.cat((masked, top[w.masked_size(depth) - cut_p :])),
        torch.cat((plain, state.plain[cut_q:][w.plain_size(depth) - cut_q :])),
        0,
    )
    jobs = evaluator.global_jobs if client is None else evaluator.client_jobs
    statistics = evaluator.statistics(state, draw, jobs(state, draw, w.train_rows), always=True)
    buffers = statistics.buffers(None if client is None else [client])
    if statistics.per_client and client is not None:
        buffers = {name: value[0] for name, value in buffers.items()}
    above = {
        f"{name}.{part}"
        for name, _ in evaluator.passes.names.get(depth, ((), ()))[1]
        for part in ("running_mean", "running_var")
    }
    buffers |= {name: value for name, value in statistics.top().items() if name in above}
    kept = {n: v for n, v in (whole | buffers).items() if not n.startswith(("exits.", "guard."))}  # training aids only
    return {name: value.contiguous() for name, value in kept.items()}


def export_run(run: Run, client: int | None = None, out: Path | None = None) -> Exported:
    """Write model.safetensors and an example that loads it, into `out` or the run's own export folder."""
    w, r = run.world, run.recipe
    whose = "global" if client is None else f"client-{client}"
    folder = out or run.path / "export" / whose
    state = run.state()
    with torch.no_grad():
        tensors = _whole_state(w, state, client, draw=0)
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "model": r.model,
        "width": r.width,
        "stem_padding": r.stem_padding,
        "norm": r.norm,
        "depths": r.depths,
        "cut_channels": r.cut_channels,
        "cut_pool": r.cut_pool,
        "cut_sort": r.cut_sort,
        "input_shape": list(w.input_shape),
        "classes": w.federation.classes,
        "mean": list(w.federation.mean),
        "std": list(w.federation.std),
        "along": list(w.mean.shape),
        "mask": r.eval_mask if w.method.theta(w.initial_scores[:1]) is not None else "none",
        "holder": whose,
        "rounds": round_of(r, state.round),
    }
    model_file, example = folder / "model.safetensors", folder / "load_model.py"
    write_tensors(model_file, tensors, {"pmsfl": json.dumps(about)})
    example.write_text(EXAMPLE.format(file=model_file.name), encoding="utf-8")
    return Exported(model_file, example, f"{whose} model, mask: {about['mask']}, {len(tensors)} tensors")


@torch.no_grad()
def predict(run: Run, file: Path, client: int | None = None) -> Prediction:
    """Classify the samples of an .npz (x, optional y) with a client's model, or as a new client: the global θ.

    Probabilities are the mean over the evaluated masks.
    """
    w, state = run.world, run.state()
    _checked_client(w, client)
    samples, truth = load_samples(file)
    if samples.shape[1:] != w.federation.x.shape[1:]:
        raise PmsflError(
            f"{file}: samples have shape {samples.shape[1:]}, the model was trained on {w.federation.x.shape[1:]}"
        )
    x = _in_training_scale(samples, w)
    evaluator = Evaluator(w)
    total = torch.zeros(len(x), w.federation.classes, dtype=torch.float64)
    jobs = evaluator.global_jobs if client is None else evaluator.client_jobs
    for draw in range(evaluator.draws):
        statistics = evaluator.statistics(state, draw, jobs(state, draw, w.train_rows))
        depth, masked, plain = _bottom(evaluator, state, client, draw)
        if client is not None:
            masked, plain = masked.unsqueeze(0), plain.unsqueeze(0)
        for part in torch.split(torch.arange(len(x), device=w.device), 1024):
            job = Job([] if client is None else [client], depth, masked, plain, [part])
            for batch, present, logits in evaluator.logits(state, draw, statistics, job, x):
                total[batch[present].cpu()] += logits[present].softmax(-1).double().cpu()
    probabilities = (total / evaluator.draws).numpy()
    labels = probabilities.argmax(1)
    return Prediction(labels, probabilities, _accuracy(labels, truth, w))


def _accuracy(labels: np.ndarray, truth: np.ndarray | None, world: World) -> float | None:
    """Percent right; the file's labels are compared as they were named in the training data."""
    if truth is None:
        return None
    names = world.federation.class_names or tuple(map(str, range(world.federation.classes)))
    return float(100.0 * np.mean([names[found] == str(true) for found, true in zip(labels, truth, strict=True)]))


def _in_training_scale(x: np.ndarray, world: World) -> Tensor:
    """The samples on the scale the run's own data has: uint8 images, or floats."""
    if (x.dtype.kind == "u") != (world.federation.x.dtype.kind == "u"):
        raise PmsflError(f"samples are {x.dtype}, the run was trained on {world.federation.x.dtype}; convert them")
    return torch.from_numpy(np.ascontiguousarray(x)).to(world.device)
