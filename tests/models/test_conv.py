"""Convolutions, pooling and batch norm of many clients at once against each client alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pmsfl.models.conv import (
    WIDEST_CHANNELS_LAST,
    AvgPool2d,
    Conv2d,
    GroupNorm,
    allow_channels_last,
    convert_images,
    mean_over_pixels,
    strategy,
)
from pmsfl.models.inspect import why_not_vectorised
from pmsfl.models.norm import StaticBN
from pmsfl.models.split import SplitModel

CLOSE: dict[torch.dtype, dict[str, Any]] = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
}


def stacked(module: nn.Module, clients: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters of every client, all different."""
    g = torch.Generator().manual_seed(1)
    shapes = {n: (clients, *p.shape) for n, p in module.named_parameters()}
    return {n: torch.randn(s, generator=g, dtype=dtype).requires_grad_() for n, s in shapes.items()}


def compare(module: nn.Module, plain: Callable[..., Tensor], x: Tensor) -> None:
    """module under vmap against plain(x of a client, its parameters): outputs and all gradients."""
    allow_channels_last(module)
    own = stacked(module, len(x), x.dtype)
    x = x.requires_grad_()
    mine = vmap(lambda p, x: functional_call(module, p, (x,)))(own, x)
    theirs = torch.stack([plain(x[i], {n: p[i] for n, p in own.items()}) for i in range(len(x))])
    torch.testing.assert_close(mine, theirs, **CLOSE[x.dtype])
    with torch.no_grad():
        quiet = vmap(lambda p, x: functional_call(module, p, (x,)))(own, x)
    assert torch.equal(quiet, mine)
    weigh = torch.randn(mine.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    leaves = [x, *own.values()]
    pairs = zip(torch.autograd.grad(mine, leaves, weigh), torch.autograd.grad(theirs, leaves, weigh), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, **CLOSE[x.dtype])


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    clients=st.integers(1, 3),
    batch=st.integers(1, 3),
    groups=st.integers(1, 2),
    per_group=st.integers(1, 2),
    kernel=st.sampled_from([1, 2, 3]),
    stride=st.integers(1, 2),
    padding=st.sampled_from([0, 1, (0, 2)]),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_convolution_of_many_clients_is_each_client_s_own(
    clients: int, batch: int, groups: int, per_group: int, dtype: torch.dtype, **options: Any
) -> None:
    c = groups * per_group
    kernel, bias = options.pop("kernel"), options.pop("bias")
    conv = Conv2d(c, 2 * groups, kernel, groups=groups, bias=bias, **options).to(dtype)
    x = images(clients, batch, c, 7, 6, dtype=dtype)
    compare(conv, lambda x, p: F.conv2d(x, p["weight"], p.get("bias"), groups=groups, **options), x)


@pytest.mark.parametrize("channels", [1, 3, WIDEST_CHANNELS_LAST, WIDEST_CHANNELS_LAST + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_strategies_convolve_alike(channels: int, dtype: torch.dtype) -> None:
    conv = Conv2d(channels, 2, 3, padding="same").to(dtype)
    compare(conv, lambda x, p: F.conv2d(x, **p, padding="same"), images(2, 3, channels, 5, 5, dtype=dtype))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clients_normalise_by_their_own_batch(affine: bool, dtype: torch.dtype) -> None:
    x = images(3, 4, 2, 5, 5, dtype=dtype) * torch.arange(1, 4).reshape(3, 1, 1, 1, 1)
    norm = StaticBN(2, affine=affine).to(dtype)
    compare(norm, lambda x, p: F.batch_norm(x, None, None, p.get("weight"), p.get("bias"), True), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pooling_after_a_convolution_and_alone(dtype: torch.dtype) -> None:
    x = images(2, 3, 2, 7, 7, dtype=dtype)
    compare(AvgPool2d(2, ceil_mode=True), lambda x, _: F.avg_pool2d(x, 2, ceil_mode=True), x)
    both = nn.Sequential(Conv2d(2, 3, 3), AvgPool2d(2))
    compare(both.to(dtype), lambda x, p: F.avg_pool2d(F.conv2d(x, p["0.weight"], p["0.bias"]), 2), x)


def test_a_whole_block_with_changes_in_place() -> None:
    block = nn.Sequential(Conv2d(2, 4, 3), StaticBN(4), nn.ReLU(inplace=True), AvgPool2d(2), nn.ReLU(inplace=True))

    def alone(x: Tensor, p: dict[str, Tensor]) -> Tensor:
        x = F.batch_norm(F.conv2d(x, p["0.weight"], p["0.bias"]), None, None, p["1.weight"], p["1.bias"], True)
        return F.avg_pool2d(F.relu(x), 2)

    for dtype in (torch.float32, torch.float64):
        compare(block.to(dtype), alone, images(3, 4, 2, 8, 8, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_weight_for_all_clients_and_one_input_for_all(dtype: torch.dtype) -> None:
    conv, x = Conv2d(2, 3, 3).to(dtype), images(4, 5, 2, 6, 6, dtype=dtype)
    whole = conv(x.flatten(0, 1)).unflatten(0, (4, 5))
    torch.testing.assert_close(vmap(conv)(x), whole, **CLOSE[dtype])
    own = stacked(conv, 4, dtype)
    mine = vmap(lambda p: functional_call(conv, p, (x[0],)))(own)
    theirs = torch.stack([F.conv2d(x[0], own["weight"][i], own["bias"][i]) for i in range(4)])
    torch.testing.assert_close(mine, theirs, **CLOSE[dtype])


def test_a_sample_without_a_batch() -> None:
    conv = nn.Sequential(Conv2d(2, 3, 3), AvgPool2d(2)).double()
    compare(conv, lambda x, p: F.avg_pool2d(F.conv2d(x, p["0.weight"], p["0.bias"]), 2), images(4, 2, 6, 6))


def test_a_gradient_taken_inside_vmap() -> None:
    conv, x = Conv2d(2, 3, 3).double(), images(4, 5, 2, 6, 6)
    own = {n: p.detach() for n, p in stacked(conv, 4, torch.float64).items()}

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(conv, p, (x,))
        return (out**2).sum()

    inside = vmap(torch.func.grad(loss))(own, x)
    for i in range(4):
        alone = torch.func.grad(loss)({n: p[i] for n, p in own.items()}, x[i])
        for name, gradient in alone.items():
            torch.testing.assert_close(inside[name][i], gradient)


def test_a_vmap_inside_another() -> None:
    conv, x = Conv2d(2, 3, 3).double(), images(2, 4, 5, 2, 6, 6)
    own = stacked(conv, 4, torch.float64)
    one = vmap(lambda p, x: functional_call(conv, p, (x,)))
    assert torch.allclose(vmap(one, in_dims=(None, 0))(own, x)[1], one(own, x[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_traced_step_gives_the_same_numbers(dtype: torch.dtype) -> None:
    block = nn.Sequential(Conv2d(2, 4, 3), StaticBN(4), nn.ReLU(), AvgPool2d(2)).to(dtype)
    allow_channels_last(block)
    own, x = stacked(block, 3, dtype), images(3, 4, 2, 8, 8, dtype=dtype)
    names = list(own)

    def step(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        leaves = dict(zip(names, (v.detach().requires_grad_() for v in values), strict=True))
        out = vmap(lambda p, x: functional_call(block, p, (x,)))(leaves, x)
        return out, *torch.autograd.grad((out**2).sum(), list(leaves.values()))

    traced = make_fx(step)(x, *own.values())
    other = x * 2 + 1
    for a, b in zip(traced(other, *own.values()), step(other, *own.values()), strict=True):
        torch.testing.assert_close(a, b, **CLOSE[dtype])


def test_the_mean_over_pixels() -> None:
    for dtype in (torch.float32, torch.float64):
        x = images(2, 3, 4, 5, 6, dtype=dtype)
        compare(_Mean(), lambda x, _: x.mean((2, 3)), x)


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return mean_over_pixels(x)


def test_the_rule_that_picks_a_strategy() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert strategy(cpu, torch.float32, WIDEST_CHANNELS_LAST) == "grouped channels-last"
    assert strategy(cpu, torch.float32, WIDEST_CHANNELS_LAST + 1) == "grouped"
    assert strategy(cpu, torch.float64, 16) == "grouped"
    assert strategy(gpu, torch.float32, 16) == "grouped"


def test_narrow_layers_keep_all_clients_of_a_pixel_together() -> None:
    block = nn.Sequential(Conv2d(2, 4, 3, padding=1), StaticBN(4), nn.ReLU(), AvgPool2d(2))
    allow_channels_last(block)
    own = stacked(block, 3, torch.float32)
    out = vmap(lambda p, x: functional_call(block, p, (x,)))(own, images(3, 5, 2, 8, 8, dtype=torch.float32))
    side_by_side = out.movedim(0, 1).flatten(1, 2)
    assert side_by_side.data_ptr() == out.data_ptr()
    assert side_by_side.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_group_norm_after_a_convolution_and_alone(dtype: torch.dtype) -> None:
    x = images(3, 2, 4, 5, 5, dtype=dtype)
    compare(GroupNorm(2, 4).to(dtype), lambda x, p: F.group_norm(x, 2, **p), x)
    both = nn.Sequential(Conv2d(4, 6, 3), GroupNorm(3, 6)).to(dtype)

    def alone(x: Tensor, p: dict[str, Tensor]) -> Tensor:
        return F.group_norm(F.conv2d(x, p["0.weight"], p["0.bias"]), 3, p["1.weight"], p["1.bias"])

    compare(both, alone, x)


@pytest.mark.parametrize("says", [True, False])
def test_layers_nobody_knows_get_contiguous_images_unless_they_say_otherwise(says: bool) -> None:
    """AdaptiveAvgPool2d and many functions fail on channels-last images under vmap."""

    class Own(nn.Module):
        any_layout = says

        def forward(self, x: Tensor) -> Tensor:
            return x.abs() if says else F.group_norm(x, 2)

    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 16, 3))
    model = SplitModel([nn.Sequential(nn.Conv2d(3, 4, 3), Own())], head)
    own = stacked(model, 2, torch.float32)
    vmap(lambda p, x: functional_call(model, p, (x,)))(own, images(2, 5, 3, 6, 6, dtype=torch.float32))
    assert why_not_vectorised(model, (3, 6, 6), 1) is None
    assert model.blocks[0][0].neighbours_follow is says  # type: ignore[index]


def test_a_split_model_converts_plain_layers_only() -> None:
    class Own(nn.Conv2d):
        pass

    layers = [nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), Own(2, 2, 1), nn.AvgPool2d(2)]
    before = nn.Sequential(*layers).state_dict()
    model = SplitModel([nn.Sequential(*layers)], nn.Sequential(nn.Flatten(), nn.Linear(18, 3)))
    assert [type(m) for m in model.blocks[0].children()] == [Conv2d, nn.Conv2d, Own, AvgPool2d]
    assert {n: v.data_ptr() for n, v in model.blocks[0].state_dict().items()} == {
        n: v.data_ptr() for n, v in before.items()
    }
    assert [s.name for s in model.layout.masked] == [f"blocks.0.{i}.weight" for i in range(3)]
    assert type(convert_images(nn.Conv2d(1, 1, 1))) is Conv2d
