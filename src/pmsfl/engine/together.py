"""Clients of different depths through the blocks they share.

Block 1 of everybody is one vmap, then those cut there leave, block 2 of the others is the next one, and so on: as few
operations as the model has blocks, each on as many clients as hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

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
    cuts = [0, *groups]
    pieces = {d: _by_block(world, vectors, [c for c in cuts if c <= d]) for d, (vectors, _, _) in ready.items()}
    x = torch.cat([inputs for _, inputs, _ in ready.values()])
    done, logits = {}, dict[int, list[Tensor]]({d: [] for d in groups})
    for i, (start, stop) in enumerate(pairwise(cuts)):
        left = [d for d in groups if d >= stop]
        masked, plain = (torch.cat([pieces[d][kind][i] for d in left]) for kind in (0, 1))
        keys = torch.cat([ready[d][2] for d in left])
        x, said = world.run_blocks(world.layout.between(masked, plain, start, stop), x, start, stop, keys)
        sizes = [ready[d][1].shape[0] for d in left]
        if said is not None:
            for d, own in zip(left, torch.split(said, sizes), strict=True):
                logits[d].append(own)
        out, x = torch.split(x, [sizes[0], sum(sizes[1:])])
        done[stop] = groups[stop].arrive(out, torch.cat(logits[stop], 1) if logits[stop] else None)
    return done


def _by_block(world: World, vectors: tuple[Tensor, Tensor], cuts: list[int]) -> list[tuple[Tensor, ...]]:
    """A depth's weights and plain parameters, cut where clients leave: whole vectors are joined, not layer by layer."""
    sizes = [[size(b) - size(a) for a, b in pairwise(cuts)] for size in (world.masked_size, world.plain_size)]
    return [torch.split(vector, at, dim=-1) for vector, at in zip(vectors, sizes, strict=True)]
