"""Batch normalisation spelled out for a compiler: one pass for the sums, one for the result, forward and backward.

Autograd, left to itself, would differentiate through mean and variance one operation at a time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Tensor | None, eps: float, batch: int | None = None
) -> Tensor:
    """x [B, C, ...] normalised over all axes but the second.

    rows [B]: what each row counts for, None: 1. batch: where the number of rows is a symbol, sums are taken over so
    many rows first: a compiler makes better loops of numbers it knows.
    """
    out: Tensor = _Normalise.apply(x, weight, bias, rows, eps, batch)[0]  # type: ignore[no-untyped-call]
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
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


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
        if x.dtype in (torch.bfloat16, torch.float16):
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
        return (
            inner.to(x.dtype),
            None if weight is None else product.to(weight.dtype),
            total.to(mean.dtype if weight is None else weight.dtype) if ctx.has_bias else None,
            None,
            None,
            None,
        )
