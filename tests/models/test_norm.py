"""Static batch norm against nn.BatchNorm2d, and rows that weigh nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

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
