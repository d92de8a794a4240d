"""K clients' convolutions for a compiler, with a symbol for K.

`grouped` is one operation that the compiler leaves alone: torch's own needs its number of groups as a constant.
`columns` is a batched matrix product over unfolded pixels, which the compiler fuses with what stands around it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_OF_A_PRODUCT = 1024  # a long sum over pixels is cut into products of so many, or one GPU core would do it all


def better_as_columns(weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...]) -> bool:
    """Is a batched product faster than cuDNN's grouped kernels? weight: [K·O, C, kh, kw].

    Measured on an H200, bf16, 32 samples of each client: cuDNN takes groups one by one with 3 input channels
    (ten clients: 110 + 197 µs forward and for weights), with 1×1 (117 + 163 + 241), with stride 2 (five clients,
    128 → 256 channels: 29 + 51 + 102, the products alone 12 + 17 + 12), and with 512 channels (52 + 48 + 52 against
    22 + 25 + 26). With 256 it cuts activations into slices; a whole step of clients at four depths gains 4 % by
    products from there on.
    """
    channels, *square = weight.shape[1:]
    narrow = channels < 8 or channels >= 256 or max(stride) > 1
    return weight.is_cuda and max(dilation) == 1 and (square == [1, 1] or narrow)


def columns(x: Tensor, weight: Tensor, stride: tuple[int, ...], padding: tuple[int, ...], clients: int) -> Tensor:
    """x [B, K·C, H, W], weight [K·O, C, kh, kw] → [B, K·O, H', W'] by products of pixels and weights."""
    b, _, h, w = x.shape
    kh, kw = weight.shape[2:]
    pixels = x.reshape(b, clients, -1, h, w).permute(1, 0, 3, 4, 2)  # [K, B, H, W, C]
    if max(padding):
        pixels = F.pad(pixels, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    rows, places = (h + 2 * padding[0] - kh) // stride[0] + 1, (w + 2 * padding[1] - kw) // stride[1] + 1
    taps = [
        pixels[:, :, i : i + stride[0] * (rows - 1) + 1 : stride[0], j : j + stride[1] * (places - 1) + 1 : stride[1]]
        for i in range(kh)
        for j in range(kw)
    ]
    matrix = weight.reshape(clients, -1, *weight.shape[1:]).permute(0, 1, 3, 4, 2).flatten(2)  # [K, O, kh·kw·C]
    unfolded = taps[0] if len(taps) == 1 else torch.cat(taps, -1)
    short = -unfolded.shape[-1] % 8  # tensor cores load 16 bytes at once
    if short:
        unfolded, matrix = F.pad(unfolded, (0, short)), F.pad(matrix, (0, short))
    size = b * rows * places
    parts = size // math.gcd(size, ROWS_OF_A_PRODUCT)
    many = matrix.unsqueeze(1).expand(-1, parts, -1, -1).flatten(0, 1)
    out: Tensor = _Product.apply(unfolded.reshape(clients * parts, size // parts, -1), many)  # type: ignore[no-untyped-call]
    last = out.reshape(clients, b, rows, places, -1).permute(1, 2, 3, 0, 4)
    return last.reshape(b, rows, places, -1).permute(0, 3, 1, 2)


class _Product(torch.autograd.Function):
    """Rows [N, m, n] times weights [N, O, n] → [N, m, O]. Torch's own derivative by the weights would come transposed,
    and the optimiser would read it element by element."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights)
        return torch.bmm(rows, weights.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weights = ctx.saved_tensors
        by_rows = torch.bmm(gradient, weights) if ctx.needs_input_grad[0] else None
        by_weights = torch.bmm(gradient.transpose(1, 2), rows) if ctx.needs_input_grad[1] else None
        return by_rows, by_weights


@torch.library.custom_op("pmsfl::grouped", mutates_args=())
def grouped(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], clients: int
) -> Tensor:
    """x [B, K·C, H, W], weight [K·O, C, kh, kw] → [B, K·O, H', W'], channels-last."""
    return channels_last(F.conv2d(channels_last(x), channels_last(weight), None, stride, padding, dilation, clients))


@grouped.register_fake
def _(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], clients: int) -> Tensor:
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    ]
    return _empty(x, (x.shape[0], weight.shape[0], *sizes))


@torch.library.custom_op("pmsfl::grouped_backward", mutates_args=())
def grouped_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    clients: int,
    inputs: bool,
) -> Tensor:
    """dL/dx [B, K·C, H, W], channels-last, or dL/dweight [K·O, C, kh, kw], contiguous."""
    wanted = [inputs, not inputs, False]
    both = torch.ops.aten.convolution_backward(
        channels_last(gradient),
        channels_last(x),
        channels_last(weight),
        None,
        stride,
        padding,
        dilation,
        False,
        [0, 0],
        clients,
        wanted,
    )
    out: Tensor = channels_last(both[0]) if inputs else both[1].contiguous()
    return out


@grouped_backward.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    clients: int,
    inputs: bool,
) -> Tensor:
    return _empty(x, tuple(x.shape)) if inputs else weight.new_empty(weight.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *ctx.how = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    gradient = channels_last(gradient)
    both = [
        grouped_backward(gradient, x, weight, *ctx.how, inputs) if needed else None
        for inputs, needed in ((True, ctx.needs_input_grad[0]), (False, ctx.needs_input_grad[1]))
    ]
    return *both, None, None, None, None


grouped.register_autograd(_differentiate, setup_context=_save)


def channels_last(t: Tensor) -> Tensor:
    """t [B, C, H, W] with its channels last in memory."""
    return t.contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, shape: tuple[Any, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
