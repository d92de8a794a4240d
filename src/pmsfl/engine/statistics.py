"""Batch-norm statistics gathered over clients: exact sums in double precision, merged by each norm's name."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.engine.world import World
from pmsfl.models.context import Sums

Names = tuple[tuple[str, int], ...]  # the norms of one pass and how many channels each has
Totals = dict[Names, Tensor]  # [norms + 2 · channels]: counts, Σx, Σx²


class Statistics:
    """Count, Σx and Σx² of every norm: over all clients, or (statistics = client) per client in the bottom.

    With different depths a block is in the bottom of some clients and in the top of others. Where bottoms have
    statistics of their own they may be networks of their own, too, so that the server's copy of a block then has what
    passed through that copy alone.

    The norms of a pass travel as one vector: a pass over all training data would otherwise spend its time on
    thousands of tiny additions.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.per_client = world.recipe.statistics == "client"
        self._total: Totals = {}
        self._own: dict[int, Totals] = {}
        self._served: Totals = {}  # through the server's blocks, whoever's smashed data it was
        self._known: dict[str, Tensor] | None = None
        self._top: dict[str, Tensor] | None = None

    def add(self, names: Names, rows: Tensor | None, clients: list[int] | None) -> None:
        """Enter what a pass collected of these norms, packed: [norms + 2 · channels], or with a leading [K]."""
        if rows is None or not names:
            return
        self._known = self._top = None
        if clients is not None and self.per_client:
            for i, c in enumerate(clients):
                _merge(self._own.setdefault(c, {}), names, rows[i])
        whole = rows.sum(0) if rows.ndim == 2 else rows
        if clients is None:
            _merge(self._served, names, whole)
        _merge(self._total, names, whole)

    def buffers(self, clients: list[int] | None) -> dict[str, Tensor]:
        """running_mean and running_var of every norm that was seen; with a leading [K] where they are per client."""
        if self._known is None:
            self._known = self._finished(self._total)
        everybody = self._known
        if not self.per_client or not clients:
            return everybody
        own = [everybody | self._finished(self._own.get(c, {})) for c in clients]
        return {name: torch.stack([o[name] for o in own]) for name in own[0]} if own else {}

    def top(self) -> dict[str, Tensor]:
        """running_mean and running_var of the server's norms."""
        everybody = self.buffers(None)
        if not self.per_client:
            return everybody
        if self._top is None:
            self._top = everybody | self._finished(self._served)
        return self._top

    def _finished(self, totals: Totals) -> dict[str, Tensor]:
        found: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for names, vector in totals.items():
            counts, *parts = torch.split(vector, [len(names), *(c for _, c in names), *(c for _, c in names)])
            for i, (name, _) in enumerate(names):  # a block is in the bottom of some clients and in others' top
                new = (counts[i], parts[i], parts[len(names) + i])
                old = found.get(name)
                found[name] = new if old is None else (old[0] + new[0], old[1] + new[1], old[2] + new[2])
        out = {}
        for name, (n, total, squares) in found.items():
            mean = total / n
            variance = (squares / n - mean * mean).clamp_min(0.0)
            out[f"{name}.running_mean"] = mean.to(self.world.dtype)
            out[f"{name}.running_var"] = variance.to(self.world.dtype)
        return out


def packed(sums: Sums) -> tuple[Names, Tensor | None]:
    """Counts, Σx and Σx² of all norms: float64 [norms + 2 · channels], or with a leading [K].

    From each norm's count [], mean [C] and squared deviations [C].
    """
    if not sums:
        return (), None
    names = tuple((name, mean.shape[-1]) for name, (_, mean, _) in sums.items())
    counts = torch.stack([n for n, _, _ in sums.values()], -1).double()
    means = torch.cat([m for _, m, _ in sums.values()], -1).double()
    squares = torch.cat([s for _, _, s in sums.values()], -1).double()
    each = torch.cat([counts[..., i : i + 1].expand(*counts.shape[:-1], c) for i, (_, c) in enumerate(names)], -1)
    totals = each * means
    return names, torch.cat((counts, totals, squares + totals * means), -1)


def _merge(into: Totals, names: Names, new: Tensor) -> None:
    into[names] = into[names] + new if names in into else new.clone()  # a pass may write over its own later
