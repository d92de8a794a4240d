"""Recorded steps under every option that changes what a step does."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from pmsfl.models.split import SplitModel

from ..conftest import tiny_federation, tiny_world
from .recorded import assert_one_compilation, assert_recorded_as_played, two_blocks

MIXED = "1,2,3,4,2"
TWO_DEPTHS = "1,2,2,1,2"
ADAM: dict[str, Any] = {"client_optimiser": "adam", "server_optimiser": "adam", "lr_client": 1e-2, "lr_server": 1e-2}

RECORDED: dict[str, dict[str, Any]] = {
    "u-shape": {"labels": "u-shape"},
    "u-shape-mixed": {"labels": "u-shape", "depths": "1,2,3,3,2"},
    "mask-per-round-mixed": {"mask_per": "round", "depths": MIXED},
    "norms-local": {"norms": "local", "depths": MIXED},
    "norms-frozen": {"norms": "frozen", "depths": MIXED},
    "group-norm": {"norm": "group", "depths": MIXED},
    "persistent": {"client_state": "persistent", "depths": MIXED, **ADAM},
    "persistent-weights": {"client_state": "persistent", "method": "splitfed", "momentum": 0.0},
    "bf16-cut": {"cut_codec": "bf16"},
    "int4-cut": {"cut_codec": "int4", "gradient_codec": "int8", "depths": MIXED},
    "weights": {"method": "depthfl", "train": "weights", "depths": MIXED},
    "lg-fedavg-weights": {"method": "lg-fedavg", "train": "weights", "depths": MIXED},
    "labels-randomised": {"labels": "randomised", "label_epsilon": 1.0, "depths": MIXED},
    "cosine": {"score_schedule": "cosine", "lr_schedule": "constant", "depths": MIXED},
    "beta": {"aggregate": "beta", "beta_reset": 2, "depths": MIXED},
    "deepest": {"depths": "4"},
    "two-epochs": {"epochs": 2, "cohort": 5, "depths": MIXED},
    "one-client": {"cohort": 1, "depths": MIXED},
}


def test_a_compiled_step_augments_repeats_its_mask_and_rounds_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.world.make_model", two_blocks)
    world = tiny_world(depths="1", augment="crop-flip", mask_per="round", masked_top=True, cut_codec="int8")
    recorder, notes = assert_recorded_as_played(world)
    assert_one_compilation(recorder, notes)


@pytest.mark.parametrize("option", RECORDED)
def test_a_recorded_step_knows_every_option(option: str) -> None:
    _, notes = assert_recorded_as_played(tiny_world(**RECORDED[option]), 3, lower=None)
    assert notes == []


def test_a_convolutional_network_with_depths_that_differ() -> None:
    recorder, notes = assert_recorded_as_played(tiny_world(depths="1,3,1,3,1"))
    assert_one_compilation(recorder, notes)
    assert any(0 in signature for signature in recorder.replays)


def test_a_residual_network_on_cropped_and_flipped_images() -> None:
    world = tiny_world(
        tiny_federation(shape=(3, 8, 8)), model="resnet18", width=4, depths="1", augment="crop-flip", batch=4
    )
    assert_recorded_as_played(world, 1, lower=None)


def test_a_u_shape_with_depths_that_differ_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def three_blocks(*_: object) -> SplitModel:
        blocks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU()), nn.Linear(6, 5), nn.Linear(5, 5)]
        return SplitModel(blocks, nn.Linear(5, 4))

    monkeypatch.setattr("pmsfl.engine.world.make_model", three_blocks)
    recorder, notes = assert_recorded_as_played(tiny_world(labels="u-shape", depths=TWO_DEPTHS))
    assert_one_compilation(recorder, notes)


def test_a_transformer_with_depths_that_differ() -> None:
    world = tiny_world(tiny_federation(shape=(3, 4)), model="transformer", width=4, depths=TWO_DEPTHS)
    assert_recorded_as_played(world, lower=None)


def test_layer_norm_and_group_norm_are_compiled_for_any_number_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def both_norms(*_: object) -> SplitModel:
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GroupNorm(2, 8), nn.ReLU())
        return SplitModel([first, nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6))], nn.Linear(6, 4))

    monkeypatch.setattr("pmsfl.engine.world.make_model", both_norms)
    recorder, notes = assert_recorded_as_played(tiny_world(depths="2"))
    assert_one_compilation(recorder, notes)


# --- dropout draws by position in the union, where a spare row would push the others


def with_dropout(*_: object) -> SplitModel:
    blocks = [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.3)),
        nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)),
    ]
    return SplitModel(blocks, nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 4)))


def test_dropout_and_adam_are_compiled_for_any_number_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.world.make_model", with_dropout)
    recorder, notes = assert_recorded_as_played(tiny_world(depths="1", method="splitfed", **ADAM))
    assert_one_compilation(recorder, notes)


def test_dropout_drops_the_same_units_beside_spare_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.world.make_model", with_dropout)
    recorder, _ = assert_recorded_as_played(tiny_world(depths=TWO_DEPTHS), lower=None)
    assert any(shallow == 0 for shallow, _ in recorder.replays)


# --- noise


def test_a_spare_row_of_zeros_is_clipped_without_harm() -> None:
    """Its smashed data are 0, where a norm has no slope."""
    world = tiny_world(
        tiny_federation(shape=(3, 4)),
        model="transformer",
        width=4,
        method="splitfed-dp",
        dp_calibration="sound",
        norm="group",
        norms="local",
        depths=TWO_DEPTHS,
    )
    recorder, _ = assert_recorded_as_played(world, lower=None)
    assert any(0 in signature for signature in recorder.replays)
    assert recorder.memory is not None
    assert all(rows.trained.isfinite().all() for rows in recorder.memory.groups.values())
