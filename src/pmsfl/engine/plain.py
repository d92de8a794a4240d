"""A client's plain parameters: norms, biases, exits, a head on the client. Which are trained, kept, shared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pmsfl.engine.world import World


@dataclass(frozen=True)
class PlainView:
    """A client's plain parameters: where they stand in the global vector, and what becomes of each.

    Norms are shared, local or frozen as the recipe (or the method) says; classifiers and a head on the client
    are always trained.
    """

    index: Tensor  # int64 [q]
    trained: Tensor  # bool [q]
    local: Tensor  # bool [q]: trained, and kept by the client
    bottom: int  # how many of them belong to the bottom; the rest is the head
    evaluates_own: bool  # is any that the client keeps part of its model? A guard is not

    @cached_property
    def shared(self) -> Tensor:
        """bool [q]: trained, sent and merged."""
        return self.trained & ~self.local

    @cached_property
    def shared_places(self) -> Tensor:
        """The shared ones among a client's own: int64. Found once, because looking stops a GPU."""
        return self.shared.nonzero().squeeze(1)

    @cached_property
    def local_places(self) -> Tensor:
        """Those that stay with the client, among its own: int64."""
        return self.local.nonzero().squeeze(1)

    @cached_property
    def trains(self) -> bool:
        """Is any of them trained?"""
        return bool(self.trained.any())

    @cached_property
    def trains_all(self) -> bool:
        """Are all of them?"""
        return bool(self.trained.all())

    @cached_property
    def sent(self) -> Tensor:
        """Where the shared ones stand in the global vector: int64."""
        return self.index[self.shared_places]

    @staticmethod
    def of(world: World, depth: int) -> PlainView:
        """The view of one depth."""
        slots = world.layout.plain_slots(depth, world.u_shape)
        local = world.method.local_plain(slots, depth)
        norms_train = world.recipe.norms != "frozen"
        index: list[int] = []
        trained: list[bool] = []
        stays: list[bool] = []
        for s, kept in zip(slots, local, strict=True):
            index += range(s.offset, s.offset + s.size)
            trains = norms_train or s.is_classifier or s.is_guard
            trained += [trains] * s.size
            stays += [trains and (kept or s.is_guard)] * s.size
        flags = {"dtype": torch.bool, "device": world.device}
        return PlainView(
            torch.tensor(index, dtype=torch.int64, device=world.device),
            torch.tensor(trained, **flags),  # type: ignore[arg-type]
            torch.tensor(stays, **flags),  # type: ignore[arg-type]
            world.plain_size(depth),
            any(
                kept and not s.is_guard and (norms_train or s.is_classifier)
                for s, kept in zip(slots, local, strict=True)
            ),
        )
