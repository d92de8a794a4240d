"""Row optimisers against torch.optim, row by row."""

from __future__ import annotations

import math

import pytest
import torch

from pmsfl.engine.optim import RowOptimiser
from pmsfl.engine.rows import rebuilt, tensors
from pmsfl.engine.settings import learning_rate
from pmsfl.masks.random import Stream, fold, normal, root

KEY = root(0, Stream.NOISE)


def gradient(step: int, row: int, n: int) -> torch.Tensor:
    return normal(fold(fold(KEY, step), row), n)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "momentum"), [("sgd", 0.9), ("sgd", 0.0), ("adam", 0.9)])
def test_rows_move_as_torch_optim_moves_them_until_they_leave(kind: str, momentum: float, weight_decay: float) -> None:
    n, lengths = 7, [6, 4, 1]  # rows leave from the end
    start = torch.stack([normal(fold(KEY, 100 + i), n) for i in range(3)])
    rows = start.clone()
    ours = RowOptimiser.fresh(kind, rows, momentum, weight_decay)
    for step in range(max(lengths)):
        active = sum(r > step for r in lengths)
        grads = torch.stack([gradient(step, i, n) for i in range(active)])
        part: RowOptimiser = rebuilt(ours, (t[:active] for t in tensors(ours)))
        part.step(rows[:active], grads, 0.05 / (step + 1))
    for i, length in enumerate(lengths):
        p = torch.nn.Parameter(start[i].clone())
        theirs: torch.optim.Optimizer
        if kind == "sgd":
            theirs = torch.optim.SGD([p], 0.05, momentum=momentum, weight_decay=weight_decay)
        else:
            theirs = torch.optim.Adam([p], 0.05, weight_decay=weight_decay)
        for step in range(length):
            theirs.param_groups[0]["lr"] = 0.05 / (step + 1)
            p.grad = gradient(step, i, n)
            theirs.step()
        torch.testing.assert_close(rows[i], p.data, rtol=0, atol=1e-12)


def test_shrinkage_is_that_of_adamw() -> None:
    start = normal(KEY, 5)
    rows, p = start.clone().unsqueeze(0), torch.nn.Parameter(start.clone())
    ours, theirs = RowOptimiser.fresh("adam", rows, shrinkage=0.3), torch.optim.AdamW([p], 0.05, weight_decay=0.3)
    for step in range(4):
        rate = 0.05 / (step + 1)
        ours.step(rows, gradient(step, 0, 5).unsqueeze(0), rate)
        theirs.param_groups[0]["lr"] = rate
        p.grad = gradient(step, 0, 5)
        theirs.step()
    torch.testing.assert_close(rows[0], p.data, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_state_put_back_goes_on_where_it_was(kind: str) -> None:
    rows = normal(KEY, 8).reshape(2, 4)
    ours = RowOptimiser.fresh(kind, rows)
    for step in range(3):
        ours.step(rows, gradient(step, 0, 8).reshape(2, 4), 0.1)
    other, others = RowOptimiser.fresh(kind, rows), rows.clone()
    other.load({k: v.clone() for k, v in ours.tensors().items()})
    for optimiser, parameters in ((ours, rows), (other, others)):
        optimiser.step(parameters, gradient(9, 0, 8).reshape(2, 4), 0.1)
    assert torch.equal(rows, others)


def test_a_zero_gradient_under_adam_moves_nothing() -> None:
    rows = torch.ones(1, 3)
    RowOptimiser.fresh("adam", rows).step(rows, torch.zeros(1, 3), 0.1)
    assert rows.tolist() == [[1.0, 1.0, 1.0]]


def test_the_schedule_is_half_a_cosine() -> None:
    rates = [learning_rate(0.2, "cosine", t, 10, 0.75) for t in range(10)]
    assert rates[0] == 0.2
    assert rates == sorted(rates, reverse=True)
    assert rates[5] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(0.1 * (1 + math.cos(0.9 * math.pi)))
    assert learning_rate(0.2, "constant", 7, 10, 0.75) == 0.2


def test_a_late_schedule_falls_in_the_last_quarter() -> None:
    rates = [learning_rate(0.2, "late", t, 100, 0.75) for t in range(100)]
    assert rates[:76] == [0.2] * 76
    assert rates[76] < 0.2
    assert rates == sorted(rates, reverse=True)
    assert rates[75:] == [pytest.approx(learning_rate(0.2, "cosine", t, 25, 0.75)) for t in range(25)]


def test_a_late_schedule_from_the_first_round_on_is_half_a_cosine() -> None:
    late = [learning_rate(0.2, "late", t, 10, rest_from=0.0) for t in range(10)]
    assert late == [learning_rate(0.2, "cosine", t, 10, 0.75) for t in range(10)]
