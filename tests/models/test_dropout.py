"""Dropout is a function of its key: the same in a loop and under vmap, right on average."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pmsfl.masks.random import Stream, fold, root
from pmsfl.models.context import ForwardContext, forward_context
from pmsfl.models.dropout import KeyedDropout, convert_dropout
from pmsfl.models.split import SplitModel

from ..conftest import distinct

KEYS = fold(root(0, Stream.DROPOUT), torch.arange(3))


def dropped(module: nn.Module, x: Tensor, key: Tensor | None) -> Tensor:
    with forward_context(ForwardContext(dropout_key=key)):
        out: Tensor = module(x)
    return out


def test_vmap_drops_what_a_loop_drops() -> None:
    layer, x = KeyedDropout(0.4), torch.ones(3, 5, 7)
    looped = torch.stack([dropped(layer, x[i], KEYS[i]) for i in range(3)])
    assert torch.equal(torch.func.vmap(lambda x, key: dropped(layer, x, key))(x, KEYS), looped)
    assert not torch.equal(looped[0], looped[1])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_expectation_is_kept(p: float) -> None:
    out = dropped(KeyedDropout(p), torch.ones(40_000, dtype=torch.float64), KEYS[0])
    assert abs(float(out.mean()) - 1.0) < 4 * (p / (1 - p) / 40_000) ** 0.5
    assert distinct(out) == pytest.approx([0.0, 1 / (1 - p)])


@pytest.mark.parametrize(("training", "key"), [(False, KEYS[0]), (True, None)])
def test_dropout_is_off_in_evaluation_and_without_a_key(training: bool, key: Tensor | None) -> None:
    x = torch.ones(100)
    assert torch.equal(dropped(KeyedDropout(0.9).train(training), x, key), x)


def test_two_dropouts_of_one_model_never_share_their_zeros() -> None:
    model = SplitModel([nn.Sequential(nn.Dropout(0.5)), nn.Dropout(0.5)], nn.Dropout(0.5))
    x = torch.ones(200)
    zeros = [dropped(m, x, KEYS[0]) for m in model.modules() if isinstance(m, KeyedDropout)]
    assert len(zeros) == 3
    assert not any(torch.equal(zeros[i], zeros[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_every_kind_of_dropout_is_converted() -> None:
    module = convert_dropout(nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Dropout2d(0.2)), nn.ReLU()))
    assert [m.p for m in module.modules() if isinstance(m, KeyedDropout)] == [0.1, 0.2]


def test_channel_dropout_still_drops_whole_channels() -> None:
    (layer,) = SplitModel([nn.Dropout2d(0.5)], nn.Identity()).blocks
    out = dropped(layer, torch.ones(8, 6, 3, 3), KEYS[0])
    assert torch.equal(out, out[:, :, :1, :1].expand_as(out))


@pytest.mark.parametrize("channels", [False, True])
def test_rows_that_count_for_nothing_push_nobody(channels: bool) -> None:
    layer, x = KeyedDropout(0.5, channels), torch.ones(4, 6, 3)
    alone = dropped(layer, x, KEYS[0])
    there = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0])
    with forward_context(ForwardContext(row_weights=there, dropout_key=KEYS[0])):
        among = layer(torch.ones(8, 6, 3))
        first = layer(torch.ones(4, 6, 3))  # rows of deeper cuts join later
    assert torch.equal(among[there.bool()], alone)
    assert torch.equal(first[2:], alone[:2])
