"""What a model starts from: frozen weights, scores and plain parameters, all functions of the run's seed."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, fold, normal, root, uniform
from pmsfl.models.split import MASKABLE, Slot, SplitModel
from pmsfl.tensorfile import read_tensors


def _fan_in(shape: tuple[int, ...]) -> int:
    return max(1, math.prod(shape[1:]))


def frozen_weights(model: SplitModel, seed: int, kind: str) -> Tensor:
    """w_b for every block, float64 [P]: Kaiming normal, or ±its deviation with a random sign."""
    key = root(seed, Stream.FROZEN)
    parts = []
    for i, s in enumerate(model.layout.masked):
        deviation = math.sqrt(2.0 / _fan_in(s.shape))
        if kind == "signed":
            sign = torch.where(uniform(fold(key, i), s.size, torch.float64) < 0.5, -1.0, 1.0)
            parts.append(sign * deviation)
        else:
            parts.append(normal(fold(key, i), s.size) * deviation)
    return _join(parts).float().double()  # float32 values: the same frozen weights in every arithmetic


def initial_scores(model: SplitModel, seed: int, kind: str) -> Tensor:
    """s at the start, float64 [P]: N(0, 1) from the shared seed, or zeros."""
    size = model.layout.masked_size
    if kind == "constant":
        return torch.zeros(size, dtype=torch.float64)
    return normal(root(seed, Stream.SCORES), size)


def plain_parameters(model: SplitModel, seed: int) -> Tensor:
    """Everything without masks, float64 [Q].

    Weights of linear and convolution layers (head, embeddings) are N(0, 1/fan_in), their biases zero; other
    parameters keep what their module was built with.
    """
    key = fold(root(seed, Stream.FROZEN), 1 << 20)
    modules = dict(model.named_modules())
    parameters = dict(model.named_parameters())
    parts = []
    for i, s in enumerate(model.layout.plain):
        owner, _, leaf = s.name.rpartition(".")
        if isinstance(modules[owner], MASKABLE):
            bias = leaf != "weight"
            deviation = 0.0 if bias else 1.0 / math.sqrt(_fan_in(s.shape))
            parts.append(normal(fold(key, i), s.size) * deviation)
        else:
            parts.append(parameters[s.name].detach().cpu().double().reshape(-1))
    return _join(parts).float().double()


def load_pretrained(model: SplitModel, path: str, frozen: Tensor, plain: Tensor) -> tuple[Tensor, Tensor]:
    """Frozen and plain vectors with what a safetensors file holds put in; every masked weight must be there."""
    tensors, _ = read_tensors(Path(path))

    def fill(vector: Tensor, slots: tuple[Slot, ...], required: bool) -> Tensor:
        vector = vector.clone()
        for s in slots:
            if s.name not in tensors:
                if required:
                    raise PmsflError(f"pretrained = {path!r}: no tensor named {s.name!r}; the model needs it")
                continue
            value = tensors[s.name]
            if tuple(value.shape) != s.shape:
                raise PmsflError(
                    f"pretrained = {path!r}: {s.name} has shape {tuple(value.shape)}, the model wants {s.shape}"
                )
            vector[s.offset : s.offset + s.size] = value.double().reshape(-1)
        return vector

    return fill(frozen, model.layout.masked, True), fill(plain, model.layout.plain, False)


def _join(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
