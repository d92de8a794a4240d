"""Recorded steps are the steps: every method, any number of clients from one compilation, spare rows for nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import pmsfl.engine.record as record
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.compile import Lower
from pmsfl.engine.replay import WARM_UP
from pmsfl.engine.rows import tensors
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.methods import METHODS
from pmsfl.models.norm import StaticBN
from pmsfl.models.split import SplitModel

from ..conftest import assert_same_tensors, copied, play, tiny_federation, tiny_world
from .recorded import assert_one_compilation, assert_recorded_as_played, played, recording, two_blocks
from .test_agreement import assert_agree

MIXED = "1,2,3,4,2"
TWO_DEPTHS = "1,2,2,1,2"


@pytest.fixture
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of every world made in a test: `two_blocks`."""
    monkeypatch.setattr("pmsfl.engine.world.make_model", two_blocks)


# --- every method


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize("method", [m for m in METHODS if m != "depthfl"])
def test_one_compilation_plays_every_round_of_a_method(method: str) -> None:
    world = tiny_world(method=method, depths="1", aggregate="sampled")
    recorder, notes = assert_recorded_as_played(world)
    assert_one_compilation(recorder, notes)
    assert set(recorder.replays) == {(3,), (2,), (1,)}


def test_one_compilation_plays_every_round_of_depthfl() -> None:
    """Its exits are for images and sequences."""
    recorder, notes = assert_recorded_as_played(tiny_world(method="depthfl", depths="1"))
    assert_one_compilation(recorder, notes)


@pytest.mark.parametrize("method", METHODS)
def test_slots_and_spare_rows_change_no_method(method: str) -> None:
    """Recorded but not compiled: four depths, of which some have nobody in a round."""
    recorder, notes = assert_recorded_as_played(tiny_world(method=method, depths=MIXED), rounds=3, lower=None)
    assert notes == []
    assert recorder.counts.compilations == 0
    for slot in range(4):
        assert any(signature[slot] == 0 for signature in recorder.replays)


@pytest.mark.usefixtures("tiny_model")
def test_one_compilation_plays_two_depths_however_many_clients_each_has() -> None:
    world = tiny_world(method="splitfed", depths=TWO_DEPTHS, aggregate="sampled")
    recorder, notes = assert_recorded_as_played(world)
    assert_one_compilation(recorder, notes)
    assert {(0, 3), (2, 0)} <= set(recorder.replays)


# --- who is there


def absent_first(**changes: Any) -> World:
    """A world in whose first round nobody of depth 1 takes part."""
    return next(w for seed in range(20) if 1 not in (w := tiny_world(seed=seed, **changes)).plan(0).depths)


@pytest.mark.usefixtures("tiny_model")
def test_a_compilation_without_anybody_of_a_depth_serves_when_they_come() -> None:
    world = absent_first(depths="1,2,2,2,2")
    rounds = next(t for t in range(1, 20) if 1 in world.plan(t).depths) + 1
    recorder, notes = assert_recorded_as_played(world, rounds)
    assert_one_compilation(recorder, notes)
    assert next(iter(recorder.replays))[0] == 0


def test_a_spare_row_counts_for_nothing_whatever_it_holds() -> None:
    world = tiny_world(depths=MIXED)
    executor, recorder, _ = recording(world, None)
    state, _ = played(executor, 1)
    other, spoiled, _ = recording(world, None)
    play_ = other.begin(State.initial(world))
    assert spoiled.memory is not None
    for rows in spoiled.memory.groups.values():
        for t in (rows.trained, rows.plain):
            t[-1] = 3.0
        rows.ids[-1] = 4
        rows.batches[-1] = 7
    for active in play_.plan.active:
        other.step(play_, active)
    again, _ = other.finish(play_)
    assert recorder.replays.keys() == spoiled.replays.keys()
    assert_agree(state, again)


@pytest.mark.parametrize(("depths", "rounds"), [("2", 3), (MIXED, 4)])
def test_memory_is_enough_for_those_who_failed_in_the_first_round(depths: str, rounds: int) -> None:
    world = tiny_world(depths=depths, failures=0.4, stragglers=0.4, cohort=5)
    counts = [len(world.plan(t).clients) for t in range(rounds)]
    assert counts[0] < max(counts)
    assert any(any(world.plan(t).late) for t in range(rounds))
    assert_recorded_as_played(world, rounds, lower=None)


