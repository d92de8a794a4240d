"""Tensors of a step taken apart and put together again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pmsfl.engine.optim import RowOptimiser
from pmsfl.engine.rows import ClientRows, rebuilt, tensors


def client_rows(clients: int = 4, round_draw: bool = True) -> ClientRows:
    g = torch.Generator().manual_seed(0)
    trained, plain = (torch.randn(clients, n, generator=g) for n in (7, 3))
    return ClientRows(
        torch.arange(clients),
        torch.arange(clients * 6).reshape(clients, 2, 3),
        trained,
        plain,
        RowOptimiser.fresh("adam", trained),
        RowOptimiser.fresh("sgd", plain, 0.5, 0.1),
        torch.rand(clients, 7, generator=g) if round_draw else None,
    )


@dataclass
class Tree:
    a: Tensor
    many: dict[int, Any]
    name: str = "tree"
    none: Tensor | None = None
    rows: ClientRows = field(default_factory=client_rows)


def test_every_tensor_comes_once_and_in_order() -> None:
    rows = client_rows()
    found = tensors(rows)
    expected = [
        rows.ids,
        rows.batches,
        rows.trained,
        rows.plain,
        *rows.masked_optimiser.tensors().values(),
        *rows.plain_optimiser.tensors().values(),
        rows.round_draw,
    ]
    assert len(found) == len(expected)
    assert all(a is b for a, b in zip(found, expected, strict=True))
    assert len(tensors(client_rows(round_draw=False))) == len(expected) - 1
    assert tensors((rows.ids, {"x": rows.plain}, None, "text", 3)) == [rows.ids, rows.plain]


def test_a_tree_is_rebuilt_with_other_tensors_and_nothing_else_changed() -> None:
    tree = Tree(torch.zeros(2), {2: torch.ones(1), 1: {"deep": torch.ones(3)}})
    before = tensors(tree)
    other = rebuilt(tree, (t + 1 for t in before))
    assert [t.data_ptr() for t in tensors(tree)] == [t.data_ptr() for t in before]
    assert all(torch.equal(a, b + 1) for a, b in zip(tensors(other), before, strict=True))
    assert (other.name, other.none, list(other.many)) == ("tree", None, [2, 1])
    assert other.rows.masked_optimiser.kind == "adam"
    assert (other.rows.plain_optimiser.momentum, other.rows.plain_optimiser.weight_decay) == (0.5, 0.1)
    same = rebuilt(tree, iter(before))
    assert all(a is b for a, b in zip(tensors(same), before, strict=True))


def test_the_first_clients_and_any_part_are_written_through() -> None:
    for at, taken in ((slice(2), client_rows().first(2)), (slice(-1, None), client_rows().part(slice(-1, None)))):
        rows = client_rows()
        part = rows.part(at)
        assert len(part.ids) == len(taken.ids)
        for mine, whole in zip(tensors(part), tensors(rows), strict=True):
            before = whole.clone()
            mine.add_(1)
            assert torch.equal(whole[at], before[at] + 1)
            rest = torch.ones(len(whole), dtype=torch.bool)
            rest[at] = False
            assert torch.equal(whole[rest], before[rest])
