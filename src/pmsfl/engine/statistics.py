"""Batch-norm statistics gathered over clients: exact sums in double precision, merged by each norm's name."""

from __future__ import annotations

import torch
from torch import Tensor

from pmsfl.engine.world import World
from pmsfl.models.context import Sums


class Statistics:
    """Count, Σx and Σx² of every norm: over all clients, or (statistics = client) per client in the bottom."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.per_client = world.recipe.statistics == "client"
        self._total: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._own: dict[int, dict[str, tuple[Tensor, Tensor, Tensor]]] = {}

    def add(self, sums: Sums, clients: list[int] | None) -> None:
        """Enter what a pass collected: count [], mean [C] and squared deviations [C], or with a leading [K]."""
        for name, (count, mean, squares) in sums.items():
            n = count.double()
            m, s = mean.double(), squares.double()
            rows = (n, n.unsqueeze(-1) * m, s + n.unsqueeze(-1) * m * m)
            if clients is not None and self.per_client:
                for i, c in enumerate(clients):
                    self._merge(self._own.setdefault(c, {}), name, (rows[0][i], rows[1][i], rows[2][i]))
            if n.ndim:
                rows = (rows[0].sum(0), rows[1].sum(0), rows[2].sum(0))
            self._merge(self._total, name, rows)

    @staticmethod
    def _merge(into: dict[str, tuple[Tensor, Tensor, Tensor]], name: str, new: tuple[Tensor, Tensor, Tensor]) -> None:
        old = into.get(name)
        into[name] = new if old is None else (old[0] + new[0], old[1] + new[1], old[2] + new[2])

    def buffers(self, clients: list[int] | None) -> dict[str, Tensor]:
        """running_mean and running_var of every norm that was seen; with a leading [K] where they are per client."""
        if not self.per_client or not clients:
            return self._finished(self._total)
        own = [self._finished(self._total | self._own.get(c, {})) for c in clients]
        return {name: torch.stack([o[name] for o in own]) for name in own[0]} if own else {}

    def _finished(self, totals: dict[str, tuple[Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
        out = {}
        for name, (n, total, squares) in totals.items():
            mean = total / n
            variance = (squares / n - mean * mean).clamp_min(0.0)
            out[f"{name}.running_mean"] = mean.to(self.world.dtype)
            out[f"{name}.running_var"] = variance.to(self.world.dtype)
        return out
