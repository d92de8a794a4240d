"""The tensors a local step reads and moves. They are all that changes from step to step: everything else a step
needs is in the World. So a step can be recorded once and replayed on other numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from pmsfl.engine.optim import RowOptimiser

Tree = TypeVar("Tree")


@dataclass
class Clock:
    """Where a run stands: scalars on the device, so that a recorded step finds them changed at every replay."""

    round: Tensor  # int64
    step: Tensor  # int64
    lr_masked: Tensor  # float64, as all rates: of the clients' scores or weights
    lr_plain: Tensor
    lr_server_masked: Tensor
    lr_server_plain: Tensor
    ramp: Tensor  # how far distillation has come in, 0 to 1


@dataclass
class ClientRows:
    """One row per client of one depth: K clients, P masked coordinates, q plain parameters."""

    ids: Tensor  # int64 [K]
    batches: Tensor  # int64 [K, R, B]: rows of the data for each of R steps
    trained: Tensor  # [K, P]: scores or weights
    plain: Tensor  # [K, q]
    masked_optimiser: RowOptimiser
    plain_optimiser: RowOptimiser
    round_draw: Tensor | None = None  # [K, P]: with one mask per round, what repeats it in every step

    def first(self, count: int) -> ClientRows:
        """The first clients: views, so that what is written there is written here."""
        return self.part(slice(count))

    def part(self, at: slice) -> ClientRows:
        """Some of the clients: views."""
        rows: ClientRows = rebuilt(self, (t[at] for t in tensors(self)))
        return rows


@dataclass
class ServerRows:
    """The server's blocks as rows of one: P and Q count from the shallowest cut."""

    masked: Tensor  # [1, P]
    plain: Tensor  # [1, Q]
    masked_optimiser: RowOptimiser
    plain_optimiser: RowOptimiser
    loss_sum: Tensor  # float64 []: over samples, since the round began
    round_draw: Tensor | None = None  # [1, P]


def tensors(tree: Any) -> list[Tensor]:
    """All tensors in dataclasses and dictionaries, in a fixed order."""
    if isinstance(tree, Tensor):
        return [tree]
    return [t for part in _parts(tree) for t in tensors(part)]


def rebuilt(tree: Any, replacements: Iterator[Tensor]) -> Any:
    """The same tree with other tensors, in the order of `tensors`."""
    if isinstance(tree, Tensor):
        return next(replacements)
    if isinstance(tree, dict):
        return {k: rebuilt(v, replacements) for k, v in tree.items()}
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
        return tree
    return dataclasses.replace(
        tree, **{f.name: rebuilt(getattr(tree, f.name), replacements) for f in dataclasses.fields(tree)}
    )


def cloned(tree: Tree) -> Tree:
    """The same tree with copies of its tensors."""
    return rebuilt(tree, (t.clone() for t in tensors(tree)))  # type: ignore[no-any-return]


def _parts(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return list(tree.values())
    if isinstance(tree, tuple):
        return list(tree)
    if dataclasses.is_dataclass(tree):
        return [getattr(tree, f.name) for f in dataclasses.fields(tree)]
    return []
