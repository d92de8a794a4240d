"""Clients of different depths through the blocks they share.

Block 1 of everybody is one vmap, then those cut there leave, block 2 of the others is the next one, and so on: as few
operations as the model has blocks, each on as many clients as hold it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pmsfl.engine.client import Bottoms
from pmsfl.engine.world import World

Batches = dict[int, Tensor]  # depth -> [A, B, ...] of the clients cut there, shallow first


def forward_together(world: World, groups: Mapping[int, Bottoms]) -> tuple[Batches, Batches]:
    """Smashed data and labels of clients grouped by depth, shallow first; keeps the graph for `backward_together`."""
    if len(groups) == 1 or not all(bottoms.vectorised for bottoms in groups.values()):
        done = {d: bottoms.forward() for d, bottoms in groups.items()}
    else:
        done = _block_by_block(world, groups)
    return {d: q for d, (q, _) in done.items()}, {d: y for d, (_, y) in done.items()}


def _block_by_block(world: World, groups: Mapping[int, Bottoms]) -> dict[int, tuple[Tensor, Tensor]]:
    ready = {d: bottoms.set_out() for d, bottoms in groups.items()}
    x = torch.cat([inputs for _, inputs, _ in ready.values()])
    done, logits = {}, dict[int, list[Tensor]]({d: [] for d in groups})
    start = 0
    for stop in groups:
        left = [d for d in groups if d >= stop]
        views = _stacked(world, {d: ready[d][0] for d in left}, start, stop)
        keys = torch.cat([ready[d][2] for d in left])
        x, said = world.run_blocks(views, x, start, stop, keys)
        sizes = [ready[d][1].shape[0] for d in left]
        if said is not None:
            for d, own in zip(left, torch.split(said, sizes), strict=True):
                logits[d].append(own)
        out, x = torch.split(x, [sizes[0], sum(sizes[1:])])
        done[stop] = groups[stop].arrive(out, torch.cat(logits[stop], 1) if logits[stop] else None)
        start = stop
    return done


def _stacked(world: World, views: Mapping[int, Mapping[str, Tensor]], start: int, stop: int) -> dict[str, Tensor]:
    """The parameters of blocks start+1..stop of all these clients, one depth after the other."""
    slots = [s for s in (*world.layout.masked, *world.layout.plain) if start <= s.block < stop]
    return {s.name: torch.cat([own[s.name] for own in views.values()]) for s in slots}
