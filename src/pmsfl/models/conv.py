"""Convolutions and pooling for many clients at once.

Under vmap K clients' convolutions are one grouped convolution; on a CPU its input is laid out channels-last, so that
the channels of all clients of a pixel are neighbours and everything up to the next layer stays that way.
State names equal nn.Conv2d's, so an exported model loads into an ordinary one.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor

from pmsfl.models.beside import side_by_side
from pmsfl.models.clients_conv import better_as_columns, channels_last, columns, grouped
from pmsfl.models.context import explicit

Strategy = Literal["grouped", "grouped channels-last"]
WIDEST_CHANNELS_LAST = 128


def strategy(device: torch.device, dtype: torch.dtype, channels: int) -> Strategy:
    """How to convolve on a device. channels: of one group's input, that is, of one client's.

    Measured in CPU time of one AVX-512 thread, forward and backward of 4 to 8 clients, 1×1 to 5×5 kernels, stride 1
    and 2, as speed against a loop over clients, inputs in the layout each wants: grouped channels-last 1.2 to 2.2 up to
    64 channels (about 3 for 1×1 with a stride), 1.0 at 128, 0.85 at 256; grouped contiguous 0.55 to 1.3, 1.0 at 128
    and 256; unfolding and a batched matrix product 0.1 to 0.7 but for first layers and 1×1, where channels-last is
    ahead as well. So nothing is looped over or unfolded. Double precision was not measured: oneDNN does not do it.
    """
    if device.type == "cuda":  # tensor cores take half precision channels-last; cuDNN would copy there and back
        return "grouped channels-last" if torch.is_autocast_enabled("cuda") else "grouped"
    narrow = channels <= WIDEST_CHANNELS_LAST
    return "grouped channels-last" if device.type == "cpu" and dtype == torch.float32 and narrow else "grouped"


class Conv2d(nn.Conv2d):
    """nn.Conv2d with zeros for padding, fast under vmap. [B, C, H, W] → [B, O, H', W']."""

    neighbours_follow = False  # does every layer of the model take channels-last, under vmap too?

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:  # one sample without a batch
            return super().forward(x)
        return side_by_side(self._convolve, x, self.weight, self.bias)

    def _convolve(self, clients: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if explicit() and not isinstance(self.padding, str):
            return self._spelled_out(clients, x, weight, bias)
        if self.neighbours_follow and not is_batchedtensor(x):  # vmap itself has no rule for memory formats
            last = strategy(x.device, x.dtype, weight.shape[1]) == "grouped channels-last"
            x = x.contiguous(memory_format=torch.channels_last) if last else x
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups * clients)

    def _spelled_out(self, clients: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """For a compiler: all in one layout, and the number of clients may be a symbol."""
        if torch.is_autocast_enabled(x.device.type):
            half = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(half), weight.to(half)
        assert not isinstance(self.padding, str)
        if type(clients) is not int and self.groups == 1 and better_as_columns(weight, self.stride, self.dilation):
            out = columns(x, weight, self.stride, self.padding, clients)
        elif type(clients) is not int:
            where = (self.stride, self.padding, self.dilation)
            out = grouped(channels_last(x), channels_last(weight), *where, clients * self.groups)
        else:
            x, weight = channels_last(x), channels_last(weight)
            out = F.conv2d(x, weight, None, self.stride, self.padding, self.dilation, self.groups * clients)
        return out if bias is None else out + bias.to(out.dtype).reshape(-1, 1, 1)


class AvgPool2d(nn.AvgPool2d):
    """nn.AvgPool2d without vmap's copy of its input. [B, C, H, W] → [B, C, H', W']."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            return super().forward(x)
        return side_by_side(self._pool, x, mixes_rows=False)

    def _pool(self, clients: int, x: Tensor) -> Tensor:
        return F.avg_pool2d(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


def mean_over_pixels(x: Tensor) -> Tensor:
    """[B, C, H, W] → [B, C]. The gradient comes in the layout of the convolution before it."""
    if strategy(x.device, x.dtype, 1) == "grouped channels-last":
        return x.movedim(1, -1).mean((1, 2))
    return x.mean((2, 3))


class GroupNorm(nn.GroupNorm):
    """nn.GroupNorm that takes any layout under vmap. [B, C, ...] → [B, C, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        return side_by_side(self._by_group, x, self.weight, self.bias)

    def _by_group(self, clients: int, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if not explicit():
            return F.group_norm(x, self.num_groups * clients, weight, bias, self.eps)
        grouped = x.reshape(x.shape[0], self.num_groups * clients, -1)
        out = _standardised(grouped, (2,), self.eps).reshape(x.shape)
        along = (1, -1, *(1,) * (x.ndim - 2))
        out = out if weight is None else out * weight.reshape(along)
        return (out if bias is None else out + bias.reshape(along)).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm that spells itself out for a compiler: torch's rule for vmap takes the clients for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        if not explicit():
            return super().forward(x)
        out = _standardised(x, tuple(range(-len(self.normalized_shape), 0)), self.eps)
        out = out if self.weight is None else out * self.weight
        return (out if self.bias is None else out + self.bias).to(x.dtype)


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Mean 0 and variance 1 over some axes; at least in single precision."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(axes, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)


OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: Conv2d,
    nn.AvgPool2d: AvgPool2d,
    nn.GroupNorm: GroupNorm,
    nn.LayerNorm: LayerNorm,
}


def convert_images(module: nn.Module) -> nn.Module:
    """Make every plain Conv2d, AvgPool2d, GroupNorm and LayerNorm in `module` one of these; returns it."""
    for part in module.modules():
        if type(part) in OURS and getattr(part, "padding_mode", "zeros") == "zeros":
            part.__class__ = OURS[type(part)]
    return module


ELEMENTWISE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)
ANY_LAYOUT = (*OURS.values(), *ELEMENTWISE, nn.Sequential, nn.ModuleList, nn.Flatten, nn.Linear)


def allow_channels_last(*parts: nn.Module) -> None:
    """Let the convolutions of a model choose their layout if all modules in `parts` are known to take any.

    Some of torch's operations (group norm, adaptive pooling) ask for the layout of what they get, which fails under
    vmap if it is channels-last. What a user's own forward calls cannot be known, so its class has to say it:
    `any_layout = True`.
    """
    modules = [m for part in parts for m in part.modules()]
    follow = all(type(m) in ANY_LAYOUT or vars(type(m)).get("any_layout", False) for m in modules)
    for m in modules:
        if isinstance(m, Conv2d):
            m.neighbours_follow = follow
