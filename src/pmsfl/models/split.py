"""A model that can be cut: a list of blocks and a head, and the flat vectors its parameters live in.

Client k holds blocks 1..d_k (its bottom), the server the rest (the top). Two flat vectors hold all parameters:
`masked` (convolution and linear weights of the blocks) and `plain` (biases, norms, embeddings, the head). Both
are ordered by block, so the bottom of depth d is a prefix of each and the top a suffix, for every d.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pmsfl.errors import PmsflError
from pmsfl.models.conv import allow_channels_last, convert_images
from pmsfl.models.dropout import KeyedDropout, convert_dropout
from pmsfl.models.norm import StaticBN, convert_batch_norm, replace_by_group_norm

MASKABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class SplitModel(nn.Module):
    """Blocks in a row and a head. Any nn.Module is a block; torch's layers are converted where this library has
    its own: BatchNorm, Dropout, Conv2d, AvgPool2d, GroupNorm, LayerNorm.

    unmasked: prefixes of module names whose weights carry no masks (embeddings, say).
    """

    def __init__(self, blocks: Sequence[nn.Module], head: nn.Module, unmasked: Sequence[str] = ()) -> None:
        super().__init__()
        if not blocks:
            raise PmsflError("SplitModel: blocks is empty; give at least one nn.Module before the head")
        if len({id(part) for part in (*blocks, head)}) <= len(blocks):
            raise PmsflError("SplitModel: one module stands in two places; every block and the head need their own")
        self.blocks = nn.ModuleList(_converted(b) for b in blocks)
        self.head = _converted(head)
        allow_channels_last(*self.blocks, self.head)
        self.exits = nn.ModuleList()  # a classifier after every block, where a method wants them
        self.cut_after = 0  # the block behind which the cut is narrow; 0: none
        self.narrow: nn.Module = nn.Identity()  # the end of that block,
        self.widen: nn.Module = nn.Identity()  # the beginning of the next,
        self.guard: nn.Module = nn.Identity()  # and a decoder that a client attacks itself with there
        self.unmasked = tuple(unmasked)
        self._settle()

    def _settle(self) -> None:
        """Names and numbers for the layers that want them, and the layout: whenever a part was added."""
        for i, (name, module) in enumerate(self.named_modules()):
            if isinstance(module, StaticBN):
                module.name = name
            elif isinstance(module, KeyedDropout):
                module.index = i
        self.layout = Layout.of(self)

    def narrow_cut(self, after: int, narrow: nn.Module, widen: nn.Module, masked: bool = True) -> None:
        """Put a stage behind block `after`, which belongs to it, and one before the block that follows it.

        masked: False for weights of the first that carry no masks.
        """
        self.unmasked = self.unmasked if masked else (*self.unmasked, "narrow")
        self.cut_after, self.narrow, self.widen = after, _converted(narrow), _converted(widen)
        allow_channels_last(*self.blocks, self.narrow, self.widen, self.head)
        self._settle()

    def add_guard(self, after: int, guard: nn.Module) -> None:
        """Give clients a decoder of what crosses the cut behind block `after`."""
        self.cut_after, self.guard = after, _converted(guard)
        allow_channels_last(self.guard)
        self._settle()

    def add_exits(self, make: Callable[[int], nn.Module]) -> None:
        """Put a classifier after every block; make(i) builds the one after block i+1."""
        self.exits = nn.ModuleList(make(i) for i in range(self.depth))
        self._settle()

    def use_group_norm(self) -> None:
        """Put group norm in the place of batch norm: no output then depends on other samples."""
        replace_by_group_norm(self)
        self._settle()

    @property
    def depth(self) -> int:
        """How many blocks there are: the deepest cut."""
        return len(self.blocks)

    def forward(
        self, x: Tensor, start: int = 0, stop: int | None = None, joins: Mapping[int, Tensor] | None = None
    ) -> Tensor:
        """Blocks start+1..stop (stop None: to the end, and the head).

        joins: smashed data of deeper cuts; joins[d] is appended to the rows on entry to block d+1.
        """
        last = self.depth if stop is None else stop
        for i in range(start, last):
            if joins and i > start and i in joins:
                x = torch.cat((x, joins[i]))
            x = self._block(i, x)
        if stop is None:
            if joins and last > start and last in joins:
                x = torch.cat((x, joins[last]))
            x = self.head(self.widen(x) if last == self.cut_after else x)
        return x

    def _block(self, i: int, x: Tensor) -> Tensor:
        """Block i+1 with the stages that belong to it. Where a cut is narrow, it is the only one."""
        if i and i == self.cut_after:
            x = self.widen(x)
        x = self.blocks[i](x)
        out: Tensor = self.narrow(x) if i + 1 == self.cut_after else x
        return out

    def blocks_with_exits(self, x: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Blocks start+1..stop, and the logits [stop − start, B, classes] of the classifiers on the way."""
        logits = []
        for i in range(start, stop):
            x = self._block(i, x)
            logits.append(self.exits[i](x))
        return x, torch.stack(logits)


