"""Stages at the cut: a narrow layer, a guard, NoPeek."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pmsfl.api import run
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.state import State
from pmsfl.errors import PmsflError
from pmsfl.export import export_run
from pmsfl.models.inspect import cut_cost, smashed_shape
from pmsfl.models.registry import make_model
from pmsfl.privacy.cut import (
    clip_samples,
    distance_correlation,
    guard_stage,
    narrow_stage,
    reconstruction_loss,
    reversed_gradient,
    widen_stage,
)
from pmsfl.recipe import Recipe
from pmsfl.wire.ledger import Ledger

from ..conftest import play, tiny_world
from ..engine.recorded import assert_one_compilation, assert_recorded_as_played


def test_eight_pooled_channels_cross_the_papers_cut_and_cost_a_client_little() -> None:
    plain = make_model(Recipe(model="resnet18"), (3, 32, 32), 100)
    narrow = make_model(Recipe(model="resnet18", cut_channels=8, cut_pool=2), (3, 32, 32), 100)
    assert smashed_shape(narrow, (3, 32, 32), 2) == (8, 8, 8)
    before, after = (cut_cost(m, (3, 32, 32), 2, 4) for m in (plain, narrow))
    assert after.masked - before.masked == 128 * 8
    assert 1.0 < after.flops_per_sample / before.flops_per_sample < 1.01
    assert narrow(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


def test_a_guard_is_in_what_a_client_pays() -> None:
    shape, width = (3, 16, 16), 64
    plain, guarded = (make_model(Recipe(depths="1", **more), shape, 10) for more in ({}, _guard(width)))
    c, h, w = smashed_shape(plain, shape, 1)
    before, after = (cut_cost(m, shape, 1, 4) for m in (plain, guarded))
    macs = 9 * (c * width * h * w + width * 3 * 16 * 16)
    assert (
        after.flops_per_sample - before.flops_per_sample == 3 * 2 * macs
    )  # forward, and backward by inputs and weights
    widest = 4 * 4 * width * 16 * 16  # a batch of the enlarged maps, in bytes
    assert after.activation_bytes - before.activation_bytes > widest


def _guard(width: int) -> dict[str, Any]:
    return {"guard": 0.1, "guard_width": width}


@pytest.mark.parametrize(("changes", "norms"), [({"guard": 0.1}, 2), ({"cut_channels": 3}, 3)])
def test_statistics_are_of_the_norms_that_a_client_evaluates_with(changes: dict[str, Any], norms: int) -> None:
    world = tiny_world(method="splitfed", **changes)
    state, _, _ = play(world, rounds=1)
    ledger = Ledger()
    Evaluator(world, ledger).evaluate(state)
    channels = 4 + 8 + 3 * (norms - 2)
    assert ledger.as_dict()["statistics.up"] == 5 * (32 + 4 + 8 * (2 * channels + norms))  # one pass of five clients
    assert not state.bank.personalised
    assert not state.bank.restored(state.bank.to_tensors()).personalised


def test_half_a_stage_more_stays_within_a_quarter_of_the_papers_client() -> None:
    paper = cut_cost(make_model(Recipe(model="resnet18"), (3, 32, 32), 100), (3, 32, 32), 2, 2)
    model = make_model(Recipe(model="resnet18-halves", depths="5", cut_channels=8), (3, 32, 32), 100)
    assert model.depth == 8
    assert smashed_shape(model, (3, 32, 32), 5) == (8, 8, 8)
    assert 1.1 < cut_cost(model, (3, 32, 32), 5, 2).flops_per_sample / paper.flops_per_sample < 1.25


def test_the_narrow_half_is_the_clients_and_masked_the_wide_half_is_the_servers() -> None:
    layout = make_model(Recipe(cut_channels=3, depths="2"), (1, 28, 28), 10).layout
    masked = {s.name: s.block for s in layout.masked}
    assert masked["narrow.0.weight"] == 1
    assert masked["widen.0.weight"] == 2
    assert {s.block for s in layout.plain if s.name.startswith("narrow.")} == {1}


def test_behind_the_last_block_the_wide_half_belongs_to_the_head() -> None:
    model = make_model(Recipe(cut_channels=3, depths="4"), (1, 28, 28), 10)
    assert all(s.block == model.depth for s in model.layout.plain if s.name.startswith("widen."))
    q = model(torch.ones(2, 1, 28, 28), 0, 4)
    assert q.shape[1] == 3
    assert model(q, 4).shape == (2, 10)


def test_a_trained_narrow_layer_carries_no_masks_and_is_shared_like_norms() -> None:
    world = tiny_world(cut_channels=3, cut_weights="trained")
    layout = world.layout
    assert all(not s.name.startswith("narrow.") for s in layout.masked)
    (weight,) = (s for s in layout.plain if s.name == "narrow.0.weight")
    assert weight.block == 1
    place = slice(weight.offset, weight.offset + weight.size)
    before = State.initial(world)
    after, ledger, _ = play(world, rounds=1)
    assert before.plain[place].std() > 0.0
    assert not torch.equal(after.plain[place], before.plain[place])
    masked = play(tiny_world(cut_channels=3), rounds=1)[1]
    more = ledger.as_dict()["norms.up"] - masked.as_dict()["norms.up"]
    assert more == len(world.plan(0).clients) * world.dtype.itemsize * weight.size


def test_sequences_are_narrowed_token_by_token() -> None:
    model = make_model(Recipe(model="transformer", cut_channels=4, depths="1"), (6, 5), 3)
    q = model(torch.randn(2, 6, 5), 0, 1)
    assert q.shape[-1] == 4
    assert model(q, 1).shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cut_channels": 4, "depths": "1:1"}, "one cut for all"),
        ({"guard": 1.0, "depths": "1,2"}, "one cut for all"),
        ({"cut_pool": 8}, "more than the 7 × 7 pixels"),
        ({"cut_channels": 4, "depths": "9"}, "between 1 and 4"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(changes: dict[str, object], says: str) -> None:
    with pytest.raises(PmsflError, match=says):
        make_model(Recipe(model="small-cnn").replace(**changes), (1, 28, 28), 10)


def test_pooling_and_guards_are_for_maps() -> None:
    with pytest.raises(PmsflError, match="cut_pool = 2 is for maps"):
        narrow_stage((6, 5), 2, 2)
    with pytest.raises(PmsflError, match="guard needs maps"):
        guard_stage((6, 5), (1, 8, 8), 4)
    with pytest.raises(PmsflError, match="divide the images"):
        guard_stage((6, 3, 3), (1, 8, 8), 4)
    with pytest.raises(PmsflError, match="not of one scale"):
        guard_stage((6, 4, 2), (1, 8, 8), 4)


def test_the_two_halves_are_inverse_in_shape() -> None:
    for shape, pool in (((6, 8, 8), 2), ((6, 7, 8), 2), ((6, 8, 4), 1), ((5, 6), 1), ((7,), 1)):
        x = torch.randn(3, *shape)
        q = narrow_stage(shape, 2, pool)(x)
        assert q.numel() < x.numel()
        assert widen_stage(shape, 2, pool)(q).shape == x.shape


def test_a_reversed_gradient_leaves_the_value_exactly() -> None:
    x = torch.randn(5, requires_grad=True)
    y = reversed_gradient(x, 0.7)
    assert torch.equal(y, x)
    (g,) = torch.autograd.grad((y * torch.arange(5.0)).sum(), x)
    torch.testing.assert_close(g, -0.7 * torch.arange(5.0))


def test_samples_are_clipped_one_by_one() -> None:
    q = torch.tensor([[[3.0, 4.0], [0.3, 0.4]]])
    torch.testing.assert_close(clip_samples(q, 1.0), torch.tensor([[[0.6, 0.8], [0.3, 0.4]]]))


def _distance_correlation_by_hand(x: np.ndarray, y: np.ndarray) -> float:
    def centred(z: np.ndarray) -> np.ndarray:
        d: np.ndarray = np.array([[math.dist(a, b) for b in z] for a in z])
        out: np.ndarray = d - d.mean(0) - d.mean(1)[:, None] + d.mean()
        return out

    a, b = centred(x), centred(y)
    return math.sqrt((a * b).mean() / math.sqrt((a * a).mean() * (b * b).mean()))


def test_distance_correlation_is_the_textbooks() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 3))
    y = np.stack([x[0] @ rng.standard_normal((3, 2)), rng.standard_normal((9, 2))])
    found = distance_correlation(torch.from_numpy(x), torch.from_numpy(y))
    expected = [_distance_correlation_by_hand(a, b) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    same = distance_correlation(torch.from_numpy(x), 3.0 * torch.from_numpy(x))
    np.testing.assert_allclose(same.numpy(), 1.0, rtol=1e-5)


def test_distance_correlation_has_a_gradient_where_samples_coincide() -> None:
    x = torch.zeros(1, 4, 3, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(distance_correlation(x, torch.randn(1, 4, 2, dtype=torch.float64)).sum(), x)
    assert torch.isfinite(g).all()


def test_a_guard_learns_to_decode_and_the_bottom_to_make_it_fail() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 32, 1, 4, 4)
    decoder, bottom = nn.Conv2d(2, 1, 1), nn.Conv2d(1, 2, 1)

    def loss(strength: float) -> torch.Tensor:
        q = bottom(x[0])
        return reconstruction_loss(decoder(reversed_gradient(q, strength))[None], x)

    before = loss(1.0)
    by_decoder, by_bottom = torch.autograd.grad(before, (decoder.weight, bottom.weight))
    with torch.no_grad():
        decoder.weight -= 0.05 * by_decoder
        assert loss(1.0) < before
        decoder.weight += 0.05 * by_decoder
        bottom.weight -= 0.05 * by_bottom
        assert loss(1.0) > before


def test_a_guard_stays_with_its_client_and_is_remembered() -> None:
    without, ledger, _ = play(tiny_world())
    world = tiny_world(guard=0.5, guard_width=4)
    state, guarded, _ = play(world)
    assert guarded.as_dict().keys() == ledger.as_dict().keys()
    assert guarded.as_dict()["norms.up"] == ledger.as_dict()["norms.up"]
    client = next(iter(state.bank))
    kept = state.bank[client].plain
    size = sum(s.size for s in world.layout.plain if s.is_guard)
    assert kept is not None
    assert len(kept) == size > 0
    at = torch.cat([torch.arange(s.offset, s.offset + s.size) for s in world.layout.plain if s.is_guard])
    assert torch.equal(state.plain[at], world.initial_plain[at])  # the server's copy is as it was built
    assert not torch.equal(kept, world.initial_plain[at])
    assert not torch.equal(state.shared, without.shared)


def test_no_peek_lowers_the_distance_correlation() -> None:
    def correlation(weight: float) -> float:
        world = tiny_world(no_peek=weight, method="splitfed", rounds=8, depths="1", cohort=5, epochs=5, lr_client=0.1)
        state, _, _ = play(world, rounds=8)
        bottoms = CohortExecutor(world, Ledger()).begin(state).groups[1]
        q, _ = bottoms.forward()
        return float(distance_correlation(bottoms._x, q).mean())

    assert correlation(20.0) < correlation(0.0) - 0.02


@pytest.mark.parametrize(
    "changes",
    [
        {"cut_channels": 3, "cut_pool": 2},
        {"cut_sort": 3},
        {"guard": 0.5, "guard_width": 4, "no_peek": 0.1},
    ],
)
def test_stages_compile_with_the_step(changes: dict[str, Any]) -> None:
    recorder, notes = assert_recorded_as_played(tiny_world(**changes))
    assert_one_compilation(recorder, notes)


def test_a_narrow_model_is_exported_and_loaded(tmp_path: Path) -> None:
    keys = ["rounds=1", "epochs=1", "cut_channels=3", "cut_sort=4", "guard=0.1", "eval_masks=1"]
    done = run("demo", keys, out=tmp_path / "r")
    exported = export_run(done, out=tmp_path / "e")
    header = exported.model_file.read_bytes()[:20000].decode("latin1")
    assert "guard" not in header
    assert '\\"cut_sort\\": 4' in header
    words = [sys.executable, exported.example_file.name]
    loaded = subprocess.run(words, cwd=tmp_path / "e", capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    assert "tensor" in loaded.stdout


def test_a_checkpoint_keeps_the_guards() -> None:
    world = tiny_world(guard=0.5, guard_width=4)
    state, _, _ = play(world, rounds=1)
    again = State.from_tensors(world, state.to_tensors())
    for client, memory in state.bank.items():
        kept, found = memory.plain, again.bank[client].plain
        assert kept is not None
        assert found is not None
        assert torch.equal(kept, found)


def test_a_cut_of_one_pixel_has_no_neighbours_to_look_at() -> None:
    model = make_model(Recipe(model="resnet18-lean", depths="5", cut_channels=16, cut_pool=4), (3, 32, 32), 100)
    assert smashed_shape(model, (3, 32, 32), 5) == (16, 1, 1)
    assert [m.kernel_size for m in model.widen.modules() if isinstance(m, torch.nn.Conv2d)] == [(1, 1)]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
