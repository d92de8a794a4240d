"""Static batch norm against nn.BatchNorm2d, and rows that weigh nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pmsfl.models.context import ForwardContext, Sums, WholeBatch, current, forward_context
from pmsfl.models.norm import StaticBN, convert_batch_norm


def twins(features: int = 3) -> tuple[StaticBN, nn.BatchNorm2d]:
    ours, theirs = StaticBN(features).double(), nn.BatchNorm2d(features).double()
    generator = torch.Generator().manual_seed(0)
    for own, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        values = torch.randn(features, generator=generator, dtype=torch.float64)
        own.data.copy_(values)
        other.data.copy_(values)
    return ours, theirs


def images(n: int = 6, seed: int = 1, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 4, 5, generator=generator, dtype=torch.float64) * 2 + shift


WHOLE = WholeBatch(lambda t: t.unsqueeze(0), lambda t: t, 6, torch.arange(6))  # all of it is here


@pytest.mark.parametrize(
    "context",
    [
        ForwardContext(),
        ForwardContext(row_weights=torch.ones(6)),
        ForwardContext(whole=WHOLE),
        ForwardContext(row_weights=torch.ones(6), whole=WHOLE),
    ],
)
def test_training_equals_batch_norm_gradients_included(context: ForwardContext) -> None:
    ours, theirs = twins()
    a, b = images().requires_grad_(), images().requires_grad_()
    with forward_context(context):
        mine = ours(a)
    his = theirs(b)
    torch.testing.assert_close(mine, his)
    weigh = images(seed=2)
    for x, y in zip(
        torch.autograd.grad((mine * weigh).sum(), [a, ours.weight, ours.bias]),
        torch.autograd.grad((his * weigh).sum(), [b, theirs.weight, theirs.bias]),
        strict=True,
    ):
        torch.testing.assert_close(x, y)


def test_training_tracks_nothing() -> None:
    ours, _ = twins()
    ours(images(shift=5.0))
    assert ours.running_mean.tolist() == [0.0] * 3
    assert ours.running_var.tolist() == [1.0] * 3


def test_evaluation_equals_batch_norm_with_the_same_statistics() -> None:
    ours, theirs = twins()
    theirs(images())
    ours.load_state_dict(theirs.state_dict(), strict=False)
    torch.testing.assert_close(ours.eval()(images(seed=3)), theirs.eval()(images(seed=3)))


def test_exported_state_loads_into_an_ordinary_batch_norm() -> None:
    ours, theirs = twins()
    ours.running_mean += 0.5
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(theirs.eval()(images()), ours.eval()(images()))


@pytest.mark.parametrize("padding", [0.0, 1e6, -3.0])
def test_padding_never_enters_the_statistics_of_real_rows(padding: float) -> None:
    ours, _ = twins()
    real = images()
    padded = torch.cat((real, torch.full((4, 3, 4, 5), padding, dtype=torch.float64)))
    sums: Sums = {}
    with forward_context(ForwardContext(torch.tensor([True] * 6 + [False] * 4), sums)):
        out = ours(padded)
    torch.testing.assert_close(out[:6], ours(real))
    count, mean, squares = sums[""]
    assert float(count) == 6 * 20
    torch.testing.assert_close(mean, real.mean((0, 2, 3)))
    torch.testing.assert_close(squares, real.var((0, 2, 3), correction=0) * 120)


def test_a_batch_of_padding_alone_is_finite_and_counts_nothing() -> None:
    ours, sums = StaticBN(3).double(), Sums()
    with forward_context(ForwardContext(torch.zeros(6), sums)):
        out = ours(images())
    assert torch.isfinite(out).all()
    assert float(sums[""][0]) == 0.0
    assert float(sums[""][2].sum()) == 0.0


def test_deviations_survive_a_large_mean_in_single_precision() -> None:
    ours, sums = StaticBN(3), Sums()
    x = images(64).float()
    with forward_context(ForwardContext(sums=sums)):
        ours(x + 1000.0)
    torch.testing.assert_close(sums[""][2] / sums[""][0], x.var((0, 2, 3), correction=0), rtol=1e-3, atol=0)


def test_conversion_keeps_affine_and_epsilon_at_every_level() -> None:
    inner = nn.BatchNorm1d(2, eps=0.1)
    inner.weight.data.fill_(3.0)
    module = convert_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.Sequential(inner, nn.BatchNorm3d(4, affine=False))))
    first, second = (m for m in module.modules() if isinstance(m, StaticBN))
    assert (first.eps, first.weight.tolist()) == (0.1, [3.0, 3.0])
    assert not list(second.parameters())
    assert not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in module.modules())


def test_the_context_is_put_back_even_after_an_error() -> None:
    before = current()

    def fail() -> None:
        with forward_context(ForwardContext(sums={})):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert current() is before


# --- half precision: sums in single precision


def halves(*shape: int, seed: int = 1) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=g) * 3 + 20).bfloat16()


def half_norm(affine: bool = True) -> StaticBN:
    norm = StaticBN(3, affine=affine)
    norm.name = "norm"
    if affine:
        norm.weight.data.copy_(torch.tensor([0.5, -1.0, 2.0]))
        norm.bias.data.copy_(torch.tensor([1.0, 0.0, -3.0]))
    return norm


def near_half(mine: Tensor, single: Tensor, absolute: float = 2**-6) -> None:
    """The same numbers, up to the rounding of what comes out and of numbers around 20."""
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine.float(), single, rtol=2**-7, atol=absolute)


THERE = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("shape", [(8, 3), (8, 3, 5), (8, 3, 6, 7)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("weights", [None, THERE, torch.cat((THERE, torch.zeros(5)))])
@pytest.mark.parametrize("collecting", [True, False])
def test_half_precision_is_single_precision_rounded(
    shape: tuple[int, ...], affine: bool, weights: Tensor | None, collecting: bool
) -> None:
    norm, x = half_norm(affine), halves(*shape)
    sums: tuple[Sums, Sums] = ({}, {})
    with forward_context(ForwardContext(weights, sums[0] if collecting else None)):
        mine = norm(x)
    with forward_context(ForwardContext(weights, sums[1] if collecting else None)):
        single = norm(x.float())
    # Without an affine and with nothing to collect it is torch's own kernel, whose means on a CPU are halves.
    near_half(mine, single, 2**-6 if affine or collecting or weights is not None else 2**-4)
    assert sums[0].keys() == sums[1].keys() == ({"norm"} if collecting else set())
    for a, b in zip(sums[0].get("norm", ()), sums[1].get("norm", ()), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("collecting", [True, False])
def test_half_precision_of_many_clients_is_each_client_alone(weighted: bool, collecting: bool) -> None:
    norm, x = half_norm(), halves(4, 8, 3, 6, 7)
    x += torch.arange(4.0).reshape(4, 1, 1, 1, 1).bfloat16() * 10
    weights = torch.stack([THERE.roll(i) for i in range(4)]) if weighted else None

    def one(x: Tensor, weight: Tensor, bias: Tensor, rows: Tensor | None) -> tuple[Tensor, Sums]:
        context = ForwardContext(rows, {} if collecting else None)
        with forward_context(context):
            out: Tensor = functional_call(norm, {"weight": weight, "bias": bias}, (x,))
        return out, context.sums or {}

    weight, bias = (torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i in range(2))
    mine, sums = vmap(one, in_dims=(0, 0, 0, 0 if weighted else None))(x, weight, bias, weights)
    for i in range(4):
        rows = None if weights is None else weights[i]
        alone, own = one(x[i], weight[i], bias[i], rows)
        torch.testing.assert_close(mine[i].float(), alone.float(), rtol=2**-8, atol=1e-3)
        near_half(mine[i], one(x[i].float(), weight[i], bias[i], rows)[0])
        for a, b in zip(sums.get("norm", ()), own.get("norm", ()), strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-5, atol=1e-3)


def test_half_precision_evaluates_with_the_statistics_it_has() -> None:
    norm, x = half_norm().eval(), halves(8, 3, 6, 7)
    norm.running_mean.copy_(torch.tensor([19.0, 20.0, 21.0]))
    norm.running_var.copy_(torch.tensor([4.0, 9.0, 16.0]))
    near_half(norm(x), norm(x.float()))
    own = {n: torch.stack((t, t + 1)) for n, t in norm.state_dict().items()}
    many = vmap(lambda own, x: functional_call(norm, own, (x,)))(own, torch.stack((x, x + 5)))
    near_half(many[1], functional_call(norm, {n: t[1] for n, t in own.items()}, ((x + 5).float(),)))


def test_a_sum_of_halves_is_not_a_half() -> None:
    """4096 ones: a sum in bf16 would stop at 256."""
    context = ForwardContext(sums={})
    with forward_context(context):
        half_norm()(torch.ones(64, 3, 8, 8, dtype=torch.bfloat16))
    assert context.sums is not None
    count, mean, squares = context.sums["norm"]
    assert (float(count), mean.tolist()) == (4096.0, [1.0] * 3)
    assert squares.abs().max() < 1e-2


@pytest.mark.parametrize("weights", [None, THERE])
def test_gradients_in_half_precision(weights: Tensor | None) -> None:
    norm = half_norm()
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        x = halves(8, 3, 6, 7).to(dtype).requires_grad_()
        with forward_context(ForwardContext(weights)):
            out = norm(x)
        there = torch.ones(8) if weights is None else weights
        weigh = halves(8, 3, 6, 7, seed=2).to(dtype) * there.reshape(-1, 1, 1, 1).to(dtype)
        results.append(torch.autograd.grad(out, [x, norm.weight, norm.bias], weigh))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=0.05, atol=0.05 * float(b.abs().max()))
