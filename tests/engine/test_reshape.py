"""Views moved behind element-wise operations: the same numbers, and nothing between a ReLU and what comes next."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pmsfl.engine.compile import compile_step
from pmsfl.engine.reshape import MOVES, POINTWISE, compute_before_views
from pmsfl.models.context import explicit_layers
from pmsfl.models.conv import Conv2d
from pmsfl.models.norm import StaticBN

aten = torch.ops.aten


def rewritten(function: Callable[..., Any], *inputs: Tensor) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The traced function, and the same with its views moved."""
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(t) for t in inputs]
    before = make_fx(function, tracing_mode="fake")(*inputs)
    with mode:
        after = make_fx(function)(*fakes)
    compute_before_views(after.graph, mode)
    after.graph.lint()
    after.graph.eliminate_dead_code()
    after.recompile()
    return before, after


def operations(graph: fx.GraphModule) -> list[Any]:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"]


def assert_same(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """Equal results in equal shapes, and the shapes the graph claims."""
    _, after = rewritten(function, *inputs)
    for mine, plain in zip(_list(after(*inputs)), _list(function(*inputs)), strict=True):
        assert mine.shape == plain.shape
        assert torch.equal(mine, plain)
    assert_claims(after, *inputs)
    return after


def assert_claims(graph: fx.GraphModule, *inputs: Tensor) -> None:
    """Every operation gives what its `val` says."""

    class Checking(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            out = super().run_node(n)
            if isinstance(out, Tensor) and n.op == "call_function":
                claimed = n.meta["val"]
                assert (out.shape, out.dtype) == (claimed.shape, claimed.dtype), n
            return out

    Checking(graph).run(*inputs)


def _list(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- what it does


def test_an_operation_between_two_views_that_undo_each_other_stands_alone() -> None:
    after = assert_same(lambda x: torch.relu(x.view(2, 3, 4)).view(6, 4) + 1, numbers(6, 4))
    assert not set(operations(after)) & set(MOVES)


def test_permutations_count_as_views() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.permute(1, 0, 2) + y.permute(1, 0, 2)).relu().permute(1, 0, 2)

    after = assert_same(function, numbers(2, 3, 4), numbers(2, 3, 4, seed=1))
    assert operations(after) == [aten.add.Tensor, aten.relu.default]


def test_a_chain_of_views_is_left_behind_as_a_whole() -> None:
    def function(x: Tensor) -> Tensor:
        moved = x.view(2, 3, 4, 5).permute(1, 0, 2, 3)
        return (moved.relu() * 2.0).permute(1, 0, 2, 3).view(6, 4, 5)

    assert operations(assert_same(function, numbers(6, 4, 5))) == [aten.relu.default, aten.mul.Tensor]


def test_a_result_that_is_needed_in_both_shapes_is_computed_once() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.relu(x.view(2, 12))
        return out, out.view(6, 4)

    after = assert_same(function, numbers(6, 4))
    assert operations(after).count(aten.relu.default) == 1


def test_the_gradient_of_a_relu_moves_too() -> None:
    def function(gradient: Tensor, out: Tensor) -> Tensor:
        slope: Tensor = aten.threshold_backward(gradient.view(2, 12), out.view(2, 12), 0)
        return slope.view(6, 4)

    after = assert_same(function, numbers(6, 4), numbers(6, 4, seed=1).relu())
    assert operations(after) == [aten.threshold_backward.default]


def test_a_change_of_dtype_moves_too() -> None:
    after = assert_same(lambda x: x.view(2, 12).to(torch.float64).view(6, 4), numbers(6, 4))
    assert operations(after) == [aten._to_copy.default]


def test_no_view_stands_between_a_relu_and_the_next_convolution_of_all_clients() -> None:
    layers = [Conv2d(3, 4, 3, padding=1, bias=False), StaticBN(4), nn.ReLU(), Conv2d(4, 2, 3, bias=False)]
    block = nn.Sequential(*layers).double()
    names = list(dict(block.named_parameters()))
    graphs: list[fx.GraphModule] = []

    def step(inputs: list[Tensor]) -> None:
        x, *weights = inputs
        leaves = [w.detach().requires_grad_() for w in weights]
        views = dict(zip(names, leaves, strict=True))
        with explicit_layers():
            out = vmap(lambda p, x: functional_call(block, p, (x,)))(views, x)
        gradients = torch.autograd.grad((out**2).sum(), leaves)
        for w, gradient in zip(weights, gradients, strict=True):
            w.sub_(0.1 * gradient)

    def inputs(n: int) -> list[Tensor]:
        shapes = [(n, 5, 3, 6, 6), *((n, *p.shape) for p in block.parameters())]
        return [numbers(*s, seed=i).double() for i, s in enumerate(shapes)]

    def keep(graph: fx.GraphModule, *_: object) -> fx.GraphModule:
        graphs.append(graph)
        return graph

    program = compile_step(step, inputs(2), [0] * (1 + len(names)), keep)
    for n in (1, 2, 5):
        mine, plain = inputs(n), inputs(n)
        program(mine)
        step(plain)
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-10)
    graphs[0].graph.eliminate_dead_code()
    (relu,) = (n for n in graphs[0].graph.nodes if n.target is aten.relu.default)
    assert relu.meta["val"].ndim == 4
    assert {u.target for u in relu.users} & set(MOVES) == set()
    assert any(u.target is torch.ops.pmsfl.grouped.default for u in _past_copies(relu))
    (slope,) = (n for n in graphs[0].graph.nodes if n.target is aten.threshold_backward.default)
    assert slope.meta["val"].ndim == 4
    assert not any(a.target in MOVES for a in slope.all_input_nodes)


def _past_copies(node: fx.Node) -> list[fx.Node]:
    """Users, and users of copies into another layout."""
    copies = (aten.clone.default, aten.detach.default)
    return [v for u in node.users for v in (_past_copies(u) if u.target in copies else [u])]


# --- what it leaves alone


def unlike_views(x: Tensor, y: Tensor) -> Tensor:
    return x.view(2, 12) + y.view(12, 2).permute(1, 0)


def another_shape(x: Tensor, y: Tensor) -> Tensor:
    return x.view(2, 12) + y.reshape(4, 6).view(2, 12)


def another_order(x: Tensor, y: Tensor) -> Tensor:
    return x.view(2, 3, 4).permute(2, 0, 1) + y.view(3, 4, 2).permute(1, 2, 0)


def no_view(x: Tensor, y: Tensor) -> Tensor:
    return x.view(2, 12) + (y * y).sum()


def broadcast(x: Tensor, y: Tensor) -> Tensor:
    return x.view(2, 3, 4) + y[0].view(1, 1, 4)


@pytest.mark.parametrize("function", [unlike_views, another_shape, another_order, no_view, broadcast])
def test_inputs_that_were_not_moved_alike_stay(function: Callable[..., Tensor]) -> None:
    x, y = numbers(6, 4), numbers(6, 4, seed=1)
    after = assert_same(function, x, y)
    (add,) = (n for n in after.graph.nodes if n.target is aten.add.Tensor)
    assert add.args[0].target in MOVES


def test_tensors_that_lie_in_memory_in_another_way_stay() -> None:
    x, y = numbers(4, 3, 2), numbers(2, 4, 3, seed=1).permute(1, 2, 0)
    after = assert_same(lambda x, y: x.permute(2, 0, 1) * y.permute(2, 0, 1), x, y)
    (product,) = (n for n in after.graph.nodes if n.target is aten.mul.Tensor)
    assert product.args[0].target in MOVES


def test_a_copy_into_a_memory_format_stays() -> None:
    def function(x: Tensor) -> Tensor:
        copy: Tensor = aten._to_copy(x.view(2, 3, 4, 5), dtype=torch.float64, memory_format=torch.channels_last)
        return copy

    after = assert_same(function, numbers(6, 4, 5))
    assert operations(after) == [aten.view.default, aten._to_copy.default]
    assert after(numbers(6, 4, 5)).is_contiguous(memory_format=torch.channels_last)


def test_views_that_do_not_undo_each_other_stay() -> None:
    assert_same(lambda x: x.permute(1, 2, 0).permute(1, 2, 0), numbers(2, 3, 4))
    assert_same(lambda x: x.view(2, 12).view(8, 3), numbers(6, 4))
    assert_same(lambda x: x.permute(0, 2, 1).relu().reshape(2, 12), numbers(2, 3, 4))


# --- whatever comes


SHAPES: dict[int, list[tuple[int, ...]]] = {24: [(24,), (6, 4), (2, 3, 4), (4, 3, 2), (2, 12), (2, 3, 2, 2), (1, 24)]}


def random_function(seed: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """A graph of views, permutations and element-wise operations; the same for the same seed."""

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        draw = random.Random(seed)
        values, results = [x, y], []
        for _ in range(14):
            a, kind = draw.choice(values), draw.randrange(8)
            if kind == 0:
                values.append(a.reshape(draw.choice(SHAPES[24])))
            elif kind == 1:
                values.append(a.permute(draw.sample(range(a.ndim), a.ndim)))
            elif kind == 2:
                values.append(a.relu())
            elif kind == 3:
                values.append(a * 1.5)
            else:
                shape = draw.choice(SHAPES[24])
                order = draw.sample(range(len(shape)), len(shape)) if kind > 5 else list(range(len(shape)))
                b = draw.choice(values)
                left, right = (t.reshape(shape).permute(order) for t in (a, b))
                if kind == 7:
                    out = aten.threshold_backward(left, right, 0)
                else:
                    out = left + right if kind == 4 else left * right
                back = [order.index(i) for i in range(len(order))]
                values.append(out)
                values.append(out.permute(back).reshape(6, 4))
            results.append(values[-1])
        return results

    return function


@pytest.mark.parametrize("seed", range(24))
def test_a_random_graph_gives_the_same_numbers(seed: int) -> None:
    x = (numbers(6, 4), numbers(4, 6).t(), numbers(6, 8)[:, ::2], numbers(4).expand(6, 4))[seed % 4]
    assert_same(random_function(seed), x, numbers(6, 4, seed=1))


def test_random_graphs_are_rewritten() -> None:
    """Else the test above says nothing."""
    changed = 0
    for seed in range(8):
        before, after = rewritten(random_function(seed), numbers(6, 4), numbers(6, 4, seed=1))
        changed += operations(before) != operations(after)
        assert sum(t in POINTWISE for t in operations(after)) <= sum(t in POINTWISE for t in operations(before))
    assert changed > 4