def _remember(programs: list[tuple[str, list[torch.Size]]]) -> Lower:
    """Instead of a compiler: what one is given, which torch's cache on disk goes by."""

    def lower(graph: fx.GraphModule, fakes: list[Tensor], mode: Any) -> Callable[..., Any]:
        programs.append((graph.code, [f.shape for f in fakes]))
        return graph

    return lower


@pytest.mark.usefixtures("tiny_model")
def test_clients_of_other_sizes_find_the_same_program() -> None:
    programs: list[tuple[str, list[torch.Size]]] = []
    for sizes in ((5, 9, 4, 7, 5), (3, 5, 4, 6, 12)):
        world = tiny_world(tiny_federation(sizes), depths=TWO_DEPTHS, cohort=5, batch=2)
        executor, _, notes = recording(world, _remember(programs))
        played(executor, 1)
        assert notes == []
    (code, shapes), (other_code, other_shapes) = programs
    assert code == other_code
    assert [str(s) for s in shapes] == [str(s) for s in other_shapes]


def test_there_is_room_for_the_longest_round() -> None:
    for longest in (1, 2, 1023, 1024, 1025, 3000, 4096, 4097):
        room = record.steps_with_room(longest)
        assert longest <= room < 2 * max(longest, record.LEAST_STEPS)
        assert room.bit_count() == 1


# --- what cannot be traced is played as it is


class CountedOnce(nn.Module):
    """Its operation needs the number of clients as a number."""

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, 2)


def counted(*_: object) -> SplitModel:
    return SplitModel([nn.Sequential(nn.Flatten(), nn.Linear(64, 6), CountedOnce())], nn.Linear(6, 4))


