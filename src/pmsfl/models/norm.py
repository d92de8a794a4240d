"""Static batch normalisation: batch statistics in training, none tracked; before evaluation one pass over
training data fills `running_mean` and `running_var` (see engine/evaluate.py).

State names equal nn.BatchNorm2d's, so an exported model loads into an ordinary one.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pmsfl.models.beside import side_by_side
from pmsfl.models.context import current, explicit
from pmsfl.models.conv import GroupNorm
from pmsfl.models.normalise import HALF, normalise, normalise_whole


class StaticBN(nn.Module):
    """Batch normalisation over all axes but the second. Input [B, C, ...], output the same shape."""

    any_layout = True
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.features = features
        self.eps = eps
        self.name = ""  # its path in the model, given by SplitModel: the key of its statistics
        if affine:
            self.weight = nn.Parameter(torch.ones(features))
            self.bias = nn.Parameter(torch.zeros(features))
        else:
            self.register_parameter("weight", None)
            self.register_parameter("bias", None)
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def extra_repr(self) -> str:
        return f"{self.features}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        context = current()
        if context.whole is not None and self.training:
            rows = None if context.row_weights is None else context.row_weights[: x.shape[0]]
            return normalise_whole(x, self.weight, self.bias, rows, self.eps, context.whole)
        if x.dtype in HALF and not explicit():
            return self._in_half(x)
        if context.row_weights is not None:
            return self._weighted(x)
        if context.sums is not None:
            axes = (0, *range(2, x.ndim))
            variance, mean = torch.var_mean(x, axes, correction=0)
            count = mean.new_full((), x.numel() // x.shape[1])
            context.sums[self.name] = (count, mean, variance * count)
        if self.training:
            return side_by_side(self._by_batch, x, self.weight, self.bias)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    def _by_batch(self, clients: int, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if explicit():
            return normalise(x, weight, bias, None, self.eps, current().batch)
        return F.batch_norm(x, None, None, weight, bias, True, 0.0, self.eps)

    def _in_half(self, x: Tensor) -> Tensor:
        """The same for half-precision numbers, whose sums are taken in single precision."""
        context = current()
        mean, variance = self.running_mean, self.running_var
        if context.row_weights is not None or context.sums is not None:
            rows = None if context.row_weights is None else context.row_weights[: x.shape[0]]
            if x.requires_grad and rows is not None:  # F.batch_norm takes the moments it is given for constants
                return normalise(x, self.weight, self.bias, rows, self.eps)
            count, mean, variance = side_by_side(self._moments, x, rows).unbind()
            if context.sums is not None:
                context.sums[self.name] = (count[0], mean, variance * count)
        elif self.training:
            return side_by_side(self._by_batch, x, self.weight, self.bias)
        return side_by_side(self._by_moments, x, mean, variance, self.weight, self.bias)

    def _moments(self, clients: int, x: Tensor, rows: Tensor | None) -> Tensor:
        """Count, mean and variance of every channel [3, K·C] of x [B, K·C, ...]; rows: weights [K·B]."""
        channels, places = x.shape[1] // clients, math.prod(x.shape[2:])
        count = torch.full((x.shape[1],), float(len(x) * places), device=x.device)
        if rows is not None:
            each = rows.reshape(clients, -1).t().float()
            x = x * each.repeat_interleave(channels, 1).reshape(len(x), -1, *(1,) * (x.ndim - 2)).to(x.dtype)
            count = (each.sum(0) * places).repeat_interleave(channels)
        axes, n = (0, *range(2, x.ndim)), count.clamp_min(1.0)
        mean = x.sum(axes, dtype=torch.float32) / n
        squares = torch.linalg.vector_norm(x, 2, axes, dtype=torch.float32).square()
        return torch.stack((count, mean, (squares / n - mean * mean).clamp_min(0.0)))

    def _by_moments(
        self, clients: int, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, self.eps)

    def _weighted(self, x: Tensor) -> Tensor:
        """Batch statistics over the rows that count, left in the context's sums if it collects them."""
        context = current()
        assert context.row_weights is not None
        if explicit() and context.sums is None:
            rows = context.row_weights[: x.shape[0]]
            return normalise(x, self.weight, self.bias, rows, self.eps, context.batch)
        axes = (0, *range(2, x.ndim))
        along = (1, -1, *(1,) * (x.ndim - 2))
        places = x[0, 0].numel()
        weights = context.row_weights[: x.shape[0]].to(x.dtype)  # rows of deeper cuts join later
        rows = weights.reshape(-1, *(1,) * (x.ndim - 1))
        count = weights.sum() * places
        mean = (x * rows).sum(axes) / count.clamp_min(1.0)
        centred = x - mean.reshape(along)
        squares = (centred * centred * rows).sum(axes)
        if context.sums is not None:
            context.sums[self.name] = (count, mean, squares)
        scale = torch.rsqrt(squares / count.clamp_min(1.0) + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        out = centred * scale.reshape(along)
        return out if self.bias is None else out + self.bias.reshape(along)


def convert_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every nn.BatchNorm in `module` by a StaticBN with the same affine; returns the module."""
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        static = StaticBN(module.num_features, module.eps, module.affine)
        if module.affine:
            static.weight.data.copy_(module.weight.data)
            static.bias.data.copy_(module.bias.data)
        return static
    for name, child in module.named_children():
        setattr(module, name, convert_batch_norm(child))
    return module


def replace_by_group_norm(module: nn.Module) -> None:
    """Replace every StaticBN inside `module` by a GroupNorm of as many groups as divide its channels, at most 32."""
    for name, child in module.named_children():
        if isinstance(child, StaticBN):
            groups = next(g for g in (32, 16, 8, 4, 2, 1) if child.features % g == 0)
            setattr(module, name, GroupNorm(groups, child.features, child.eps))
        else:
            replace_by_group_norm(child)
