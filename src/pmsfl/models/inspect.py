"""What a model costs and whether it can be vectorised: FLOPs, memory and bytes of every cut."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils.flop_counter import FlopCounterMode

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
    """The cost of one cut, measured by running the bottom on zeros."""
    parameter = next(model.parameters())
    views = {n: p.detach().clone().requires_grad_() for n, p in _bottom(model, depth).items()}
    x = torch.zeros(batch, *input_shape, dtype=parameter.dtype, device=parameter.device)
    saved: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        if t.data_ptr() not in {v.data_ptr() for v in views.values()}:
            saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    was_training = model.training
    model.train()
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            q = functional_call(model, views, (x, 0, depth))
        q.sum().backward()
    model.train(was_training)
    return CutCost(
        depth,
        model.layout.masked_ends[depth],
        model.layout.plain_ends[depth],
        tuple(q.shape[1:]),
        counter.get_total_flops() // batch,
        sum(saved.values()),
    )


def smashed_shape(model: SplitModel, input_shape: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """The shape of one sample's smashed data at a cut."""
    parameter = next(model.parameters())
    x = torch.zeros(2, *input_shape, dtype=parameter.dtype, device=parameter.device)
    with torch.no_grad():
        return tuple(model(x, 0, depth).shape[1:])


def why_not_vectorised(model: SplitModel, input_shape: tuple[int, ...], depth: int) -> str | None:
    """None if vmap over two bottoms gives what a loop gives, gradients included; otherwise the reason."""
    views = {n: torch.stack([p.detach(), p.detach() * 1.5]) for n, p in _bottom(model, depth).items()}
    parameter = next(model.parameters())
    size = 2 * 4 * torch.Size(input_shape).numel()
    ramp = torch.linspace(-1, 1, size, dtype=parameter.dtype, device=parameter.device)
    x = torch.sin(50.0 * ramp).reshape(2, 4, *input_shape)

    def one(views: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(model, views, (x, 0, depth))
        return out

    def gradients(vectorised: bool) -> list[Tensor]:
        leaves = {n: v.clone().requires_grad_() for n, v in views.items()}
        if vectorised:
            q = vmap(one)(leaves, x)
        else:
            q = torch.stack([one({n: v[i] for n, v in leaves.items()}, x[i]) for i in range(2)])
        used = torch.autograd.grad((q * q).mean(), list(leaves.values()), allow_unused=True)
        return [q.detach(), *(g for g in used if g is not None)]

    was_training = model.training
    model.train()
    try:
        looped = gradients(False)
        fast = gradients(True)
    except Exception as e:  # a user's module may fail in any way under vmap; the reason is what we want
        return f"{type(e).__name__}: {str(e).strip().splitlines()[0]}"
    finally:
        model.train(was_training)
    # One scale for all gradients: a bias before a norm has none but rounding noise, which may well differ.
    scales = [looped[0].abs().max(), *[max(g.abs().max() for g in looped[1:])] * (len(looped) - 1)]
    for a, b, scale in zip(looped, fast, scales, strict=True):
        if not torch.isfinite(b).all() or (a - b).abs().max() > 1e-3 * scale.clamp_min(1e-6):
            return "vmap gives other numbers than a loop (does a block keep state between calls?)"
    return None


def _bottom(model: SplitModel, depth: int) -> dict[str, Tensor]:
    return {n: p for n, p in model.named_parameters() if n.split(".")[0] == "blocks" and int(n.split(".")[1]) < depth}
