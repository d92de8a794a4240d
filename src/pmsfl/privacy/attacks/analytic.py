"""Layer-by-layer recovery from one sample's score gradients (the paper's appendix B), for chains of dense layers.

A dense layer's gradient is the outer product of dL/dy and its input. With dL/dy of the last layer known, least squares
give its input; dL/dy of the layer below follows from it up to the unknown mask, and so on down to the pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pmsfl.models.split import SplitModel
from pmsfl.privacy.attacks.base import Attack
from pmsfl.privacy.attacks.gradient import update_of, uploaded_gradient
from pmsfl.privacy.threat import ThreatModel, Transcript, Update

ROUNDS = 20  # of alternating least squares below the last layer


@dataclass(frozen=True)
class Dense:
    """One layer as the server sees it, [outputs, inputs] each."""

    weights: Tensor  # expected, mask included
    slope: Tensor  # how much of dL/dW shows in the upload, coordinate by coordinate
    change: Tensor  # slope ⊙ dL/dW, as uploaded
    rectified: bool  # does a ReLU follow?


def recover(layers: Sequence[Dense], delta: Tensor) -> Tensor:
    """The input [i] of a chain of dense layers, from their score gradients and dL/dy [o] of the last one."""
    x = delta.new_zeros(0)
    for layer in reversed(layers):
        if len(x):  # not the last layer: dL/dy under the mean mask, which the gradient then corrects
            delta = _refined(layer, torch.where(x > 0, delta, 0.0) if layer.rectified else delta)
        x = _input(layer, delta)
        delta = layer.weights.t() @ delta
    return x


def _input(layer: Dense, delta: Tensor) -> Tensor:
    """Least squares for x in change = slope ⊙ (delta xᵀ)."""
    known = layer.slope * delta.unsqueeze(1)
    return (known * layer.change).sum(0) / known.square().sum(0).clamp_min(1e-20)


def _refined(layer: Dense, delta: Tensor) -> Tensor:
    """dL/dy by alternating least squares, on the scale of the first guess."""
    guess = delta
    for _ in range(ROUNDS):
        known = layer.slope * _input(layer, guess).unsqueeze(0)
        guess = (known * layer.change).sum(1) / known.square().sum(1).clamp_min(1e-20)
    return guess * (guess @ delta) / (guess @ guess).clamp_min(1e-20)


class LayerByLayer(Attack):
    """Exact where one sample's gradient is visible; a bit per coordinate is a very noisy view of it."""

    name = "layer-by-layer"
    about = "recovery from a single sample's upload (paper, appendix B)"
    needs = ("gradient", "upload")

    def why_not(self, view: Transcript, threat: ThreatModel) -> str | None:
        if view.smashed.shape[1] != 1:
            return "it takes an upload of a single sample (batch = 1)"
        if dense_chain(threat.surface.model, threat.surface.depth) is None:
            return "the bottom is not a chain of dense layers"
        return super().why_not(view, threat)

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        assert view.gradient is not None
        found = []
        for g in range(view.smashed.shape[0]):
            x = recover(self._layers(update_of(view, g), threat), view.gradient[g, 0].flatten())
            found.append(x.reshape(threat.shape) * threat.surface.std + threat.surface.mean)
        return torch.stack(found).clamp(0.0, 1.0)

    def _layers(self, update: Update, threat: ThreatModel) -> list[Dense]:
        surface = threat.surface
        chain = dense_chain(surface.model, surface.depth)
        assert chain is not None
        slope = torch.ones_like(update.before)
        if update.kind != "weights":
            theta = update.before
            slope = surface.slope * theta * (1 - theta) * (theta if threat.step.estimator == "paper" else 1.0)
        if update.kind == "bits":  # θ − M is minus the change of θ, and noise
            change = (update.before - update.after) / (update.before * (1 - update.before))
        else:
            change = uploaded_gradient(update, threat)
        if threat.step.optimiser == "adam":  # a step of Adam shows signs only
            slope = slope.sign()
        change = torch.where(update.contributes, change, 0.0)
        out = []
        for slot, rectified in zip(surface.model.layout.layers(surface.depth), chain, strict=True):
            part = slice(slot.offset, slot.offset + slot.size)
            mean, slopes, seen = (v[part].reshape(slot.shape) for v in (surface.expected(), slope, change))
            out.append(Dense(mean, slopes, seen, rectified))
        return out


def dense_chain(model: SplitModel, depth: int) -> list[bool] | None:
    """For every dense layer of the bottom, does a ReLU follow it? None where it is not a chain of dense layers."""
    rectified: list[bool] = []
    stage = model.narrow if model.cut_after == depth else nn.Identity()
    for module in (*model.blocks[:depth].modules(), *stage.modules()):
        if isinstance(module, nn.Linear):
            rectified.append(False)
        elif isinstance(module, nn.ReLU) and rectified:
            rectified[-1] = True
        elif not isinstance(module, nn.Sequential | nn.ModuleList | nn.Flatten | nn.Identity):
            return None
    return rectified or None
