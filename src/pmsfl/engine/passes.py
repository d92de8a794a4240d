"""Forward passes of evaluation: K clients' rows through bottom and top, for logits or for the norms' sums.

On a GPU each is recorded once per shape and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from pmsfl.engine.replay import Replays
from pmsfl.engine.statistics import Names, packed
from pmsfl.engine.world import World
from pmsfl.models.context import ForwardContext, Sums, forward_context


@dataclass
class Inputs:
    """What one pass reads. K clients of one depth, B rows each."""

    masked: Tensor  # [K, P_d], or [P_d] shared by all
    plain: Tensor  # [K, Q_d] or [Q_d]
    top: Tensor  # [P − P_cut]
    top_plain: Tensor  # [Q − Q_cut]
    rows: Tensor  # int64 [K, B]
    present: Tensor | None  # bool [K, B]: which rows are real; None: all
    buffers: dict[str, Tensor]  # statistics of the bottom's norms, [C] or [K, C]; empty: those of the batch
    top_buffers: dict[str, Tensor]


@dataclass
class Outputs:
    """What a pass gives. The sums only where they are collected, packed as `Statistics` keeps them."""

    logits: Tensor  # [K · B, classes]
    bottom: Tensor | None = None  # [K, …]
    top: Tensor | None = None  # […]


class Passes:
    """Plays passes of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.vectorised = world.why_looped is None
        self.names: dict[int, tuple[Names, Names]] = {}  # by depth: what the sums of bottom and top belong to
        recorded = world.device.type == "cuda" and world.recipe.capture != "off" and self.vectorised
        self.replays = Replays() if recorded else None

    def __call__(self, depth: int, collecting: bool, inputs: Inputs, x: Tensor | None = None) -> Outputs:
        """One pass. x: samples that the rows point into, where they are not the federation's.

        What it returns may be overwritten by the next pass.
        """

        def play(inputs: Inputs) -> Outputs:
            return self._play(depth, collecting, inputs, x)

        if self.replays is None or x is not None:
            return play(inputs)
        try:
            out: Outputs = self.replays((depth, collecting, self.world.model.training), play, inputs)
        except RuntimeError:  # a model that cannot be captured is evaluated as it is
            self.replays = None
            return play(inputs)
        return out

    def _play(self, depth: int, collecting: bool, t: Inputs, x: Tensor | None) -> Outputs:
        q, below = self.bottom(depth, collecting, t, x)
        logits, above = self.top(depth, collecting, t, q)
        if not collecting:
            return Outputs(logits)
        (names, own), (others, top) = packed(below), packed(above)
        self.names[depth] = names, others
        return Outputs(logits, own, top)

    def _weights(self, collecting: bool, present: Tensor | None) -> Tensor | None:
        """What rows count for: matters only where batch statistics are taken and some rows are padding."""
        return present if collecting or self.world.recipe.statistics == "batch" else None

    def bottom(self, depth: int, collecting: bool, t: Inputs, source: Tensor | None) -> tuple[Tensor, Sums]:
        """Smashed data [K, B, ...], and the norms' sums per client where they are collected."""
        w = self.world
        k = len(t.rows)
        masked, plain, buffers = t.masked, t.plain, t.buffers
        per_client = 0 if any(b.ndim == 2 for b in buffers.values()) else None
        if w.device.type == "cuda":  # clients side by side, as in training, whether or not they are all the same
            masked, plain = masked.expand(k, -1), plain.expand(k, -1)
            buffers, per_client = {n: b.expand(k, b.shape[-1]) for n, b in buffers.items()}, 0
        views = w.layout.bottom(masked, plain, depth)
        own = 0 if masked.ndim == 2 else None  # the global bottom is one for all
        weights = self._weights(collecting, t.present)

        def one(
            views: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, weights: Tensor | None
        ) -> tuple[Tensor, Sums]:
            context = ForwardContext(weights, {} if collecting else None)
            with forward_context(context), w.precision():
                q = functional_call(w.model, views | buffers, (x, 0, depth))
            return q, context.sums or {}

        samples = w.inputs(t.rows, source=source)
        if self.vectorised:
            dims = (own, per_client, 0, None if weights is None else 0)
            out: tuple[Tensor, Sums] = vmap(one, in_dims=dims)(views, buffers, samples, weights)
            return out
        results = []
        for i in range(k):
            mine = {n: v[i] for n, v in views.items()} if own == 0 else views
            stats = {n: v[i] for n, v in buffers.items()} if per_client == 0 else buffers
            results.append(one(mine, stats, samples[i], None if weights is None else weights[i]))
        names = list(results[0][1])
        sums = {n: tuple(torch.stack(s) for s in zip(*(r[1][n] for r in results), strict=True)) for n in names}
        return torch.stack([r[0] for r in results]), sums  # type: ignore[return-value]

    def top(self, depth: int, collecting: bool, t: Inputs, q: Tensor) -> tuple[Tensor, Sums]:
        """Logits of smashed data [K, B, ...] as one union [K·B, classes]."""
        w = self.world
        views = w.layout.top(t.top, t.top_plain, w.cut)
        rows = self._weights(collecting, t.present)
        context = ForwardContext(None if rows is None else rows.flatten(), {} if collecting else None)
        with forward_context(context), w.precision():
            out: Tensor = functional_call(w.model, views | t.top_buffers, (q.flatten(0, 1), depth))
        return out, context.sums or {}