@dataclass(frozen=True)
class Slot:
    """One parameter's place in a flat vector. `block` counts from 0; the head's is the model's depth."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int
    block: int

    @property
    def is_classifier(self) -> bool:
        """Does it belong to the head, or to an exit? These are shared whatever becomes of the norms."""
        return self.name.startswith(("head.", "exits."))

    @property
    def is_guard(self) -> bool:
        """Does it belong to a client's own decoder? These never leave the client."""
        return self.name.startswith("guard.")


@dataclass(frozen=True)
class Layout:
    """Where every parameter lives. ends[d]: how many coordinates the bottom of depth d has (ends[0] = 0)."""

    masked: tuple[Slot, ...]
    plain: tuple[Slot, ...]
    masked_ends: tuple[int, ...]
    plain_ends: tuple[int, ...]
    depth: int

    @staticmethod
    def of(model: SplitModel) -> Layout:
        """The layout of a model's parameters."""
        carriers = _mask_carriers(model)
        slots: dict[bool, list[Slot]] = {True: [], False: []}
        sizes = {True: 0, False: 0}
        ends: dict[bool, list[int]] = {True: [0], False: [0]}
        for i in range(model.depth + 1):
            for name, p in _parameters(model, i):
                kind = name in carriers
                slots[kind].append(Slot(name, tuple(p.shape), sizes[kind], p.numel(), i))
                sizes[kind] += p.numel()
            for kind in (True, False):
                ends[kind].append(sizes[kind])
        return Layout(tuple(slots[True]), tuple(slots[False]), tuple(ends[True]), tuple(ends[False]), model.depth)

    @property
    def masked_size(self) -> int:
        """P: how many coordinates carry masks over all blocks."""
        return self.masked_ends[-1]

    @property
    def plain_size(self) -> int:
        """Q: how many parameters carry none, the head included."""
        return self.plain_ends[-1]

    def bottom(self, masked: Tensor, plain: Tensor, depth: int) -> dict[str, Tensor]:
        """Named views for functional_call of a bottom's vectors [..., P_d] and [..., Q_d]."""
        return self.between(masked, plain, 0, depth)

    def top(self, masked: Tensor, plain: Tensor, depth: int) -> dict[str, Tensor]:
        """Named views of a top's vectors [P − P_d] and [Q − Q_d], head included."""
        return self.between(masked, plain, depth, self.depth + 1)

    def trunk(self, masked: Tensor, plain: Tensor, depth: int) -> dict[str, Tensor]:
        """Named views of a top without its head: vectors [P − P_d] and [Q_L − Q_d]."""
        return self.between(masked, plain, depth, self.depth)

    def head(self, plain: Tensor) -> dict[str, Tensor]:
        """Named views of the head's parameters [..., Q − Q_L]."""
        return self.between(plain[..., :0], plain, self.depth, self.depth + 1)

    def plain_slots(self, depth: int, head: bool) -> list[Slot]:
        """The plain parameters of a bottom of this depth, and the head's where the client has it."""
        return [s for s in self.plain if s.block < depth or (head and s.block == self.depth)]

    def between(self, masked: Tensor, plain: Tensor, first: int, last: int) -> dict[str, Tensor]:
        """Named views of blocks first+1..last alone: vectors [..., P_last − P_first] and [..., Q_last − Q_first]."""
        # torch.split, not slices: its backward is one concatenation instead of one full-size zero tensor each.
        views = {}
        for vector, slots in ((masked, self.masked), (plain, self.plain)):
            mine = [s for s in slots if first <= s.block < last]
            parts = torch.split(vector, [s.size for s in mine], dim=-1) if mine else ()
            for s, part in zip(mine, parts, strict=True):
                views[s.name] = part.reshape(*vector.shape[:-1], *s.shape)
        return views

    def layers(self, depth: int) -> list[Slot]:
        """The masked layers of a bottom of this depth."""
        return [s for s in self.masked if s.block < depth]


def _converted(part: nn.Module) -> nn.Module:
    """The part with the layers of this library in the place of torch's."""
    return convert_images(convert_dropout(convert_batch_norm(part)))


def _parameters(model: SplitModel, block: int) -> list[tuple[str, nn.Parameter]]:
    """What belongs to a block (counted from 0), or to the head behind the last one, by name."""
    own = model.blocks[block] if block < model.depth else model.head
    named = list(own.named_parameters(prefix=f"blocks.{block}" if block < model.depth else "head"))
    if model.cut_after and block == model.cut_after - 1:
        named += [*model.narrow.named_parameters(prefix="narrow"), *model.guard.named_parameters(prefix="guard")]
    if model.cut_after and block == model.cut_after:
        named += model.widen.named_parameters(prefix="widen")
    if block < len(model.exits):
        named += model.exits[block].named_parameters(prefix=f"exits.{block}")
    return named


def _mask_carriers(model: SplitModel) -> set[str]:
    """Names of the weights that carry masks: those of convolutions and linear layers in the blocks and at the cut."""
    names = set()
    stages = [("blocks", model.blocks), ("narrow", model.narrow)]
    if model.cut_after < model.depth:  # behind the last block it belongs to the head
        stages.append(("widen", model.widen))
    for name, module in (pair for prefix, stage in stages for pair in stage.named_modules(prefix=prefix)):
        skipped = any(name == u or name.startswith(u + ".") for u in model.unmasked)
        if isinstance(module, MASKABLE) and not skipped:
            names.add(f"{name}.weight")
    return names
