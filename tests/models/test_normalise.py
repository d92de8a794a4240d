"""Batch normalisation spelled out against torch's own: results, gradients, rows that count for nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pmsfl.models.normalise import normalise

SHAPES = [(6, 3), (6, 3, 5), (6, 3, 4, 5)]
EPS = 1e-5


def numbers(*shape: int, seed: int = 0, scale: float = 2.0, shift: float = 0.5) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64) * scale + shift


def affine(channels: int = 3) -> tuple[Tensor, Tensor]:
    return numbers(channels, seed=1).requires_grad_(), numbers(channels, seed=2).requires_grad_()


def assert_same(mine: Tensor, theirs: Tensor, leaves: list[Tensor]) -> None:
    """Outputs and the gradients of all leaves."""
    torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)
    weigh = numbers(*mine.shape, seed=3)
    pairs = zip(torch.autograd.grad(mine, leaves, weigh), torch.autograd.grad(theirs, leaves, weigh), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parts", ["both", "weight", "bias", "neither"])
def test_it_is_batch_norm(shape: tuple[int, ...], parts: str) -> None:
    x, (weight, bias) = numbers(*shape).requires_grad_(), affine()
    own = (weight if parts in ("both", "weight") else None, bias if parts in ("both", "bias") else None)
    mine = normalise(x, *own, None, EPS)
    theirs = F.batch_norm(x, None, None, *own, True, 0.0, EPS)
    assert_same(mine, theirs, [x, *(t for t in own if t is not None)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_affine", [True, False])
def test_rows_of_weight_0_are_as_good_as_gone(shape: tuple[int, ...], with_affine: bool) -> None:
    rows = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    there = rows.bool()
    x = numbers(*shape)
    x[~there] *= 100.0
    x.requires_grad_()
    weight, bias = affine() if with_affine else (None, None)
    mine = normalise(x, weight, bias, rows, EPS)[there]
    theirs = F.batch_norm(x[there], None, None, weight, bias, True, 0.0, EPS)
    assert_same(mine, theirs, [x, *(t for t in (weight, bias) if t is not None)])


def test_weights_of_1_change_nothing_and_no_rows_at_all_give_finite_numbers() -> None:
    x, (weight, bias) = numbers(6, 3, 4), affine()
    ones = torch.ones(6, dtype=torch.float64)
    torch.testing.assert_close(normalise(x, weight, bias, ones, EPS), normalise(x, weight, bias, None, EPS))
    nobody = normalise(x.requires_grad_(), weight, bias, 0 * ones, EPS)
    (gradient,) = torch.autograd.grad(nobody.sum(), x)
    assert nobody.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("weighted", [True, False])
def test_gradients_are_slopes(weighted: bool) -> None:
    rows = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64) if weighted else None
    x, (weight, bias) = numbers(4, 3, 2).requires_grad_(), affine()

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return normalise(x, weight, bias, rows, EPS)

    assert torch.autograd.gradcheck(function, (x, weight, bias))


@pytest.mark.parametrize("rows", [2, 6])
def test_sums_by_groups_of_rows_are_the_same_sums(rows: int) -> None:
    """Only a symbol for the number of rows takes that path."""
    weight, bias = (t.detach() for t in affine())

    def step(x: Tensor, there: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        plain, weighted = normalise(leaf, weight, bias, None, EPS, 2), normalise(leaf, weight, bias, there, EPS, 2)
        (gradient,) = torch.autograd.grad((plain**3).sum() + (weighted**3).sum(), leaf)
        return plain.detach(), weighted.detach(), gradient

    def inputs(n: int) -> tuple[Tensor, Tensor]:
        return numbers(n, 3, 4), torch.arange(n).remainder(2).double()

    traced = make_fx(step, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs(4))
    assert any(n.target is torch.ops.aten.sum.dim_IntList and n.args[1] == [1, 3] for n in traced.graph.nodes)
    for a, b in zip(traced(*inputs(rows)), step(*inputs(rows)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weighted", [True, False])
def test_halves_are_summed_in_single_precision(dtype: torch.dtype, weighted: bool) -> None:
    """4096 numbers around 30: in bf16 their sum would be wrong in the first digit."""
    x = numbers(64, 2, 8, 8, scale=4.0, shift=30.0).to(dtype).requires_grad_()
    weight, bias = (t.detach().float().requires_grad_() for t in affine(2))
    rows = torch.ones(64).index_fill(0, torch.tensor([3, 5]), 0.0) if weighted else None
    there = torch.ones(64, dtype=torch.bool) if rows is None else rows.bool()
    mine = normalise(x, weight, bias, rows, EPS)
    assert mine.dtype == dtype
    leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    theirs = F.batch_norm(leaves[0][there], None, None, leaves[1], leaves[2], True, 0.0, EPS)
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(mine[there].double(), theirs, rtol=unit, atol=unit)
    weigh = torch.zeros(mine.shape, dtype=dtype)
    weigh[there] = numbers(int(there.sum()), 2, 8, 8, seed=3).to(dtype)
    mine_grads = torch.autograd.grad(mine, [x, weight, bias], weigh)
    their_grads = torch.autograd.grad(theirs, leaves, weigh[there].double())
    assert [g.dtype for g in mine_grads] == [dtype, torch.float32, torch.float32]
    for a, b in zip(mine_grads, their_grads, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2 * unit, atol=unit)


def test_a_large_mean_costs_single_precision_nothing() -> None:
    x = numbers(64, 2, 8, 8, scale=1.0, shift=1e4).float()
    mine = normalise(x, None, None, None, EPS)
    theirs = F.batch_norm(x.double(), None, None, None, None, True, 0.0, EPS)
    torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=2e-3)
