"""Cases: observations as training makes them, truth as the client saw it, and no way from the one to the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.state import State
from pmsfl.engine.transcribe import Transcriber
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, uniform
from pmsfl.methods import METHODS
from pmsfl.privacy.cases import LINKED, Case, check_attackable
from pmsfl.privacy.metrics import MetricError
from pmsfl.privacy.recorded import as_recorded, read_recording, recordings
from pmsfl.privacy.same_view import one_step, same_view
from pmsfl.privacy.surface import client_surface
from pmsfl.tensorfile import write_tensors
from pmsfl.wire.ledger import Ledger
from tests.conftest import distinct, play, tiny_federation, tiny_world
from tests.privacy.helpers import image_federation, image_world


def recorded_case(folder: Path, images: int = 16, **changes: Any) -> tuple[World, Case]:
    world = image_world(dtype="float64", record=True, **changes)
    executor = CohortExecutor(world, Ledger())
    executor.transcriber = Transcriber(world, folder)
    state = State.initial(world)
    for _ in range(2):
        state, _ = executor.round(state)
    return world, as_recorded(world, folder, images)


@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_recorded_smashed_data_are_those_of_the_true_images(tmp_path: Path, augment: str) -> None:
    _, case = recorded_case(tmp_path, images=8, method="splitfed", augment=augment)
    surface = case.threat.surface
    again = surface.bottom(case.truth.unsqueeze(0), surface.weights.unsqueeze(0))
    assert torch.allclose(again, case.view.smashed[:, :, 0], atol=1e-9)
    assert case.view.linked == (2 if augment == "none" else 1)  # two epochs; augmented views are other images


def test_a_recorded_turn_is_said_to_be_a_part_of_its_round(tmp_path: Path) -> None:
    _, case = recorded_case(tmp_path, images=8, method="splitfed", merges=2, rounds=1)
    assert case.view.origin.startswith("as recorded: round 1, turn 2, ")
    assert any("one turn of 2 in its round" in note for note in case.notes)


@pytest.mark.parametrize(
    "stages",
    [
        {"method": "splitfed", "cut_clip": 0.5},
        {"method": "splitfed", "cut_clip": 0.5, "cut_channels": 3},
        {"method": "dense-frozen", "dp_smashed": "gaussian", "dp_clip_smashed": 0.5, "dp_epsilon_smashed": 1e9},
        {"method": "dense-frozen", "dp_smashed": "laplace", "dp_clip_smashed": 0.5, "dp_epsilon_smashed": 1e9},
    ],
)
def test_an_attack_knows_the_clip_that_smashed_data_leave_under(tmp_path: Path, stages: dict[str, Any]) -> None:
    norm = {"norm": "group"} if "dp_smashed" in stages else {}
    _, case = recorded_case(tmp_path, images=8, **stages, **norm)
    surface, seen = case.threat.surface, case.view.smashed[:, :, 0]
    again = surface.bottom(case.truth.unsqueeze(0), surface.weights.unsqueeze(0))
    assert torch.allclose(again, seen, atol=2e-3)
    assert torch.allclose(surface.bottom_of(case.truth, surface.weights), seen[0], atol=2e-3)
    assert float(seen.flatten(2).norm(dim=2).max()) < 0.51
    assert (
        float(
            surface.crossing(case.truth.unsqueeze(0), surface.weights.unsqueeze(0), torch.Generator())
            .sub(seen)
            .abs()
            .max()
        )
        < 2e-3
    )


def test_a_same_view_goes_over_the_wire_as_the_run_has_it() -> None:
    world = image_world(method="splitfed-pm", theta_codec="u8", gradient_codec="int8", cut_codec="fp16")
    case = same_view(world, State.initial(world), 8)
    (update,) = case.view.updates
    assert len(distinct(update.before)) <= 256
    assert case.threat.surface.theta is not None
    assert torch.allclose(case.threat.surface.theta, update.before, atol=1e-6)
    assert case.view.gradient is not None
    each = case.view.gradient[0].transpose(0, 1).flatten(1)
    assert all(len(distinct(channel)) <= 256 for channel in each)
    assert torch.equal(case.view.smashed, case.view.smashed.half().float())


def test_linked_observations_are_of_the_same_record(tmp_path: Path) -> None:
    # group norm and no training: the same image then always gives the same smashed data
    _, case = recorded_case(tmp_path, images=8, method="dense-frozen", norm="group", norms="frozen")
    assert case.view.linked == 2
    assert torch.allclose(case.view.smashed[:, :, 0], case.view.smashed[:, :, 1], atol=1e-9)
    assert not torch.allclose(case.view.smashed[:, 0], case.view.smashed[:, 1])


def test_as_recorded_needs_a_recording(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match="record=true"):
        as_recorded(image_world(), tmp_path, 8)


def test_a_file_that_is_no_transcript_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "round-1-client-1.safetensors", {}, {})
    with pytest.raises(PmsflError, match="no transcript of a round"):
        read_recording(recordings(tmp_path)[0])


def test_same_view_shows_the_same_images_under_fresh_masks() -> None:
    world = image_world()
    case = same_view(world, State.initial(world), 16)
    assert case.view.smashed.shape[:3] == (2, 8, LINKED)
    assert case.threat.true_weights is not None
    surface = case.threat.surface
    truth = case.truth.reshape(2, 8, *case.truth.shape[1:])
    assert torch.allclose(surface.bottom(truth, case.threat.true_weights), case.view.smashed[:, :, 0], atol=1e-5)
    looks = case.view.smashed[0].flatten(2)
    assert not torch.allclose(looks[:, 0], looks[:, 1])
    assert case.unmasked is not None
    whole = surface.bottom(truth, surface.weights.expand(2, -1))
    assert torch.allclose(whole, case.unmasked.smashed[:, :, 0], atol=1e-5)


def test_without_a_mask_that_flips_signs_the_bottom_runs_under_the_mean_of_it() -> None:
    world = image_world(mask_act="flip")
    case = same_view(world, State.initial(world), 16)
    surface, truth = case.threat.surface, case.truth.reshape(2, 8, *case.truth.shape[1:])
    assert surface.theta is not None
    assert case.unmasked is not None
    mean = surface.bottom(truth, (surface.weights * (2.0 * surface.theta - 1.0)).expand(2, -1))
    assert torch.allclose(mean, case.unmasked.smashed[:, :, 0], atol=1e-5)
    assert torch.equal(case.threat.unmasked().surface.weights, surface.expected())


@pytest.mark.parametrize("act", ["drop", "flip"])
@pytest.mark.parametrize("masks", [1, 4])
def test_masks_of_every_kind_are_drawn_and_used_as_clients_do(act: str, masks: int) -> None:
    world = image_world(mask_act=act, forward_masks=masks, upload_masks=masks, frozen="signed", dtype="float64")
    state = State.initial(world)
    real = client_surface(world, state, 0)
    drawn = real.draw(2000, torch.Generator().manual_seed(0))
    ratio = drawn / real.weights
    levels = {m / masks if act == "drop" else 2 * m / masks - 1 for m in range(masks + 1)}
    assert {round(v, 6) for v in ratio[:20].flatten().tolist()} == {round(v, 6) for v in levels}
    torch.testing.assert_close(drawn.mean(0) / real.weights, real.expected() / real.weights, atol=0.1, rtol=0.0)

    trained, u = world.method.start(state.shared[: len(real.weights)]), uniform(world.keys.at(Stream.NOISE, 0), 99)
    mine = world.method.effective(trained[:99], world.frozen[:99], u.double())
    assert {round(v, 6) for v in (mine / world.frozen[:99]).tolist()} <= {round(v, 6) for v in levels}
    (update,) = same_view(world, state, 8).view.updates
    assert update.kind == ("bits" if masks == 1 else "theta")
    assert torch.allclose(masks * update.after, (masks * update.after).round())


@pytest.mark.parametrize("act", ["drop", "flip"])
@pytest.mark.parametrize("masks", [1, 4])
def test_the_upload_of_a_same_view_is_learned_under_the_mask_that_was_seen(act: str, masks: int) -> None:
    world = image_world(mask_act=act, forward_masks=masks, method="splitfed-pm", dtype="float64")
    state, rows = State.initial(world), world.federation.train[0][:8]
    real = client_surface(world, state, 0)
    weights = real.draw(1, torch.Generator().manual_seed(3))[0]
    delta = real.bottom_of(torch.from_numpy(world.federation.x[rows]).double(), weights)
    update = one_step(world, state, 0, torch.from_numpy(rows), weights, delta)
    leaf = weights.clone().requires_grad_()
    out = real.bottom_of(torch.from_numpy(world.federation.x[rows]).double(), leaf)
    (by_weights,) = torch.autograd.grad(out, leaf, delta)
    moved = update.after - update.before
    clear = (by_weights * real.slope).abs() > 1e-8
    assert torch.equal(torch.sign(moved[clear]), -torch.sign((by_weights * real.slope)[clear]))  # Adam's first step


def test_a_victim_outside_of_the_rounds_plan_draws_its_upload_alone() -> None:
    world = image_world(upload_draw="even", cohort=2)
    away = next(r for r in range(20) if 0 not in world.plan(r).clients)
    state = replace(State.initial(world), round=away)
    (update,) = same_view(world, state, 8).view.updates
    assert set(update.after.tolist()) == {0.0, 1.0}


def test_one_sgd_step_shows_its_gradient() -> None:
    world = image_world(method="splitfed", dtype="float64")
    case = same_view(world, State.initial(world), 8)
    update, step, surface = case.view.updates[0], case.threat.step, case.threat.surface
    leaf = surface.weights.clone().requires_grad_()
    assert case.view.gradient is not None
    (expected,) = torch.autograd.grad(surface.bottom_of(case.truth, leaf), leaf, case.view.gradient[0])
    shown = (update.before - update.after) / step.lr - step.weight_decay * update.before
    assert torch.allclose(shown, expected, atol=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "splitfed", "guard": 0.5, "guard_width": 4},
        {"method": "splitfed", "no_peek": 0.7},
        {"method": "splitfed-pm", "guard": 0.5, "guard_width": 4, "no_peek": 0.7, "cut_channels": 3},
        {"method": "pm-sfl", "guard": 0.5, "guard_width": 4, "personal_ratio": 0.3, "agreement": 0.0},
        {"method": "splitfed-pm", "norm": "group", "norms": "frozen", "score_gradient_noise": 1.0},
        {"method": "depthfl", "train": "weights"},
    ],
    ids=["guard", "no-peek", "theta", "bits", "noised", "exits"],
)
def test_the_upload_of_one_step_is_the_engines(tmp_path: Path, changes: dict[str, Any]) -> None:
    """One client with one mini-batch: its round is that step, and the recording holds what it uploaded."""
    settings: dict[str, Any] = {"dtype": "float64", "batch": 20, "epochs": 1, "cohort": 1, "rounds": 2} | changes
    world = image_world(image_federation(clients=1), record=True, record_rounds="all", **settings)
    executor, state = CohortExecutor(world, Ledger()), State.initial(world)
    executor.transcriber = Transcriber(world, tmp_path)
    state, _ = executor.round(state)
    _ = executor.round(state)
    told = read_recording(recordings(tmp_path)[-1])
    (rows,) = world.batch_rows(0, told.round, told.steps)
    real = client_surface(world, state, 0)
    weights = real.weights
    if real.theta is not None:
        key = world.keys.client(Stream.FORWARD, torch.tensor([0]), told.round, 0)
        weights = weights * (uniform(key, len(weights), world.dtype)[0] < real.theta)
    update = one_step(world, state, 0, rows, weights, told.tensors["gradient"][0])
    assert torch.equal(update.contributes, told.tensors["upload.contributes"])
    assert torch.allclose(update.after, told.tensors["upload.values"].to(world.dtype), rtol=0.0, atol=1e-12)
    if real.theta is None:  # the same images in another order, and the gradient that the server's top gives for them
        case = same_view(world, state, 20)
        assert torch.allclose(case.view.updates[0].after, update.after, rtol=0.0, atol=1e-9)


def test_a_mini_batch_smaller_than_the_recipes_is_noised_sample_by_sample() -> None:
    world = image_world(norm="group", norms="frozen", score_gradient_noise=1.0, score_gradient_clip=1.0)
    (update,) = same_view(world, State.initial(world), 4).view.updates
    assert bool(update.after.any())


def test_the_public_has_no_victim() -> None:
    world = image_world()
    case = same_view(world, State.initial(world), 8)
    assert case.threat.public is not None
    assert len(case.threat.public) == 3 * 20
    apart = (case.threat.public.flatten(1)[:, None] - case.truth.flatten(1)[None]).abs().amax(-1)
    assert float(apart.min()) > 0.01


def test_transcript_and_threat_model_say_what_they_hold() -> None:
    world = image_world()
    case = same_view(world, State.initial(world), 8)
    assert "1 mini-batches of 8 images, 16x6x6 each, 32 observations" in str(case.view)
    assert "mask bits" in str(case.view)
    assert "60 images of the same kind" in str(case.threat)
    assert "θ of every mask bit" in str(case.threat)


def _within(thing: object, seen: set[int]) -> Iterator[object]:
    """Everything that can be reached from an object by its attributes, items, cells and bound methods."""
    if id(thing) in seen or isinstance(thing, type | str | bytes | int | float | None):
        return
    seen.add(id(thing))
    yield thing
    parts: list[object] = []
    if isinstance(thing, dict):
        parts += thing.values()
    elif isinstance(thing, list | tuple | set):
        parts += thing
    elif not isinstance(thing, Tensor):
        parts += getattr(thing, "__dict__", {}).values()
        parts += [c.cell_contents for c in getattr(thing, "__closure__", None) or ()]
        parts.append(getattr(thing, "__self__", None))
    for part in parts:
        yield from _within(part, seen)


@pytest.mark.parametrize("kind", ["same-view", "as-recorded"])
def test_no_path_leads_from_an_attack_to_the_images(tmp_path: Path, kind: str) -> None:
    if kind == "as-recorded":
        world, case = recorded_case(tmp_path, augment="crop")
    else:
        world = image_world()
        case = same_view(world, State.initial(world), 8)
    reached = list(_within((case.view, case.threat), set()))
    assert any(isinstance(t, nn.Module) for t in reached)  # the walk does get somewhere
    assert not any(isinstance(t, World) or t is world.federation for t in reached)
    hidden = {case.truth.untyped_storage().data_ptr(), world.x.untyped_storage().data_ptr()}
    tensors = [t for t in reached if isinstance(t, Tensor)]
    assert len(tensors) > 5
    assert hidden.isdisjoint(t.untyped_storage().data_ptr() for t in tensors)


def test_data_without_images_is_refused() -> None:
    with pytest.raises(MetricError, match="11x11"):
        check_attackable(tiny_world())
    with pytest.raises(PmsflError, match="attacks are measured on uint8 images"):
        check_attackable(tiny_world(tiny_federation(shape=(1, 12, 12))))


def test_a_lonely_client_leaves_no_public_images() -> None:
    world = image_world(image_federation(clients=1), cohort=1)
    assert same_view(world, State.initial(world), 8).threat.public is None


@pytest.mark.parametrize("method", ["pm-sfl", "splitfed"])
def test_labels_that_stay_hide_no_gradient_and_no_upload(method: str) -> None:
    """The server makes the gradients at the cut itself, whoever has the labels."""
    world, open_world = image_world(method=method, labels="u-shape"), image_world(method=method)
    view, seen = (same_view(w, State.initial(w), 8).view for w in (world, open_world))
    assert view.labels is None
    assert "never crossed" in str(dataclasses.replace(view))
    torch.testing.assert_close(view.gradient, seen.gradient)
    torch.testing.assert_close([u.after for u in view.updates], [u.after for u in seen.updates])


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("depths", ["2", "1:1"])
def test_every_method_can_be_attacked(tmp_path: Path, method: str, depths: str) -> None:
    world, case = recorded_case(tmp_path, 8, method=method, depths=depths, width=4, personal_ratio=0.3, agreement=0.0)
    state, _, _ = play(world, rounds=1)
    for found in (case, same_view(world, state, 8)):
        random = world.method.samples_masks
        assert (found.threat.surface.theta is not None) == random == (found.unmasked is not None)
        assert bool(found.view.updates) == (world.method.uploads != "nothing")
        assert torch.isfinite(found.view.smashed).all()
        again = found.threat.surface.crossing(
            found.truth.unsqueeze(0), found.threat.surface.draw(1, found.threat.generator()), found.threat.generator()
        )
        assert again.shape == found.view.smashed[:, :, 0].shape


@pytest.mark.parametrize("method", ["pm-sfl", "threshold-mask"])
@pytest.mark.parametrize("act", ["drop", "flip"])
def test_weights_change_with_their_mask_as_the_frozen_ones_say(method: str, act: str) -> None:
    world = image_world(method=method, mask_act=act)
    surface = client_surface(world, State.initial(world), 0)
    frozen = world.frozen[: len(surface.weights)]
    torch.testing.assert_close(surface.slope, frozen if act == "drop" else 2 * frozen)
