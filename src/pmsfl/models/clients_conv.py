"""K clients' convolutions as one operation that a compiler leaves alone, so that K may stay a symbol in it.

Channels-last. Where cuDNN has a good grouped kernel it is used; the shapes it handles one group at a time are
brought into a form it likes, or into a batched matrix product (measured on an H200; see `how`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

How = Literal["grouped", "wider", "matrices", "folded"]
LEAST_CHANNELS = 8  # 16 bytes of bf16: what tensor cores load at once


def how(weight: Tensor, stride: list[int], padding: list[int], dilation: list[int]) -> How:
    """How to run a convolution whose weight is [K·O, C, kh, kw], one group per client."""
    square = tuple(weight.shape[2:])
    if list(dilation) != [1, 1] or not weight.is_cuda or weight.dtype == torch.float64:
        return "grouped"
    if square == (1, 1) and list(padding) == [0, 0]:
        return "matrices"
    if weight.shape[1] < LEAST_CHANNELS and list(stride) == [1, 1]:
        return "wider"
    if square == (3, 3) and list(stride) == [2, 2] and list(padding) == [1, 1]:
        return "folded"
    return "grouped"


@torch.library.custom_op("pmsfl::clients_conv", mutates_args=())
def clients_conv(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], clients: int
) -> Tensor:
    """x [B, K·C, H, W], weight [K·O, C, kh, kw] → [B, K·O, H', W'], channels-last."""
    x = _last(x)
    match how(weight, stride, padding, dilation):
        case "matrices":
            return _product(_pixels(x[:, :, :: stride[0], :: stride[1]], clients), weight, clients)
        case "wider":
            out = F.conv2d(_wider(x, clients), _last(_padded(weight)), None, stride, padding, dilation, clients)
        case "folded":
            out = F.conv2d(_folded(x, clients), _last(_folded_weight(weight)), None, 1, 0, 1, clients)
        case "grouped":
            out = F.conv2d(x, _last(weight), None, stride, padding, dilation, clients)
    return _last(out)


@clients_conv.register_fake
def _(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], clients: int) -> Tensor:
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    ]
    return _empty(x, (x.shape[0], weight.shape[0], *sizes))


@torch.library.custom_op("pmsfl::clients_conv_inputs", mutates_args=())
def clients_conv_inputs(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    clients: int,
) -> Tensor:
    """dL/dx [B, K·C, H, W], channels-last."""
    g = _last(gradient)
    match how(weight, stride, padding, dilation):
        case "matrices":
            o, c = weight.shape[0] // clients, weight.shape[1]
            small = _product(_pixels(g, clients), weight.reshape(clients, o, c).transpose(1, 2), clients)
            if list(stride) == [1, 1]:
                return small
            out = _empty(x, tuple(x.shape)).zero_()
            out[:, :, :: stride[0], :: stride[1]] = small
            return out
        case "folded":
            f = _folded(x, clients)
            d = _backward(g, f, _folded_weight(weight), [1, 1], [0, 0], [1, 1], clients, inputs=True)
            return _unfolded(d, clients, x)
        case _:
            return _last(_backward(g, _last(x), weight, stride, padding, dilation, clients, inputs=True))


@clients_conv_inputs.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    clients: int,
) -> Tensor:
    return _empty(x, tuple(x.shape))


@torch.library.custom_op("pmsfl::clients_conv_weights", mutates_args=())
def clients_conv_weights(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    clients: int,
) -> Tensor:
    """dL/dweight [K·O, C, kh, kw], contiguous."""
    g, x, c = _last(gradient), _last(x), weight.shape[1]
    match how(weight, stride, padding, dilation):
        case "wider":
            wide = _backward(g, _wider(x, clients), _padded(weight), stride, padding, dilation, clients, inputs=False)
            return wide[:, :c].contiguous()
        case "folded":
            d = _backward(g, _folded(x, clients), _folded_weight(weight), [1, 1], [0, 0], [1, 1], clients, inputs=False)
            return _unfolded_weight(d, c)
        case "matrices":
            x = _last(x[:, :, :: stride[0], :: stride[1]])
            return _backward(g, x, weight, [1, 1], [0, 0], [1, 1], clients, inputs=False).contiguous()
        case "grouped":
            return _backward(g, x, weight, stride, padding, dilation, clients, inputs=False).contiguous()


@clients_conv_weights.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    clients: int,
) -> Tensor:
    return weight.new_empty(weight.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *ctx.how = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    inputs = clients_conv_inputs(gradient, x, weight, *ctx.how) if ctx.needs_input_grad[0] else None
    weights = clients_conv_weights(gradient, x, weight, *ctx.how) if ctx.needs_input_grad[1] else None
    return inputs, weights, None, None, None, None


clients_conv.register_autograd(_differentiate, setup_context=_save)


# --- forms that cuDNN likes


def _last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, shape: tuple[Any, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    inputs: bool,
) -> Tensor:
    wanted = [inputs, not inputs, False]
    both = torch.ops.aten.convolution_backward(
        g, x, _last(weight), None, stride, padding, dilation, False, [0, 0], groups, wanted
    )
    out: Tensor = both[0] if inputs else both[1]
    return out


def _pixels(x: Tensor, clients: int) -> Tensor:
    """[B, K·C, H, W] → [B, H, W, K, C]."""
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], x.shape[2], x.shape[3], clients, -1)


def _product(pixels: Tensor, weight: Tensor, clients: int) -> Tensor:
    """Every pixel times its client's matrix: [B, H, W, K, C] and [K·O, C, 1, 1] or [K, O, C] → [B, K·O, H, W]."""
    b, h, w, _, c = pixels.shape
    matrices = weight.reshape(clients, -1, c)
    out = pixels.new_empty(b * h * w, clients, matrices.shape[1])
    torch.bmm(pixels.reshape(-1, clients, c).transpose(0, 1), matrices.transpose(1, 2), out=out.transpose(0, 1))
    return out.reshape(b, h, w, -1).permute(0, 3, 1, 2)


