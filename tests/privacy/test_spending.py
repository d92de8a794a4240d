"""What was shown to the server, counted from plans, against a count of the batches themselves."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.engine.channels import Channel, channels, theta_sensitivity
from pmsfl.engine.plan import batch_positions, local_steps
from pmsfl.engine.spending import Spending, participation
from pmsfl.engine.world import World
from pmsfl.masks.random import Stream, root
from pmsfl.privacy.accounting import Event, bound
from pmsfl.privacy.mechanisms import gaussian_epsilon, gaussian_ratio, zcdp_epsilon

from ..conftest import tiny_recipe, tiny_world

PRIVATE: dict[str, Any] = {"norm": "group", "norms": "frozen", "personal_ratio": 0.0}


def channel(world: World, name: str) -> Channel:
    return {c.name: c for c in channels(world)}[name]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 4), st.integers(0, 3))
def test_no_record_is_seen_more_often_than_counted(samples: int, batch: int, epochs: int, seed: int) -> None:
    recipe = tiny_recipe(batch=batch, epochs=epochs)
    steps = local_steps(recipe, samples, 0)
    counted = participation(recipe, samples, steps)
    places = batch_positions(root(seed, Stream.BATCHES), samples, steps, batch).numpy()
    per_step = np.stack([np.bincount(row, minlength=samples) for row in places])
    assert per_step.sum(0).max() <= counted.own
    assert (per_step**2).sum(0).max() <= counted.squares
    assert counted.rows == per_step.sum()
    assert counted.own - 1 <= per_step.sum(0).min()


def test_observations_are_those_of_the_batches() -> None:
    world = tiny_world(rounds=6, failures=0.2, stragglers=0.3, cohort=4)
    times = torch.zeros(len(world.x), dtype=torch.int64)
    for t in range(6):
        plan = world.plan(t)
        for client, steps in zip(plan.clients, plan.steps, strict=True):
            times += torch.bincount(world.batch_rows(client, t, steps).flatten(), minlength=len(times))
    held = torch.cat(world.train_rows)
    found = Spending.of(world, 6).observations(world)
    assert found is not None
    assert found[0] == pytest.approx(times[held].double().mean().item())
    assert times.max() <= found[1] <= times.max() + 6  # a round's last order may not reach everybody


def test_one_mask_per_round_is_one_observation_per_round() -> None:
    world = tiny_world(mask_per="round", cohort=5, epochs=3)
    found = Spending.of(world, 3).observations(world)
    assert found is not None
    assert found[0] == pytest.approx(3.0)
    assert found[1] == 3


def test_without_random_masks_nothing_is_seen_under_a_fresh_one() -> None:
    assert Spending.of(tiny_world(method="splitfed"), 1).observations(tiny_world(method="splitfed")) is None


@pytest.mark.parametrize("cut", range(5))
def test_spending_goes_on_where_it_stopped_and_never_falls(cut: int) -> None:
    world = tiny_world(rounds=5, failures=0.2, stragglers=0.3, score_clip=0.3)
    whole, resumed = Spending.of(world, 5), Spending.of(world, cut)
    masks, last = channel(world, "masks"), 0.0
    for t in range(cut, 5):
        later = resumed.after(world, world.plan(t))
        for client, spent in resumed.clients.items():
            assert all(a <= b for a, b in zip(astuple(spent), astuple(later.clients[client]), strict=True))
        resumed = later
        epsilon = masks.most(resumed, 1e-5)
        assert epsilon is not None
        assert epsilon >= last
        last = epsilon
    assert resumed == whole


# --- channels


def test_by_default_nothing_is_guaranteed_but_what_never_leaves() -> None:
    found = {c.name: c.events is not None for c in channels(tiny_world())}
    assert [n for n, covered in found.items() if covered] == ["gradients"]


def test_masks_of_clipped_scores_are_counted_per_upload() -> None:
    world = tiny_world(score_clip=0.5, cohort=5)
    masks = channel(world, "masks")
    assert masks.unit == "client"
    assert masks.most(Spending.of(world, 3), 1e-5) == pytest.approx(zcdp_epsilon(3 * 0.25 / 8, 1e-5))


@pytest.mark.parametrize("method", ["splitfed-pm", "threshold-mask"])
def test_a_clip_without_sampled_bits_guarantees_nothing(method: str) -> None:
    assert channel(tiny_world(score_clip=0.5, method=method), "masks").events is None


def test_noise_on_theta_is_accounted_with_all_coordinates() -> None:
    world = tiny_world(theta_noise=2.0, cohort=5)
    d, c = world.masked_size(2), world.recipe.clip
    reach = d**0.5 * (1 - 2 * c)
    assert theta_sensitivity(world) == pytest.approx(reach)
    found = channel(world, "masks").most(Spending.of(world, 2), 1e-5)
    assert found == pytest.approx(gaussian_epsilon(2**0.5 * reach / 2.0, 1e-5))
    assert theta_sensitivity(tiny_world(theta_noise=2.0, score_clip=0.4)) == pytest.approx(0.1)


def test_smashed_data_count_every_release_that_a_record_can_have_shaped() -> None:
    world = tiny_world(dp_smashed="gaussian", dp_epsilon_smashed=1.0, cohort=5, **PRIVATE)
    spending = Spending.of(world, 3)
    smashed, ratio = channel(world, "smashed data"), gaussian_ratio(1.0, 1e-5)
    rows, own = (max(getattr(s, f) for s in spending.clients.values()) for f in ("rows", "own"))
    assert rows > own
    assert smashed.unit == "client"
    assert smashed.most(spending, 1e-5) == pytest.approx(gaussian_epsilon(ratio * rows**0.5, 1e-5))
    assert smashed.most_own(spending, 1e-5) == pytest.approx(gaussian_epsilon(ratio * own**0.5, 1e-5))


def test_a_bottom_that_learns_nothing_tells_of_a_record_in_its_own_releases_alone() -> None:
    world = tiny_world(dp_smashed="gaussian", method="dense-frozen", norm="group", norms="frozen")
    smashed, spending = channel(world, "smashed data"), Spending.of(world, 2)
    own = max(s.own for s in spending.clients.values())
    assert smashed.unit == "sample"
    assert smashed.most(spending, 1e-5) == pytest.approx(gaussian_epsilon(gaussian_ratio(0.1, 1e-5) * own**0.5, 1e-5))


def test_noised_gradients_cover_masks_indicator_and_what_they_shape() -> None:
    changes = PRIVATE | {"personal_ratio": 0.5}
    world = tiny_world(dp_smashed="gaussian", score_gradient_noise=4.0, cohort=5, **changes)
    spending = Spending.of(world, 2)
    steps = bound([Event("gaussian", 0.5, max(s.squares for s in spending.clients.values()))], 1e-5)
    assert channel(world, "masks").most(spending, 1e-5) == pytest.approx(steps)
    assert channel(world, "indicator").most(spending, 1e-5) == pytest.approx(steps)
    smashed = channel(world, "smashed data")
    found = smashed.most(spending, 1e-5)
    assert smashed.unit == "sample"
    assert found is not None
    assert found > steps


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"personal_ratio": 0.5, "score_clip": 0.3}, "indicator"),
        ({"norms": "shared"}, "norms"),
        ({"labels": "shared"}, "labels"),
        ({"labels": "u-shape"}, "feature gradients"),
        ({"norm": "batch"}, "statistics"),
        ({"method": "splitfed"}, "weights"),
        ({"method": "splitfed-dp"}, "smashed data"),
        ({"method": "depthfl", "norms": "frozen"}, "norms"),  # its classifiers go up
    ],
)
def test_what_goes_up_unprotected_has_no_figure(changes: dict[str, Any], name: str) -> None:
    assert channel(tiny_world(**changes), name).events is None


@pytest.mark.parametrize(
    ("changes", "name", "epsilon"),
    [
        ({"personal_ratio": 0.0}, "indicator", 0.0),
        ({"personal_order": "random"}, "indicator", 0.0),
        ({"norms": "local"}, "norms", 0.0),
        ({"norms": "frozen"}, "norms", 0.0),
        ({"labels": "u-shape"}, "labels", 0.0),
        ({"labels": "randomised", "label_epsilon": 2.5}, "labels", 2.5),
        ({"norm": "group"}, "statistics", 0.0),
        ({"statistics": "batch"}, "statistics", 0.0),
        ({"method": "frozen-mask"}, "weights", 0.0),
    ],
)
def test_what_stays_or_is_randomised_has_its_figure(changes: dict[str, Any], name: str, epsilon: float) -> None:
    world = tiny_world(**changes)
    assert channel(world, name).most(Spending.of(world, 3), 1e-5) == epsilon


def test_sound_splitfed_dp_counts_uploads_and_releases() -> None:
    world = tiny_world(method="splitfed-dp", dp_calibration="sound", norm="group", norms="local", cohort=5)
    spending = Spending.of(world, 3)
    weights = channel(world, "weights").most(spending, 1e-5)
    assert weights == pytest.approx(gaussian_epsilon(gaussian_ratio(5.0, 1e-5) * 3**0.5, 1e-5))
    assert channel(world, "smashed data").unit == "client"
