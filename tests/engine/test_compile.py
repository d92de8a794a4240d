"""One program for any number of rows: what a step moves in place, what it refers to, and why it cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.func import vmap

from pmsfl.engine.compile import CannotCompile, Compiled, compile_step

from .recorded import as_traced

TABLE = torch.arange(12.0).reshape(4, 3)
SCALE = torch.tensor(2.0)


def rows(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """What `move` moves: values [n, 3] and their number [n]."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=g), torch.randint(0, 4, (n,), generator=g)


def move(inputs: list[Tensor]) -> None:
    values, which = inputs
    values += SCALE * TABLE[which]
    values.mul_(SCALE)
    which.copy_((which + 1) % 4)


def compiled(
    step: Callable[[list[Tensor]], None], examples: Sequence[Tensor], symbols: Sequence[int | None]
) -> Compiled:
    return compile_step(step, examples, symbols, as_traced)


@pytest.mark.parametrize("example", [2, 5])
def test_one_program_moves_any_number_of_rows_in_place(example: int) -> None:
    program = compiled(move, rows(example), [0, 0])
    for n in (1, 2, 3, 7):
        mine, plain = rows(n, seed=n), rows(n, seed=n)
        places = [t.data_ptr() for t in mine]
        for _ in range(2):
            program(mine)
            move(list(plain))
        assert [t.data_ptr() for t in mine] == places
        assert all(torch.equal(a, b) for a, b in zip(mine, plain, strict=True))


def test_views_of_larger_memory_are_moved_there() -> None:
    program = compiled(move, rows(2), [0, 0])
    whole, plain = rows(5), rows(5)
    program([t[:3] for t in whole])
    move([t[:3] for t in plain])
    assert all(torch.equal(a, b) for a, b in zip(whole, plain, strict=True))


def test_examples_are_not_touched() -> None:
    examples = rows(3)
    before = [t.clone() for t in examples]
    compiled(move, examples, [0, 0])
    assert all(torch.equal(a, b) for a, b in zip(examples, before, strict=True))


def test_constants_become_inputs_each_of_them_once() -> None:
    seen: list[tuple[fx.GraphModule, list[Tensor]]] = []

    def lower(graph: fx.GraphModule, fakes: list[Tensor], mode: Any) -> Callable[..., Any]:
        seen.append((graph, fakes))
        return graph

    program = compile_step(move, rows(3), [0, 0], lower)
    ((graph, fakes),) = seen
    assert {id(c) for c in program.constants} == {id(TABLE), id(SCALE)}
    assert len(program.constants) == 2
    nodes = list(graph.graph.nodes)
    assert not any(n.op == "get_attr" for n in nodes)
    assert [n.op for n in nodes[:4]] == ["placeholder"] * 4
    assert len(fakes) == 4
    assert [tuple(f.shape) for f in fakes[2:]] == [tuple(c.shape) for c in program.constants]


def test_constants_are_read_when_the_program_runs() -> None:
    table = torch.ones(3)

    def step(inputs: list[Tensor]) -> None:
        inputs[0] += table

    program, x = compiled(step, [torch.zeros(2, 3)], [0]), torch.zeros(4, 3)
    table.fill_(5.0)
    program([x])
    assert torch.equal(x, torch.full((4, 3), 5.0))


def test_symbols_are_apart_and_fixed_inputs_stay_fixed() -> None:
    def step(inputs: list[Tensor]) -> None:
        a, b, total = inputs
        total += a.sum() * a.shape[0] + b.sum() * b.shape[0]

    program = compiled(step, [torch.ones(2, 3), torch.ones(3, 2), torch.zeros(1)], [1, 2, None])
    for n, m in ((2, 3), (3, 2), (1, 5), (4, 1), (1, 1)):
        total = torch.zeros(1)
        program([torch.ones(n, 3), torch.ones(m, 2), total])
        assert total.item() == 3 * n * n + 2 * m * m


def test_gradients_vmap_and_an_optimiser_are_part_of_the_program() -> None:
    def step(inputs: list[Tensor]) -> None:
        weights, x = inputs
        leaf = weights.detach().requires_grad_()
        out = vmap(lambda w, x: torch.tanh(x @ w))(leaf, x)
        (gradient,) = torch.autograd.grad((out**2).mean((1, 2)).sum(), leaf)
        weights.sub_(0.1 * gradient)

    def inputs(n: int) -> list[Tensor]:
        g = torch.Generator().manual_seed(n)
        return [torch.randn(n, *s, generator=g, dtype=torch.float64) for s in ((3, 2), (4, 3))]

    program = compiled(step, inputs(2), [0, 0])
    for n in (1, 2, 6):
        mine, plain = inputs(n), inputs(n)
        program(mine)
        step(plain)
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-12)
        assert not torch.equal(mine[0], inputs(n)[0])
        assert not mine[0].requires_grad


def looks(inputs: list[Tensor]) -> None:
    if float(inputs[0].sum()) > 0:
        inputs[0].add_(1)


def counts(inputs: list[Tensor]) -> None:
    inputs[0].add_(torch.ones(int(inputs[0].shape[0]), 1))


def fails(inputs: list[Tensor]) -> None:
    raise ValueError("first line\nsecond line")


def is_silent(inputs: list[Tensor]) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (looks, r"^[A-Za-z]+: .{10,200}$"),
        (counts, "^some layer needs the number of clients as a constant$"),
        (fails, "^ValueError: first line$"),
        (is_silent, "^AssertionError: $"),
    ],
)
def test_what_cannot_be_compiled_says_why_in_one_line(step: Callable[[list[Tensor]], None], why: str) -> None:
    examples = [torch.ones(3, 2)]
    with pytest.raises(CannotCompile, match=why) as caught:
        compiled(step, examples, [0])
    assert "\n" not in str(caught.value)
    assert torch.equal(examples[0], torch.ones(3, 2))


def test_inputs_of_one_symbol_have_as_many_rows() -> None:
    with pytest.raises(CannotCompile, match="input 1 has 3 rows"):
        compiled(move, [rows(2)[0], rows(3)[1]], [0, 0])


def test_a_compiler_that_fails_is_a_reason_too() -> None:
    def lower(*_: object) -> Callable[..., Any]:
        raise RuntimeError("no such machine")

    with pytest.raises(CannotCompile, match=r"^RuntimeError: no such machine$"):
        compile_step(move, rows(2), [0, 0], lower)


def test_an_interrupt_is_no_reason() -> None:
    def step(inputs: list[Tensor]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled(step, rows(2), [0, 0])
