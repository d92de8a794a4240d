"""Convolutions of K clients for a compiler against torch's own, grouped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pmsfl.models import clients_conv
from pmsfl.models.clients_conv import better_as_columns, channels_last, columns, grouped, grouped_backward

# kernel, stride, padding, size
CASES = [
    ((1, 1), (1, 1), (0, 0), (5, 5)),
    ((1, 1), (2, 2), (0, 0), (7, 6)),
    ((3, 3), (1, 1), (1, 1), (6, 6)),
    ((3, 3), (2, 2), (1, 1), (7, 9)),
    ((3, 3), (2, 1), (0, 2), (5, 8)),
    ((5, 5), (1, 1), (2, 2), (6, 5)),
    ((5, 5), (2, 2), (1, 1), (9, 7)),
    ((5, 3), (1, 2), (2, 0), (7, 7)),
]
Pair = tuple[int, int]


def operands(clients: int, kernel: Pair, size: Pair, batch: int = 3) -> tuple[Tensor, Tensor]:
    """x [B, K·3, H, W] and weight [K·4, 3, kh, kw]."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(batch, clients * 3, *size, generator=g, dtype=torch.float64)
    weight = torch.randn(clients * 4, 3, *kernel, generator=g, dtype=torch.float64)
    return x.requires_grad_(), weight.requires_grad_()


def as_columns(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, clients: int) -> Tensor:
    return columns(x, weight, stride, padding, clients)


def as_groups(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, clients: int) -> Tensor:
    out: Tensor = grouped(x, weight, list(stride), list(padding), [1, 1], clients)
    return out


def assert_same(mine: Tensor, theirs: Tensor, leaves: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)
    weigh = torch.randn(mine.shape, generator=torch.Generator().manual_seed(1), dtype=mine.dtype)
    expected = torch.autograd.grad(theirs, leaves, weigh, retain_graph=True)
    for a, b in zip(torch.autograd.grad(mine, leaves, weigh), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding", "size"), CASES)
@pytest.mark.parametrize("convolve", [as_columns, as_groups])
def test_it_is_one_grouped_convolution(
    convolve: Callable[..., Tensor], kernel: Pair, stride: Pair, padding: Pair, size: Pair, clients: int
) -> None:
    x, weight = operands(clients, kernel, size)
    theirs = F.conv2d(x, weight, None, stride, padding, 1, clients)
    assert_same(convolve(x, weight, stride, padding, clients), theirs, (x, weight))
    last = convolve(channels_last(x), channels_last(weight), stride, padding, clients)
    assert_same(last, theirs, (x, weight))
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_long_sums_are_cut_into_several_products(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = operands(2, (3, 3), (8, 8), batch=4)
    theirs = F.conv2d(x, weight, None, 1, 1, 1, 2)
    for most in (16, 1024, 7):
        monkeypatch.setattr(clients_conv, "ROWS_OF_A_PRODUCT", most)
        assert_same(columns(x, weight, (1, 1), (1, 1), 2), theirs, (x, weight))


def test_dilation_and_a_client_of_several_groups() -> None:
    x, weight = operands(4, (3, 3), (9, 8))
    mine = grouped(x, weight, [1, 2], [2, 1], [2, 1], 4)  # two clients of two groups each
    assert_same(mine, F.conv2d(x, weight, None, (1, 2), (2, 1), (2, 1), 4), (x, weight))


def test_only_the_gradient_that_is_wanted_is_taken() -> None:
    x, weight = operands(2, (3, 3), (6, 6))
    for x_too, weight_too in ((True, False), (False, True)):
        a, b = x.detach().requires_grad_(x_too), weight.detach().requires_grad_(weight_too)
        leaves = (a,) if x_too else (b,)
        assert_same(as_groups(a, b, (1, 1), (1, 1), 2), F.conv2d(a, b, None, 1, 1, 1, 2), leaves)


TESTS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize(("kernel", "stride", "padding", "size"), [CASES[1], CASES[3], CASES[7]])
@pytest.mark.parametrize("last", [True, False])
def test_shapes_and_strides_are_known_before_it_runs(
    kernel: Pair, stride: Pair, padding: Pair, size: Pair, clients: int, last: bool
) -> None:
    x, weight = operands(clients, kernel, size)
    if last:
        x, weight = (channels_last(t.detach()).requires_grad_() for t in (x, weight))
    how = (list(stride), list(padding), [1, 1], clients)
    torch.library.opcheck(grouped, (x, weight, *how), test_utils=TESTS)
    gradient = torch.ones_like(grouped(x, weight, *how)).detach()
    for inputs in (True, False):
        backward = (gradient, x.detach(), weight.detach(), *how, inputs)
        torch.library.opcheck(grouped_backward, backward, test_utils=TESTS)


def test_it_can_be_traced_with_a_symbol_for_the_clients() -> None:
    x, weight = operands(2, (3, 3), (5, 5))
    torch.library.opcheck(grouped, (x, weight, [1, 1], [1, 1], [1, 1], 2), test_utils=("test_aot_dispatch_dynamic",))


def test_a_cpu_never_unfolds() -> None:
    assert not better_as_columns(torch.zeros(4, 3, 1, 1), (2, 2), (1, 1))
