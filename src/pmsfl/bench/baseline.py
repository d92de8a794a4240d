"""What PM-SFL costs without this library: an eager loop over clients, written as well as ordinary PyTorch allows.

Every client has its own copy of the bottom as modules, in channels-last, under bf16 autocast on a GPU; frozen weights
and scores per layer, masks drawn by torch's generator, a straight-through gradient in one autograd function, one fused
Adam for scores and norms (a launch less than SGD for the norms would cost). cudnn picks its fastest kernels; nothing is
encoded, counted or logged; dropout is off. Data lies on the device as bytes and is gathered, cropped, flipped and
normalised per batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pmsfl.engine.augment import PADDING
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.masks.bernoulli import bound
from pmsfl.models.split import Slot
from pmsfl.recipe import Recipe

# What a recipe must have for the loop to do the same work: it knows no stages at the cut and no codecs.
PLAIN_STEP = {
    "method": "pm-sfl",
    "labels": "shared",
    "schedule": "parallel",
    "mask_per": "batch",
    "mask_sharpness": 1.0,
    "masked_top": False,
    "cut_channels": 0,
    "cut_pool": 1,
    "cut_sort": 0,
    "cut_clip": 0.0,
    "guard": 0.0,
    "no_peek": 0.0,
    "dp_smashed": "off",
    "score_decay": 0.0,
    "score_gradient_noise": 0.0,
    "cut_codec": "native",
    "gradient_codec": "same",
}

Batch = tuple[Tensor, Tensor]  # samples [B, ...] and labels [B]


def draw(theta: Tensor, masks: int) -> Tensor:
    """M ~ Bern(θ) in torch's fastest way: one kernel on a GPU; a CPU compares uniforms up to three times as fast as it
    draws bits. Laid out like θ: torch.bernoulli would undo channels-last, and cudnn redo it. Or the mean of several."""
    if masks > 1:
        return torch.rand_like(theta).neg_().add_(theta, alpha=masks).ceil_().div_(masks)
    if theta.is_cuda:
        return torch.empty_like(theta).bernoulli_(theta)
    return (torch.rand_like(theta) < theta).to(theta.dtype)


class DrawMask(torch.autograd.Function):
    """w ⊙ M with M ~ Bern(σ(s)), or w ⊙ (2M − 1) where masks flip; backwards the slope of σ, times σ where the
    estimator is the paper's."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, frozen: Tensor, recipe: Recipe) -> Tensor:
        theta = torch.sigmoid(scores)
        ctx.save_for_backward(theta, frozen)
        ctx.paper, ctx.flips = recipe.estimator == "paper", recipe.mask_act == "flip"
        mask = draw(theta, recipe.forward_masks)
        return (mask.mul_(2.0).sub_(1.0) if ctx.flips else mask).mul_(frozen)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        theta, frozen = ctx.saved_tensors
        slope = gradients[0] * frozen * theta * (1.0 - theta)
        slope = 2.0 * slope if ctx.flips else slope
        return slope * theta if ctx.paper else slope, None, None


