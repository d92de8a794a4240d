"""Batch normalisation spelled out, for a compiler or for a batch that several processes share: one pass for the sums,
one for the result, forward and backward.

Autograd, left to itself, would differentiate through mean and variance one operation at a time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pmsfl.models.context import WholeBatch

HALF = (torch.bfloat16, torch.float16)


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Tensor | None, eps: float, batch: int | None = None
) -> Tensor:
    """x [B, C, ...] normalised over all axes but the second.

    rows [B]: what each row counts for, None: 1. batch: where the number of rows is a symbol, sums are taken over so
    many rows first: a compiler makes better loops of numbers it knows.
    """
    out: Tensor = _Normalise.apply(x, weight, bias, rows, eps, batch)[0]  # type: ignore[no-untyped-call]
    return out


def normalise_whole(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Tensor | None, eps: float, whole: WholeBatch
) -> Tensor:
    """The same over the rows of all processes, of which x are some. Every process must call it, in the same order."""
    out: Tensor = _NormaliseWhole.apply(x, weight, bias, rows, eps, whole)[0]  # type: ignore[no-untyped-call]
    return out


def _sum(x: Tensor, batch: int | None) -> Tensor:
    """Over all axes but the second."""
    if batch is None or type(x.shape[0]) is int:
        return x.sum((0, *range(2, x.ndim)))
    parts = x.reshape(-1, batch, *x.shape[1:])
    return parts.sum((1, *range(3, parts.ndim))).sum(0)


def _along(x: Tensor) -> tuple[int, ...]:
    return (1, -1, *(1,) * (x.ndim - 2))


def _wide(x: Tensor) -> Tensor:
    """Sums of half-precision numbers are taken in single precision."""
    return x.float() if x.dtype in HALF else x


def _weights(x: Tensor, rows: Tensor | None) -> tuple[Tensor | None, Tensor | float]:
    """What each row counts for, shaped like x, and how many numbers a mean is over."""
    places = math.prod(x.shape[2:])
    if rows is None:
        return None, x.shape[0] * places
    return rows.reshape(-1, *(1,) * (x.ndim - 1)), (rows.sum() * places).clamp_min(1.0)


def _settled(channels: Tensor) -> Tensor:
    """One number per channel, in memory. A compiler would work it out anew for every pixel; striding stops it."""
    return channels.as_strided(channels.shape, channels.stride())


class _Normalise(Function):
    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Tensor | None, eps: float, batch: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide, along = _wide(x), _along(x)
        each, n = _weights(x, rows)
        counted = wide if each is None else wide * each
        mean = _sum(counted, batch) / n
        if x.dtype in HALF:
            # One pass. What cancels here is far below the rounding of the numbers themselves.
            variance = (_sum(counted * wide, batch) / n - mean * mean).clamp_min(0.0)
        else:
            centred = wide - mean.reshape(along)
            squares = centred * centred
            variance = _sum(squares if each is None else squares * each, batch) / n
        scale = torch.rsqrt(variance + eps)
        factor = scale if weight is None else scale * weight
        shift = -mean * factor if bias is None else bias - mean * factor
        out = wide * _settled(factor).reshape(along) + _settled(shift).reshape(along)
        return out.to(x.dtype), mean, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, rows, _, ctx.batch = inputs
        _, mean, scale = output
        ctx.mark_non_differentiable(mean, scale)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, rows, mean, scale)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None, None, None, None, None
        x, weight, rows, mean, scale = ctx.saved_tensors
        along = _along(x)
        each, n = _weights(x, rows)
        g, wide = _wide(gradient), _wide(x)
        total = _sum(g, ctx.batch)
        product = _sum(g * (wide - _settled(mean).reshape(along)), ctx.batch) * scale
        factor = scale if weight is None else scale * weight
        # dL/dx = factor · (g − rows · (total + normal · product) / n), normal = (x − mean) · scale
        slope = factor * product * scale / n
        level = factor * total / n - slope * mean
        common = wide * _settled(slope).reshape(along) + _settled(level).reshape(along)
        inner = g * _settled(factor).reshape(along) - (common if each is None else common * each)
        return _by_inputs(ctx, x, weight, mean, inner, product, total)


def _by_inputs(
    ctx: Any, x: Tensor, weight: Tensor | None, mean: Tensor, inner: Tensor, product: Tensor, total: Tensor
) -> tuple[Tensor | None, ...]:
    """What a backward returns: derivatives by x, weight and bias in their own types, nothing for the other inputs."""
    by_weight = None if weight is None else product.to(weight.dtype)
    by_bias = total.to(mean.dtype if weight is None else weight.dtype) if ctx.has_bias else None
    return inner.to(x.dtype), by_weight, by_bias, None, None, None


class _NormaliseWhole(Function):
    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Tensor | None, eps: float, whole: WholeBatch
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide, along = _wide(x), _along(x)
        n, mean, scale = _whole_moments(wide, rows, eps, whole)
        out = (wide - mean.reshape(along)) * scale.reshape(along)
        if weight is not None:
            out = out * weight.reshape(along)
        if bias is not None:
            out = out + bias.reshape(along)
        return out.to(x.dtype), n, mean, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, rows, _, ctx.whole = inputs
        _, n, mean, scale = output
        ctx.mark_non_differentiable(n, mean, scale)
        ctx.save_for_backward(x, weight, rows, n, mean, scale)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, rows, n, mean, scale = ctx.saved_tensors
        along, g = _along(x), _wide(gradient)
        normal = (_wide(x) - mean.reshape(along)) * scale.reshape(along)
        total, product = _sum(g, None), _sum(g * normal, None)
        all_total, all_product = ctx.whole.total(torch.stack((total, product))).unbind()
        common = (all_total.reshape(along) + normal * all_product.reshape(along)) / n
        each = _weights(x, rows)[0]
        factor = scale if weight is None else scale * weight
        inner = (g - (common if each is None else common * each)) * factor.reshape(along)
        # weight and bias get this process's share: the server adds up the shares of all its gradients at once
        return _by_inputs(ctx, x, weight, mean, inner, product, total)


def _whole_moments(x: Tensor, rows: Tensor | None, eps: float, whole: WholeBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Count [], mean and 1/deviation [C] of all processes' rows, from each one's count, mean and squares (Chan)."""
    along = _along(x)
    each = _weights(x, rows)[0]
    places = math.prod(x.shape[2:])
    count = x.new_tensor(float(x.shape[0])) if rows is None else rows.sum().to(x.dtype)
    mean = _sum(x if each is None else x * each, None) / (count * places).clamp_min(1.0)
    centred = x - mean.reshape(along)
    squares = centred * centred
    squares = _sum(squares if each is None else squares * each, None)
    counts, means, all_squares = whole.gather(torch.stack(((count * places).expand_as(mean), mean, squares))).unbind(1)
    n = counts[:, 0].sum()
    mean = (counts * means).sum(0) / n
    variance = (all_squares + counts * (means - mean).square()).sum(0) / n
    return n, mean, torch.rsqrt(variance + eps)
