"""Views moved out of the way of a compiler.

vmap looks at K clients' activations [B, K·C, H, W] as [B, K, C, H, W] between layers. Element by element that makes
no difference, but a compiler that finds a view between a ReLU and the convolution after it writes the ReLU in a
layout of its own and copies it for the convolution: a tenth of a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
PERMUTE = torch.ops.aten.permute.default
MOVES = (*VIEWS, PERMUTE)
POINTWISE = (
    torch.ops.aten.relu.default,
    torch.ops.aten.add.Tensor,
    torch.ops.aten.mul.Tensor,
    torch.ops.aten.threshold_backward.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten.detach.default,
)


def compute_before_views(graph: fx.Graph, mode: Any) -> None:
    """Rewrite f(view(a), view(b)) as view(f(a, b)) for element-wise f, and drop views that undo each other.

    A permutation counts as a view.
    """
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in MOVES:
            _drop_if_undone(node)
        elif node.target in POINTWISE:
            _swap(graph, node, mode)


def _drop_if_undone(move: fx.Node) -> None:
    """Use what was there before, where a view, or one after another, changes nothing."""
    inner: Any = move.args[0]
    if move.target is PERMUTE:
        order: Any = move.args[1]
        if list(order) == sorted(order):
            move.replace_all_uses_with(inner)
        elif inner.target is PERMUTE and [inner.args[1][i] for i in order] == sorted(order):
            move.replace_all_uses_with(inner.args[0])
    elif inner.target in VIEWS and _same(_shape(inner.args[0]), _shape(move)):
        move.replace_all_uses_with(inner.args[0])


def _swap(graph: fx.Graph, node: fx.Node, mode: Any) -> None:
    inputs = [a for a in node.args if isinstance(a, fx.Node) and isinstance(a.meta.get("val"), Tensor)]
    if not inputs or node.kwargs.get("memory_format") or not _moved_alike(inputs, node):
        return
    sources: list[Any] = [a.args[0] for a in inputs]
    known = dict(zip(inputs, sources, strict=True))
    arguments = [known.get(a, a) if isinstance(a, fx.Node) else a for a in node.args]
    with graph.inserting_before(node):
        result = graph.call_function(node.target, tuple(arguments), dict(node.kwargs))  # type: ignore[arg-type]
        with mode:
            values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in arguments]
            result.meta["val"] = node.target(*values, **node.kwargs)  # type: ignore[operator]
        target = PERMUTE if inputs[0].target is PERMUTE else torch.ops.aten.view.default
        move = graph.call_function(target, (result, inputs[0].args[1]))
        move.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(move)
    _swap(graph, result, mode)  # there may be another view before
    for user in list(move.users):
        if user.target in MOVES:
            _drop_if_undone(user)


def _moved_alike(inputs: list[fx.Node], node: fx.Node) -> bool:
    """Are all inputs the same view of tensors that lie in memory the same way?"""
    first = inputs[0]
    for a in inputs:
        if a.target not in MOVES or (a.target is PERMUTE) != (first.target is PERMUTE):
            return False
        if a.target is PERMUTE and list(a.args[1]) != list(first.args[1]):  # type: ignore[arg-type]
            return False
        if not (_same(_shape(a), _shape(node)) and _same(_shape(a.args[0]), _shape(first.args[0]))):
            return False
        if not _same(_strides(a.args[0]), _strides(first.args[0])):
            return False
    return True


def _shape(node: Any) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def _strides(node: Any) -> tuple[Any, ...]:
    return tuple(node.meta["val"].stride())


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Equal as expressions: nothing may be assumed about a symbol."""
    return len(a) == len(b) and all(str(x) == str(y) for x, y in zip(a, b, strict=True))