class ClientLoop:
    """K bottoms in a list, one top, and both ways to play a step: client by client, or with one top step for all."""

    def __init__(self, world: World) -> None:
        check_comparable(world)
        self.world, self.device = world, world.device
        self.clients = list(world.plan(0).clients)
        self.bf16 = baseline_precision(world) == "bf16"
        self.bottoms = [MaskedBottom(world) for _ in self.clients]
        self.top = _top(world)
        self.top_optimiser = _server_optimiser(world, list(self.top.parameters()))

    # --- a step

    def sequential(self) -> Tensor:
        """As public split-learning code does it: the top steps once per client batch. Returns the mean loss."""
        total = torch.zeros((), device=self.device)
        for c, bottom in zip(self.clients, self.bottoms, strict=True):
            x, y = self.batch(c)
            smashed = self._smashed(bottom, x)
            loss, gradient = self._step_top(smashed.detach(), y)
            bottom.step(smashed, gradient)
            total += loss
        return total / len(self.clients)

    def union(self) -> Tensor:
        """The mathematics of our own step: every bottom, one top step on the union of the batches, every client."""
        batches = [self.batch(c) for c in self.clients]
        return self.union_of(batches)

    def union_of(self, batches: list[Batch]) -> Tensor:
        """A union step on given batches. Returns the loss."""
        smashed = [self._smashed(b, x) for b, (x, _) in zip(self.bottoms, batches, strict=True)]
        k = len(batches)
        loss, gradient = self._step_top(torch.cat([q.detach() for q in smashed]), torch.cat([y for _, y in batches]))
        for bottom, q, g in zip(self.bottoms, smashed, (gradient * k).chunk(k), strict=True):
            bottom.step(q, g)  # times K: the mean over the client's own batch
        return loss

    def _smashed(self, bottom: MaskedBottom, x: Tensor) -> Tensor:
        with self._precision():
            return bottom.forward(x)

    def _step_top(self, smashed: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the top; the loss, and its gradient at the cut."""
        smashed.requires_grad_()
        self.top_optimiser.zero_grad(set_to_none=True)
        with self._precision():
            loss = F.cross_entropy(self.top(smashed), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.top_optimiser.step()
        assert smashed.grad is not None
        return loss.detach(), smashed.grad

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    # --- data

    def batch(self, client: int) -> Batch:
        """A random batch of a client, ready for its bottom."""
        w = self.world
        held = w.train_rows[client]
        rows = held[torch.randint(len(held), (w.recipe.batch,), device=self.device)]
        x = w.x[rows]
        if w.recipe.augment != "none":
            x = crop(x, flip=w.recipe.augment == "crop-flip")
        return channels_last((x.to(w.dtype) - w.mean) / w.std), w.y[rows]


class MaskedBottom:
    """One client's bottom: modules whose weights are drawn anew in every forward pass."""

    def __init__(self, world: World) -> None:
        r, depth = world.recipe, world.cut
        blocks = copy.deepcopy(world.model.blocks[:depth]).train()
        _load(blocks, "blocks.", world.layout.plain, world.initial_plain)
        start = world.method.start(world.initial_shared)
        self.recipe = r
        self.limit = bound(r.clip)
        self.layers: list[nn.Module] = []
        self.frozen: list[Tensor] = []
        self.scores: list[Tensor] = []
        for s in world.layout.layers(depth):
            layer = blocks.get_submodule(s.name.removeprefix("blocks.").rpartition(".")[0])
            del layer.weight  # from now on an ordinary attribute: what the last draw gave
            self.layers.append(layer)
            self.frozen.append(channels_last(_slot(world.frozen, s)))
            self.scores.append(channels_last(_slot(start, s)).requires_grad_())
        self.blocks = nn.Sequential(*blocks)
        self.norms = list(self.blocks.parameters())
        groups = [{"params": self.scores, "lr": r.lr_score}]
        if self.norms:
            groups.append({"params": self.norms, "lr": r.lr_client, "weight_decay": r.weight_decay})
        self.optimiser = torch.optim.Adam(groups, fused=True)

    def forward(self, x: Tensor) -> Tensor:
        """Smashed data under fresh masks."""
        for layer, scores, frozen in zip(self.layers, self.scores, self.frozen, strict=True):
            layer.weight = DrawMask.apply(scores, frozen, self.recipe)  # type: ignore[no-untyped-call]
        out: Tensor = self.blocks(x)
        return out

    def step(self, smashed: Tensor, gradient: Tensor) -> None:
        """Backpropagate the gradient at the cut, step, keep θ in its bounds."""
        self.optimiser.zero_grad(set_to_none=True)
        smashed.backward(gradient)  # type: ignore[no-untyped-call]
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_clamp_min_(self.scores, -self.limit)
            torch._foreach_clamp_max_(self.scores, self.limit)


def baseline_precision(world: World) -> str:
    """bf16 where a GPU would run float32; else the run's own."""
    return "bf16" if world.device.type == "cuda" and world.dtype is torch.float32 else world.recipe.dtype


def check_comparable(world: World) -> None:
    """PmsflError where the loop would not do the same work as the recipe's step."""
    r = world.recipe
    for key, value in PLAIN_STEP.items():
        if getattr(r, key) != value:
            raise PmsflError(f"{key} = {getattr(r, key)!r}: the baseline loop knows {key} = {value!r} only")
    if r.norms == "frozen":
        raise PmsflError("norms = 'frozen': the baseline loop trains them; take shared or local")
    if world.mixed or world.cut == world.model.depth:
        raise PmsflError(
            f"depths = {r.depths!r}: the baseline loop has one cut for all clients, with a block on the server; "
            f"take 1 to {world.model.depth - 1}"
        )


def crop(x: Tensor, flip: bool) -> Tensor:
    """Images [B, C, H, W] padded by 4, cropped back at a random place, flipped half of the time where asked."""
    b, _, h, w = x.shape
    at = torch.randint(2 * PADDING + 1, (2, b, 1), device=x.device)
    columns = torch.arange(w, device=x.device).expand(b, w)
    if flip:
        columns = torch.where(torch.rand(b, 1, device=x.device) < 0.5, columns.flip(1), columns)
    rows, columns = torch.arange(h, device=x.device) + at[0], columns + at[1]
    padded = F.pad(x, (PADDING,) * 4).permute(0, 2, 3, 1)
    which = torch.arange(b, device=x.device).view(b, 1, 1)
    return padded[which, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


@contextmanager
def fastest_kernels() -> Iterator[None]:
    """cudnn tries all its algorithms and keeps the fastest, in here only."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def channels_last(t: Tensor) -> Tensor:
    """Images and their kernels with the channels innermost; everything else as it is."""
    return t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t.contiguous()


def _slot(vector: Tensor, s: Slot) -> Tensor:
    return vector[s.offset : s.offset + s.size].detach().clone().reshape(s.shape)


def _load(module: nn.Module, prefix: str, slots: tuple[Slot, ...], vector: Tensor) -> None:
    """Put the run's initial values into a module's parameters, as far as it has them."""
    own = dict(module.named_parameters(prefix=prefix.rstrip(".")))
    for s in slots:
        if s.name in own:
            own[s.name].data = channels_last(_slot(vector, s))


def _top(world: World) -> nn.Module:
    """The server's half as an ordinary module, with the run's initial weights."""
    model = copy.deepcopy(world.model).train()
    _load(model, "", world.layout.masked, world.frozen)
    _load(model, "", world.layout.plain, world.initial_plain)
    return nn.Sequential(*model.blocks[world.cut :], model.head)


def _server_optimiser(world: World, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    r = world.recipe
    if r.server_optimiser == "adam":
        return torch.optim.Adam(parameters, r.lr_server, weight_decay=r.weight_decay, fused=True)
    return torch.optim.SGD(parameters, r.lr_server, r.momentum, weight_decay=r.weight_decay, fused=True)
