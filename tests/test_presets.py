"""The recommended preset: what crosses the cut and what a client computes, counted at the paper's own cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmsfl.data.federation import Federation
from pmsfl.engine.protocol import Wire
from pmsfl.engine.world import World
from pmsfl.models.inspect import cut_cost, smashed_shape
from pmsfl.models.registry import make_model
from pmsfl.paper.tradeoff import deeper
from pmsfl.presets import overlay
from pmsfl.recipe import Recipe

CIFAR = (3, 32, 32)


def colour_federation() -> Federation:
    """Two clients with a few noisy images of CIFAR-100's shape."""
    x = np.random.default_rng(0).integers(0, 256, (8, *CIFAR), dtype=np.uint8)
    rows = np.arange(8, dtype=np.int64).reshape(2, 4)
    return Federation(
        name="colours",
        x=x,
        y=np.arange(8, dtype=np.int64),
        train=tuple(r[1:].copy() for r in rows),
        test=tuple(r[:1].copy() for r in rows),
        global_test=np.zeros(0, np.int64),
        classes=100,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        owners=("one", "two"),
        global_test_is_official=False,
    )


def test_far_fewer_bytes_cross_the_papers_cut() -> None:
    recipe = Recipe.load("cifar100", preset="private")
    shape = smashed_shape(make_model(recipe, CIFAR, 100), CIFAR, int(recipe.depths))
    world = World(recipe.replace(width=4), federation=colour_federation())  # the wire's codecs, whatever the width
    wire, batch = Wire(world), world.recipe.batch
    q = torch.randn(batch, *shape)
    labels = torch.zeros(batch, dtype=torch.int64)
    up = len(wire.write_step(0, 0, 0, q, labels)) - (36 + batch)  # the labels' header and a byte each
    down = len(wire.write_gradient(0, 0, 0, q))
    plain = 48 + 4 * batch * 128 * 16 * 16  # header and fp32, either way
    assert 2 * plain / (up + down) >= 64.0


@pytest.mark.parametrize("changes", [(), deeper.changes])
def test_a_clients_work_grows_by_a_quarter_at_most(changes: tuple[str, ...]) -> None:
    plain = Recipe.load("cifar100")
    private = Recipe.load("cifar100", changes, preset="private")
    before, after = (cut_cost(make_model(r, CIFAR, 100), CIFAR, int(r.depths), 1) for r in (plain, private))
    assert before.flops_per_sample < after.flops_per_sample <= 1.25 * before.flops_per_sample


def test_the_guard_is_counted_among_a_clients_work() -> None:
    private = Recipe.load("cifar100", preset="private")
    costs = [cut_cost(make_model(r, CIFAR, 100), CIFAR, 7, 1) for r in (private.replace(guard=0.1), private)]
    c, (_, h, w), width = private.cut_channels, costs[0].smashed_shape, private.guard_width
    forward = 2 * 9 * (c * width * h * w + width * 3 * 32 * 32)  # two 3 × 3 convolutions
    assert costs[0].smashed_shape == costs[1].smashed_shape
    assert costs[0].flops_per_sample - costs[1].flops_per_sample == 3 * forward  # backward for inputs and for weights


def test_a_resnet_is_cut_deeper_unless_its_clients_are_cut_at_several_depths() -> None:
    for recipe in ("cifar100", "femnist", "unipen"):
        assert Recipe.load(recipe, preset="private").model == "resnet18-tapered"
    assert smashed_shape(make_model(Recipe.load("cifar100", preset="private"), CIFAR, 100), CIFAR, 7) == (64, 2, 2)
    assert overlay("private", {"model": "resnet18"})["depths"] == "7"  # of a recipe that leaves its cut to the default
    mixed = Recipe.load("cifar100-depths", preset="private")
    assert (mixed.model, mixed.depths) == ("resnet18", "1:1:1:1")  # and refused for its narrow cut, with the reason


def test_sequences_go_without_what_is_for_maps() -> None:
    sequences = Recipe.load("mmhar", preset="private")
    assert (sequences.cut_channels, sequences.cut_codec) == (8, "int4")
    assert sequences.cut_pool == 1


@pytest.mark.parametrize("preset", ["paper", "authors", "fedpm"])
def test_presets_of_others_take_nothing_from_what_our_recipes_improve(preset: str) -> None:
    ours, theirs = Recipe.load("cifar100"), Recipe.load("cifar100", preset=preset)
    for key in ("union_rate", "eval_mask", "mask_act", "forward_masks", "upload_masks", "upload_draw"):
        default = Recipe.__dataclass_fields__[key].default
        assert getattr(theirs, key) == default != getattr(ours, key)
    sensors = Recipe.load("radar"), Recipe.load("radar", preset=preset)
    assert (sensors[0].weights_scale, sensors[1].weights_scale) == (0.5, 1.0)
    assert (sensors[0].forward_masks, sensors[1].forward_masks) == (15, 1)
    assert (sensors[1].mask_sharpness, sensors[1].score_spread) == (1.0, 1.0)