class Choosing(nn.Linear):
    """Looks at its numbers."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if float(out.detach().sum()) > 0 else out * 2


def choosing_top(*_: object) -> SplitModel:
    """Clients can run side by side, but the server cannot be traced."""
    return SplitModel([nn.Sequential(nn.Flatten(), nn.Linear(64, 6)), Choosing(6, 6)], nn.Linear(6, 4))


@pytest.mark.parametrize("model", [counted, choosing_top])
def test_a_model_that_cannot_be_traced_is_noted_once_and_played(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.world.make_model", model)
    world = tiny_world(depths="1")
    recorder, notes = assert_recorded_as_played(world)
    assert len(notes) == 1
    assert notes[0].startswith("steps are captured but not compiled: ")
    assert "\n" not in notes[0]
    assert recorder.counts.compilations == 0
    assert len(recorder.replays) == 3


def test_a_model_that_runs_looped_is_recorded_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def looped(*_: object) -> SplitModel:
        first = nn.Sequential(nn.Flatten(), Choosing(64, 8))
        return SplitModel([first, nn.Sequential(nn.Linear(8, 6), StaticBN(6))], nn.Linear(6, 4))

    monkeypatch.setattr("pmsfl.engine.world.make_model", looped)
    world = tiny_world(depths=TWO_DEPTHS)
    assert world.why_looped is not None
    _, notes = assert_recorded_as_played(world, lower=None)
    assert notes == []


# --- memory


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize("method", ["pm-sfl", "splitfed"])
def test_a_state_given_to_a_round_stays_as_it_was(method: str) -> None:
    world = tiny_world(
        method=method, depths=TWO_DEPTHS, client_state="persistent", norms="local", server_optimiser="adam"
    )
    executor, _, _ = recording(world, None)
    state = State.initial(world)
    states, before = [state], [copied(state)]
    for _ in range(3):
        state, _ = executor.round(state)
        states.append(state)
        before.append(copied(state))
    for s, tensors_before in zip(states, before, strict=True):
        assert_same_tensors(copied(s), tensors_before)


@pytest.mark.usefixtures("tiny_model")
def test_no_state_shares_memory_with_the_recordings() -> None:
    executor, recorder, _ = recording(tiny_world(depths="1", method="splitfed"), None)
    state, _ = played(executor, 2)
    assert recorder.memory is not None
    held = {t.untyped_storage().data_ptr() for t in tensors(recorder.memory)}
    for name, t in state.to_tensors().items():
        assert not t.numel() or t.untyped_storage().data_ptr() not in held, name


@pytest.mark.usefixtures("tiny_model")
def test_compiling_moves_nothing_and_all_rounds_go_on_in_the_same_memory() -> None:
    world = tiny_world(depths="1")
    executor, recorder, _ = recording(world)
    playing = executor.begin(State.initial(world))
    assert recorder.memory is not None
    places, before = _places(recorder), [t.clone() for t in tensors(recorder.memory)]
    recorder._player(recorder._part((playing.plan.active[0][1],)))
    assert recorder.counts.compilations == 1
    assert all(torch.equal(a, b) for a, b in zip(tensors(recorder.memory), before, strict=True))
    first, _ = executor.round(State.initial(world))
    second, _ = executor.round(first)
    again, _ = executor.round(first)  # the old state is as good as it was
    assert_same_tensors(copied(second), copied(again))
    assert _places(recorder) == places
    assert recorder.counts.compilations == 1


def _places(recorder: record.Recorder) -> list[int]:
    return [t.data_ptr() for t in tensors(recorder.memory)]


@pytest.mark.usefixtures("tiny_model")
def test_a_round_that_was_interrupted_costs_only_itself() -> None:
    world = tiny_world(depths="1")
    executor, recorder, _ = recording(world, None)
    state, _ = executor.round(State.initial(world))
    play_ = executor.begin(state)
    executor.step(play_, play_.plan.active[0])  # then an interrupt: the round is never finished
    broken = recorder.replays
    recorder.replays = type(broken)((signature, _raise) for signature in broken)
    with pytest.raises(KeyboardInterrupt):
        executor.round(state)
    recorder.replays = broken
    state, _ = executor.round(state)
    assert_agree(state, play(world, CohortExecutor, 2)[0])


def _raise() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("tiny_model")
def test_a_step_that_fails_while_it_is_recorded_is_recorded_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tiny_world(depths="1")
    executor, recorder, notes = recording(world)
    with monkeypatch.context() as m:
        m.setattr(recorder, "union_step", lambda *_: _raise())
        with pytest.raises(KeyboardInterrupt):
            executor.round(State.initial(world))
    assert not recorder.replays
    state, _ = played(executor)
    assert_agree(state, play(world, CohortExecutor, 2)[0])
    assert_one_compilation(recorder, notes)


def test_the_recording_not_used_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_GRAPHS", 2)
    recorder, _ = assert_recorded_as_played(tiny_world(depths="2"), 2, lower=None)
    assert list(recorder.replays) == [(2,), (1,)]


@pytest.mark.parametrize("method", ["pm-sfl", "splitfed", "depthfl"])
def test_a_recording_of_more_clients_stands_in_and_nobody_notices(method: str) -> None:
    """Whoever is done keeps what they had then, whatever is played on in their row."""
    changes = {"depths": "1,2,1,2,1", "cohort": 5, "client_state": "persistent", "method": method}
    world = tiny_world(tiny_federation((6, 9, 14, 19, 25)), **changes)
    executor, recorder, _ = recording(world, None)
    recorder.patience = 10**9
    state, _ = played(executor, 3)
    assert len(recorder.replays) == 1  # the whole cohort's
    assert sum(recorder.wasted.values()) > 0
    assert_agree(state, play(world, CohortExecutor, 3)[0])


def test_a_recording_stands_in_until_that_costs_as_much_as_a_capture() -> None:
    world = tiny_world(tiny_federation((6, 9, 14, 19, 25)), depths="1,2,1,2,1", cohort=5)
    executor, recorder, _ = recording(world, None)
    signatures = {recorder._signature(active) for t in range(4) for active in world.plan(t).active}
    recorder.patience = 12
    state, _ = played(executor, 4)
    assert 1 < len(recorder.replays) < len(signatures)
    assert max(recorder.wasted.values()) <= 12
    assert_agree(state, play(world, CohortExecutor, 4)[0])


def test_libraries_choose_kernels_once_for_every_number_of_clients_a_block_has() -> None:
    _, recorder, _ = recording(tiny_world(depths=MIXED), None)
    recorder.compiled = object()  # type: ignore[assignment]
    calls = [recorder._warm_up(s) for s in ((2, 1, 1, 1), (1, 1, 2, 1), (2, 1, 1, 1), (3, 1, 1, 1))]
    assert calls == [WARM_UP, 1, 0, 1]
    recorder._warm_up((1, 2, 1, 1))
    assert recorder._warm_up((2, 0, 1, 1)) == 0  # an empty slot has a spare row
    recorder.compiled = None  # what runs as it is may meet other sizes
    assert recorder._warm_up((2, 1, 1, 1)) == 1


def test_a_cpu_has_no_recorder() -> None:
    for capture in ("auto", "graph", "off"):
        assert play(tiny_world(tiny_federation((6, 6, 6)), capture=capture), rounds=1)[0].round == 1
        assert CohortExecutor(tiny_world(capture=capture), recording(tiny_world())[0].ledger).recorder is None
