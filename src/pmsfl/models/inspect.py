"""What a model costs and whether it can be vectorised: FLOPs, memory and bytes of every cut."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.flop_counter import FlopCounterMode

from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, normal, root
from pmsfl.models.norm import StaticBN
from pmsfl.models.split import SplitModel


@dataclass(frozen=True)
class CutCost:
    """What cutting after a block costs a client. FLOPs: forward and backward of one sample (2 per MAC)."""

    depth: int
    masked: int
    plain: int
    smashed_shape: tuple[int, ...]
    flops_per_sample: int
    activation_bytes: int  # saved for backward, one batch

    def memory_bytes(self, element: int = 4) -> int:
        """A client's training memory: frozen weights, scores, two Adam moments, effective weights, gradients,
        norms with their optimiser, and saved activations."""
        return element * (6 * self.masked + 4 * self.plain) + self.activation_bytes


def cut_cost(model: SplitModel, input_shape: tuple[int, ...], depth: int, batch: int) -> CutCost:
    """The cost of one cut, measured by running the bottom on zeros; with the client's guard, where it has one."""
    parameter = next(model.parameters())
    x = torch.zeros(batch, *input_shape, dtype=parameter.dtype, device=parameter.device)
    was_training = model.training
    model.train()
    q, flops, saved = _measured(model, _bottom(model, depth), (x, 0, depth))
    if not isinstance(model.guard, nn.Identity) and depth >= model.cut_after:
        smashed = torch.zeros(batch, *smashed_shape(model, input_shape, model.cut_after)).to(x)
        _, more, kept = _measured(model.guard, dict(model.guard.named_parameters()), (smashed.requires_grad_(),))
        flops, saved = flops + more, saved + kept
    model.train(was_training)
    ends = model.layout.masked_ends[depth], model.layout.plain_ends[depth]
    return CutCost(depth, *ends, tuple(q.shape[1:]), flops // batch, saved)


def _measured(module: nn.Module, parameters: dict[str, Tensor], args: tuple[Any, ...]) -> tuple[Tensor, int, int]:
    """What a module puts out, FLOPs forward and backward, and bytes saved in between, parameters left out."""
    views = {n: p.detach().clone().requires_grad_() for n, p in parameters.items()}
    saved: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        if t.data_ptr() not in {v.data_ptr() for v in views.values()}:
            saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            out: Tensor = functional_call(module, views, args)
        out.sum().backward()  # type: ignore[no-untyped-call]
    return out, counter.get_total_flops(), sum(saved.values())


def has_norm(model: SplitModel) -> bool:
    """Does it normalise what its layers put out? (A LayerNorm before a layer does not.)"""
    return any(isinstance(m, StaticBN | nn.GroupNorm) for m in model.modules())


def has_batch_norm(model: SplitModel) -> bool:
    """Does a sample's smashed data depend on the rest of its batch, at any cut? The stage of a narrow cut counts."""
    return any(isinstance(m, StaticBN) for part in (model.blocks, model.narrow) for m in part.modules())


def check_forward(model: SplitModel, input_shape: tuple[int, ...], classes: int, name: str) -> None:
    """PmsflError where a model cannot run on such samples, or gives anything but one logit per class."""
    parameter = next(model.parameters(), None)
    if parameter is None or not model.layout.masked:
        raise PmsflError(f"{name}: no convolution or linear layer in its blocks, so nothing can be masked")
    x = torch.zeros(2, *input_shape, dtype=parameter.dtype, device=parameter.device)
    try:
        with torch.no_grad():
            logits = model(x)
    except Exception as e:  # a user's module may fail in any way; what it says is what the user needs
        raise PmsflError(f"{name} fails on an input of shape {tuple(x.shape)}: {type(e).__name__}: {e}") from None
    if tuple(logits.shape) != (2, classes):
        raise PmsflError(f"{name}: output of shape {tuple(logits.shape)}, expected (2, {classes}): one logit per class")


def smashed_shape(model: SplitModel, input_shape: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """The shape of one sample's smashed data at a cut."""
    parameter = next(model.parameters())
    x = torch.zeros(2, *input_shape, dtype=parameter.dtype, device=parameter.device)
    with torch.no_grad():
        return tuple(model(x, 0, depth).shape[1:])


def why_not_vectorised(model: SplitModel, input_shape: tuple[int, ...], depth: int) -> str | None:
    """None if vmap over two bottoms gives what a loop gives, gradients included; otherwise the reason.

    In double precision on a copy: rounding must not be mistaken for another result, nor a trial for training.
    """
    try:
        trial = copy.deepcopy(model).cpu().double().train()
        before = {n: b.clone() for n, b in trial.named_buffers()}
        looped = _trial_gradients(trial, input_shape, depth, vectorised=False)
        fast = _trial_gradients(trial, input_shape, depth, vectorised=True)
    except Exception as e:  # a user's module may fail in any way under vmap; the reason is what we want
        return f"{type(e).__name__}: {(str(e).strip().splitlines() or ['no message'])[0]}"
    if any(not torch.equal(b, before[n]) for n, b in trial.named_buffers()):
        return "a block changes a buffer of its own in forward; clients would share that state"
    # One scale for all gradients: a bias before a norm has none but rounding noise, which may well differ.
    scales = [looped[0].abs().max(), *[max(g.abs().max() for g in looped[1:])] * (len(looped) - 1)]
    for a, b, scale in zip(looped, fast, scales, strict=True):
        if not torch.isfinite(b).all() or (a - b).abs().max() > 1e-6 * scale.clamp_min(1e-9):
            return "vmap gives other numbers than a loop (does a block keep state between calls?)"
    return None


def _trial_gradients(model: SplitModel, input_shape: tuple[int, ...], depth: int, vectorised: bool) -> list[Tensor]:
    """Smashed data of two bottoms on four random samples each, and the gradients of their mean square."""
    stacked = {n: torch.stack([p.detach(), p.detach() * 1.5]) for n, p in _bottom(model, depth).items()}
    leaves = {n: v.requires_grad_() for n, v in stacked.items()}
    x = normal(root(0, Stream.CONTROL), 8 * math.prod(input_shape)).reshape(2, 4, *input_shape)

    def one(views: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(model, views, (x, 0, depth))
        return out

    if vectorised:
        q = vmap(one)(leaves, x)
    else:
        q = torch.stack([one({n: v[i] for n, v in leaves.items()}, x[i]) for i in range(2)])
    used = torch.autograd.grad((q * q).mean(), list(leaves.values()), allow_unused=True)
    return [q.detach(), *(g for g in used if g is not None)]


def _bottom(model: SplitModel, depth: int) -> dict[str, Tensor]:
    """The parameters that a bottom's forward pass may use, by name."""
    slots = (*model.layout.masked, *model.layout.plain)
    mine = {s.name for s in slots if s.block < depth and not s.is_classifier and not s.is_guard}
    return {n: p for n, p in model.named_parameters() if n in mine}
