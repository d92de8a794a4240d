"""Codecs in a round: counted is what is written, both sides hold the same θ, plans say what they cannot know."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from pmsfl.engine.client import Finished
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.cost import client_costs, planned_bytes
from pmsfl.engine.protocol import Wire
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.wire.codecs import Codec, WireError
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Kind, split

from ..conftest import bottoms_of, play, tiny_world

CODED: dict[str, Any] = {"mask_codec": "entropy", "theta_codec": "entropy"}


def finished(world: World) -> tuple[Finished, torch.Tensor]:
    """A client at the end of a round in which its scores moved, and the θ that it began with."""
    state = State.initial(world)
    theta = Wire(world).start(world.sent(state.shared, 2), 2).shared
    bottoms = bottoms_of(world, state, [1], [1])
    bottoms.rows.trained += torch.linspace(-1, 1, theta.numel(), dtype=world.dtype)
    return bottoms.finish(), theta


@pytest.mark.parametrize("codec", ["native", "u16", "u8", "entropy"])
def test_clients_begin_with_the_theta_that_was_decoded(codec: str) -> None:
    world = tiny_world(theta_codec=codec)
    wire, state = Wire(world), State.initial(world)
    shared, plain = world.sent(state.shared, 2), state.plain[world.plain_view(2).sent]
    data = wire.write_start(0, 1, shared, plain)
    start = wire.start(shared, 2)
    received, _ = wire.read_start(data, 2, shared)
    assert torch.equal(received, start.shared)
    assert {m.kind: len(m.encode()) for m in split(data)} == start.costs
    assert all(start.costs[kind] <= most for kind, most in wire.start_bytes(2).items())
    play = CohortExecutor(world, Ledger()).begin(state)
    clients = play.groups[2].before
    assert clients is not None
    assert float((clients[0] - received.clamp(0.01, 0.99)).abs().max()) < 1e-12


def test_a_coded_upload_comes_back_and_has_the_counted_length() -> None:
    world = tiny_world(**CODED)
    wire, (done, theta) = Wire(world), finished(world)
    data = wire.write_finish(0, 1, done, 0, theta)
    assert {m.kind: len(m.encode()) for m in split(data)} == wire.finish_bytes(done, 0, theta)
    assert {m.kind: m.codec for m in split(data)}[Kind.MASK] == Codec.CODED_BITS
    values, contributes, _, personal = wire.read_finish(data, 2, torch.zeros(len(theta), dtype=torch.bool), theta)
    assert torch.equal(contributes, done.contributes[0])
    assert torch.equal(values[contributes], done.values[0][contributes])
    assert torch.equal(personal, done.fresh[0])


def test_new_indices_count_among_what_is_still_shared() -> None:
    """A set that has grown before: indices are places in what was left, so that they take fewer bits."""
    world = tiny_world()
    wire, (done, _) = Wire(world), finished(world)
    old = torch.zeros_like(done.fresh[0])
    old[::3] = True
    old &= ~done.fresh[0]
    grown = Finished(done.values, done.contributes & ~old, done.fresh, done.plain, done.memories, None, None, None)
    data = wire.write_finish(0, 1, grown, 0)
    assert split(data)[0].shape == (int((~old).sum()),)
    _, contributes, _, personal = wire.read_finish(data, 2, old)
    assert torch.equal(personal, old | done.fresh[0])
    assert torch.equal(contributes, grown.contributes[0])


def test_indices_travel_while_a_set_grows_and_never_again() -> None:
    world = tiny_world(cohort=5, growth_steps=2, rounds=4)
    state, sent = State.initial(world), []
    for _ in range(4):
        state, ledger, _ = play(world, rounds=1, state=state)
        sent.append(ledger.messages_as_dict().get("personal.up", 0))
    assert sent == [5, 5, 0, 0]


def test_messages_in_another_codec_than_the_runs_are_refused() -> None:
    packed, coded = tiny_world(), tiny_world(**CODED)
    none = torch.zeros(packed.masked_size(2), dtype=torch.bool)
    done, theta = finished(coded)
    with pytest.raises(WireError, match="MASK of client 1: codec PACKED_BITS is not the run's, CODED_BITS"):
        Wire(coded).read_finish(Wire(packed).write_finish(0, 1, done, 0), 2, none, theta)
    q, y = torch.zeros(6, 2, dtype=torch.float64), torch.zeros(6, dtype=torch.int64)
    few = Wire(tiny_world(cut_codec="int8"))
    with pytest.raises(WireError, match="codec QUANT8 is not the run's, FP64"):
        Wire(packed).read_step(few.write_step(0, 1, 0, q, y))
    with pytest.raises(WireError, match="codec FP64 is not the run's, QUANT8"):
        few.read_gradient(Wire(packed).write_gradient(0, 1, 0, q), (6, 2))
    with pytest.raises(WireError, match="codec FP64 is not the run's, CODED_UNIT"):
        Wire(coded).read_start(Wire(packed).write_start(0, 1, theta, done.plain[0]), 2, theta)


def test_numbers_that_are_not_finite_are_refused_in_few_bits_too() -> None:
    wire = Wire(tiny_world(cut_codec="int4"))
    bad = torch.full((6, 3, 2, 2), 1.0, dtype=torch.float64)
    bad[2, 1] = float("nan")
    with pytest.raises(WireError, match="not finite"):
        wire.read_gradient(wire.write_gradient(0, 1, 0, bad), (6, 3, 2, 2))


def test_up_and_down_have_codecs_of_their_own() -> None:
    _, ledger, _ = play(tiny_world(cut_codec="int4", gradient_codec="int8", dtype="float32"), rounds=1)
    _, whole, _ = play(tiny_world(dtype="float32"), rounds=1)
    sent, before = ledger.as_dict(), whole.as_dict()
    assert before["smashed.up"] == before["gradient.down"]
    assert sent["smashed.up"] < sent["gradient.down"] < before["gradient.down"] / 2


def test_a_plan_bounds_what_depends_on_the_data_and_says_so() -> None:
    world = tiny_world(personal_ratio=0.0, **CODED)
    assert Wire(world).bounded == ["theta.down", "mask.up"]
    _, ledger, _ = play(world, rounds=2)
    planned = planned_bytes(world, [world.plan(t) for t in range(2)], client_costs(world)).as_dict()
    sent = ledger.as_dict()
    for key in sent.keys() - {"total", *Wire(world).bounded}:
        assert sent[key] == planned[key]
    for key in Wire(world).bounded:
        assert sent[key] <= planned[key]
    assert sent["mask.up"] < planned["mask.up"]
    assert Wire(tiny_world()).bounded == []
    assert Wire(tiny_world(method="splitfed", **CODED)).bounded == []


@pytest.mark.parametrize("key", ["mask_codec", "theta_codec"])
def test_a_missing_coder_stops_a_run_before_it_begins(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(PmsflError, match=f"{key} = 'entropy' needs the library constriction"):
        tiny_world(None, **{key: "entropy"})
