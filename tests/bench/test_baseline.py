"""The eager loop does PM-SFL's mathematics: else beating it would mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pmsfl.bench import baseline
from pmsfl.bench.baseline import ClientLoop, crop, fastest_kernels
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.masks.bernoulli import sample_mean
from pmsfl.masks.random import Stream, uniform

from ..conftest import play, tiny_federation, tiny_world

CLIENTS, STEPS = 3, 3


def equal_world(**changes: Any) -> World:
    """Three clients with three full batches each."""
    return tiny_world(tiny_federation(sizes=(6 * STEPS,) * CLIENTS), cohort=CLIENTS, **changes)


@pytest.mark.parametrize("estimator", ["plain", "paper"])
@pytest.mark.parametrize("masks", [{}, {"forward_masks": 4, "upload_masks": 4, "mask_act": "flip"}])
def test_with_the_same_masks_and_batches_the_union_loop_trains_what_a_round_trains(
    estimator: str, masks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every coordinate becomes personal at once, so that a client's scores can be read from its memory.
    world = equal_world(
        estimator=estimator,
        personal_ratio=1.0,
        growth="one-shot",
        aggregate="sampled",
        lr_schedule="constant",
        client_optimiser="adam",
        lr_client=1e-2,
        **masks,
    )
    state, _, (metrics,) = play(world, rounds=1)

    loop = ClientLoop(world)
    ids = torch.tensor(loop.clients)
    size = world.masked_size(world.cut)
    layers = world.layout.layers(world.cut)

    def draws() -> Iterator[Tensor]:
        """The engine's uniforms in the order in which the loop draws."""
        for step in range(STEPS):
            for u in uniform(world.keys.client(Stream.FORWARD, ids, 0, step), size, torch.float64):
                for s in layers:
                    yield u[s.offset : s.offset + s.size].reshape(s.shape)

    drawn = draws()
    monkeypatch.setattr(baseline, "draw", lambda theta, n: sample_mean(theta, next(drawn), n))
    rows = [world.batch_rows(c, 0, STEPS) for c in loop.clients]
    losses = [loop.union_of([(world.inputs(r[step]), world.y[r[step]]) for r in rows]) for step in range(STEPS)]
    assert next(drawn, None) is None

    assert float(torch.stack(losses).mean()) == pytest.approx(metrics.loss, abs=1e-9)
    for c, bottom in zip(loop.clients, loop.bottoms, strict=True):
        mine = torch.cat([s.detach().flatten() for s in bottom.scores])
        torch.testing.assert_close(mine, state.bank[c].values, rtol=0, atol=1e-9)
    norms = torch.stack([torch.cat([n.detach() for n in b.norms]) for b in loop.bottoms]).mean(0)
    torch.testing.assert_close(norms, state.plain[: world.plain_size(world.cut)], rtol=0, atol=1e-9)
    top = world.layout.top(state.shared[size:], state.plain[world.plain_size(world.cut) :], world.cut)
    for theirs, parameter in zip(_in_order(world, top), loop.top.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), theirs, rtol=0, atol=1e-9)


def _in_order(world: World, views: dict[str, Tensor]) -> list[Tensor]:
    """Named values in the order of the model's parameters."""
    return [views[name] for name, _ in world.model.named_parameters() if name in views]


@pytest.mark.parametrize("form", [ClientLoop.sequential, ClientLoop.union])
def test_its_loss_falls(form: Any) -> None:
    torch.manual_seed(0)
    loop = ClientLoop(equal_world(lr_server=0.05))
    losses = [float(form(loop)) for _ in range(40)]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


def test_clients_learn_apart_from_each_other_and_from_the_world() -> None:
    torch.manual_seed(0)
    world = equal_world()
    before = world.initial_plain.clone()
    loop = ClientLoop(world)
    loop.sequential()
    first, second = (b.scores[0].detach() for b in loop.bottoms[:2])
    assert not torch.equal(first, second)
    assert torch.equal(world.initial_plain, before)


def test_masks_are_random_and_follow_their_probabilities() -> None:
    torch.manual_seed(0)
    bottom = ClientLoop(equal_world()).bottoms[0]
    kept = torch.zeros_like(bottom.scores[0])
    for _ in range(400):
        bottom.forward(torch.zeros(2, 1, 8, 8, dtype=torch.float64))
        kept += bottom.layers[0].weight.detach() != 0  # type: ignore[operator]
    torch.testing.assert_close(kept / 400, torch.sigmoid(bottom.scores[0].detach()), rtol=0, atol=0.12)


def test_means_of_masks_are_theta_rounded_by_chance() -> None:
    torch.manual_seed(0)
    theta = torch.rand(1000, dtype=torch.float64)
    mean = baseline.draw(theta, 5)
    assert float((mean - theta).abs().max()) < 0.2
    torch.testing.assert_close(5 * mean, (5 * mean).round())
    assert 0.3 < float((mean > theta).double().mean()) < 0.7


def test_a_crop_is_the_image_moved_with_zeros_behind_it() -> None:
    torch.manual_seed(0)
    x = torch.arange(1, 37, dtype=torch.uint8).reshape(1, 1, 6, 6).repeat(64, 1, 1, 1)
    moved = crop(x, flip=False)
    assert moved.shape == x.shape
    padded = torch.nn.functional.pad(x[0, 0], (4,) * 4)
    windows = {tuple(padded[i : i + 6, j : j + 6].flatten().tolist()) for i in range(9) for j in range(9)}
    assert {tuple(m.flatten().tolist()) for m in moved} <= windows
    flipped = {tuple(m.flatten().tolist()) for m in crop(x, flip=True)}
    mirrored = {tuple(m.flip(-1).flatten().tolist()) for m in crop(x, flip=True)}
    assert flipped & windows
    assert mirrored & windows


def test_cudnn_is_left_as_it_was() -> None:
    before = torch.backends.cudnn.benchmark
    with fastest_kernels():
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "splitfed"},
        {"depths": "1:1:1:1"},
        {"depths": "4"},
        {"labels": "u-shape"},
        {"schedule": "sequential"},
        {"mask_per": "round"},
        {"mask_sharpness": 4.0},
        {"masked_top": True},
        {"norms": "frozen"},
    ],
)
def test_what_it_cannot_play_it_refuses(changes: dict[str, Any]) -> None:
    with pytest.raises(PmsflError, match=next(iter(changes))):
        ClientLoop(equal_world(**changes))