def _padded(weight: Tensor) -> Tensor:
    return F.pad(weight, (0, 0, 0, 0, 0, LEAST_CHANNELS - weight.shape[1]))


def _wider(x: Tensor, clients: int) -> Tensor:
    """Zeros in the place of missing channels, client by client."""
    pixels = _pixels(x, clients)
    wide = F.pad(pixels, (0, LEAST_CHANNELS - pixels.shape[-1]))
    return wide.flatten(3).permute(0, 3, 1, 2)


def _folded(x: Tensor, clients: int) -> Tensor:
    """Stride 2 as stride 1: each 2×2 of pixels becomes one with four times the channels. → [B, K·4C, ⌈H/2⌉+1, …]."""
    b, _, h, w = x.shape
    pixels = F.pad(_pixels(x, clients), (0, 0, 0, 0, 1, 1 + w % 2, 1, 1 + h % 2))
    rows, columns = pixels.shape[1] // 2, pixels.shape[2] // 2
    four = pixels.reshape(b, rows, 2, columns, 2, clients, -1).permute(0, 1, 3, 5, 2, 4, 6)
    return four.reshape(b, rows, columns, -1).permute(0, 3, 1, 2)


def _unfolded(d: Tensor, clients: int, like: Tensor) -> Tensor:
    """The inverse of `_folded` on gradients."""
    b, _, h, w = like.shape
    rows, columns = d.shape[2:]
    four = d.permute(0, 2, 3, 1).reshape(b, rows, columns, clients, 2, 2, -1).permute(0, 1, 4, 2, 5, 3, 6)
    pixels = four.reshape(b, rows * 2, columns * 2, -1)[:, 1 : 1 + h, 1 : 1 + w]
    return pixels.contiguous().permute(0, 3, 1, 2)


def _folded_weight(weight: Tensor) -> Tensor:
    """[K·O, C, 3, 3] → [K·O, 4C, 2, 2]: the taps at an even or odd place of a 4×4 kernel whose last ones are 0."""
    o, c = weight.shape[:2]
    taps = F.pad(weight, (0, 1, 0, 1)).reshape(o, c, 2, 2, 2, 2)
    return taps.permute(0, 3, 5, 1, 2, 4).reshape(o, 4 * c, 2, 2)


def _unfolded_weight(d: Tensor, channels: int) -> Tensor:
    taps = d.reshape(d.shape[0], 2, 2, channels, 2, 2).permute(0, 3, 4, 1, 5, 2)
    return taps.reshape(d.shape[0], channels, 4, 4)[:, :, :3, :3].contiguous()
