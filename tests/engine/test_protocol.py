"""Messages of a round: every byte counted is a byte written (conformance 11), and nothing odd is believed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pmsfl.engine.client import Finished
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.cost import client_costs, estimate, planned_bytes
from pmsfl.engine.protocol import Wire, count_encoded
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.masks.random import Stream, normal, root
from pmsfl.wire.codecs import Codec, WireError
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.masks import encode_indices
from pmsfl.wire.messages import Direction, Kind, Message, split

from ..conftest import BASIC, bottoms_of, play, tiny_world


def lengths(data: bytes) -> dict[Kind, int]:
    return {m.kind: len(m.encode()) for m in split(data)}


def finished(world: World) -> Finished:
    """Two clients at the end of a round."""
    bottoms, p = bottoms_of(world, State.initial(world), [1, 3], [1, 1]), world.masked_size(world.cut)
    if world.method.theta(bottoms.rows.trained) is not None:
        bottoms.rows.trained += normal(root(5, Stream.NOISE), 2 * p).reshape(2, p)
    return bottoms.finish()


@pytest.mark.parametrize("norms", ["shared", "local"])
@pytest.mark.parametrize("method", BASIC)
def test_counted_lengths_are_written_lengths(method: str, norms: str) -> None:
    world = tiny_world(method=method, norms=norms, cut_codec="bf16")
    wire, depth = Wire(world), 2
    p, q = world.masked_size(depth), wire.norms_size(depth)
    assert q == (world.plain_size(depth) if norms == "shared" else 0)
    start = wire.write_start(0, 1, world.frozen[:p], world.initial_plain[:q])
    assert lengths(start) == wire.start_bytes(depth)
    smashed = normal(root(0, Stream.NOISE), 6 * 8 * 4).reshape(6, 8, 2, 2)
    step = lengths(wire.write_step(0, 1, 0, smashed, torch.zeros(6, dtype=torch.int64)))
    step |= lengths(wire.write_gradient(0, 1, 0, smashed))
    assert step == wire.step_bytes((6, 8, 2, 2))
    done = finished(world)
    assert bool(done.fresh.any()) == (method == "pm-sfl")
    for i in range(2):
        assert lengths(wire.write_finish(0, 1, done, i)) == wire.finish_bytes(done, i)


@pytest.mark.parametrize("depths", ["2", "1:1:1:1"])
def test_the_ledger_is_the_sum_of_all_encoded_messages(depths: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, int] = {}

    def note(ledger: Ledger, direction: Direction, data: bytes) -> bytes:
        for m in split(data):
            key = f"{m.kind.name.lower()}.{direction.value}"
            sent[key] = sent.get(key, 0) + 32 + 4 * len(m.shape) + len(m.payload)
        assert sum(len(m.encode()) for m in split(data)) == len(data)
        return count_encoded(ledger, direction, data)

    monkeypatch.setattr("pmsfl.engine.reference.count_encoded", note)
    _, ledger, _ = play(tiny_world(depths=depths), ReferenceExecutor)
    assert ledger.as_dict() == sent | {"total": sum(sent.values())}
    assert {"theta.down", "norms.down", "smashed.up", "labels.up", "gradient.down"} < sent.keys()
    assert {"mask.up", "personal.up", "norms.up"} < sent.keys()


def test_bits_weights_and_probabilities_cost_what_they_should() -> None:
    uploads = {}
    for method, kind in (("pm-sfl", "mask.up"), ("splitfed", "weights.up"), ("splitfed-pm", "theta.up")):
        world = tiny_world(method=method, personal_ratio=0.0, dtype="float32")
        uploads[method] = play(world, rounds=1)[1].as_dict()[kind] // 3 - 36
    size = tiny_world().masked_size(2)
    assert uploads == {"pm-sfl": -(-size // 8), "splitfed": 4 * size, "splitfed-pm": 4 * size}


@pytest.mark.parametrize("method", ["frozen-mask", "dense-frozen"])
def test_what_never_changes_is_never_sent(method: str) -> None:
    counts = play(tiny_world(method=method, norms="frozen"), rounds=1)[1].as_dict()
    assert counts.keys() == {"gradient.down", "labels.up", "smashed.up", "total"}


@pytest.mark.parametrize("depths", ["2", "1:1:1:1"])
@pytest.mark.parametrize("method", BASIC)
def test_planned_bytes_are_the_bytes_sent(method: str, depths: str) -> None:
    world = tiny_world(method=method, depths=depths, personal_ratio=0.0)
    _, ledger, _ = play(world, CohortExecutor, 2)
    assert planned_bytes(world, [world.plan(t) for t in range(2)], client_costs(world)) == ledger


def test_an_estimate_leaves_the_world_as_it_was() -> None:
    world = tiny_world()
    expected, _, _ = play(tiny_world(), rounds=1)
    found = estimate(world)
    assert found.steps_total == sum(max(world.plan(t).steps) for t in range(3))
    assert found.measured is not None
    assert found.measured.seconds_total > 0
    assert torch.equal(play(world, rounds=1)[0].shared, expected.shared)


# --- what is read is checked


def test_a_round_trip_gives_back_what_was_sent() -> None:
    world = tiny_world()
    wire, done = Wire(world), finished(world)
    p = world.masked_size(2)
    values, contributes, plain, personal = wire.read_finish(
        wire.write_finish(0, 1, done, 0), 2, torch.zeros(p, dtype=torch.bool)
    )
    assert torch.equal(contributes, done.contributes[0])
    assert torch.equal(values[contributes], done.values[0][contributes])
    assert torch.equal(plain, done.plain[0])
    assert torch.equal(personal, ~contributes)


def message(kind: Kind, codec: Codec, shape: tuple[int, ...], payload: bytes) -> bytes:
    return Message(kind, codec, shape, payload, 0, 0, 1).encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    world = tiny_world()
    wire = Wire(world)
    bad, labels = torch.full((6, 2), value, dtype=torch.float64), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(WireError, match="not finite"):
        wire.read_step(wire.write_step(0, 1, 0, bad, labels))
    with pytest.raises(WireError, match="not finite"):
        wire.read_gradient(wire.write_gradient(0, 1, 0, bad), (6, 2))


def test_wrong_shapes_orders_and_labels_are_refused() -> None:
    world = tiny_world()
    wire = Wire(world)
    q, y = torch.zeros(6, 2, dtype=torch.float64), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(WireError, match="expected"):
        wire.read_gradient(wire.write_gradient(0, 1, 0, q), (5, 2))
    with pytest.raises(WireError, match="expected GRADIENT"):
        wire.read_gradient(b"", (5, 2))
    with pytest.raises(WireError, match="expected THETA, NORMS"):
        wire.read_start(wire.write_step(0, 1, 0, q, y), 2, q)
    with pytest.raises(WireError, match="wrong count"):
        wire.read_step(wire.write_step(0, 1, 0, q, y[:5]))
    with pytest.raises(WireError, match="class that does not exist"):
        wire.read_step(wire.write_step(0, 1, 0, q, y + 4))


def test_negative_labels_are_refused() -> None:
    wire = Wire(tiny_world())
    q = wire.write_step(0, 1, 0, torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.int64))
    size = len(split(q)[0].encode())
    minus = message(Kind.LABELS, Codec.INT64, (2,), (-100).to_bytes(8, "little", signed=True) * 2)
    with pytest.raises(WireError):
        wire.read_step(q[:size] + minus)


def bad_uploads(world: World) -> dict[str, bytes]:
    wire, done = Wire(world), finished(world)
    p = world.masked_size(2)
    parts = {m.kind: m.encode() for m in split(wire.write_finish(0, 1, done, 0))}
    everything = message(Kind.PERSONAL, Codec.INDICES, (p,), encode_indices(torch.arange(p), p))
    return {
        "a short mask": message(Kind.MASK, Codec.PACKED_BITS, (8,), b"\x01") + parts[Kind.NORMS],
        "something else": parts[Kind.MASK] + message(Kind.LABELS, Codec.U8, (1,), b"\x01"),
        "norms of another size": parts[Kind.MASK] + message(Kind.NORMS, Codec.FP64, (1,), b"\0" * 8),
        "nothing at all": b"",
        "no mask": parts[Kind.NORMS],
        "no norms": parts[Kind.MASK],
        "two masks": parts[Kind.MASK] * 2 + parts[Kind.NORMS],
        "floats for bits": message(Kind.THETA, Codec.FP64, (p,), b"\0" * 8 * p) + parts[Kind.NORMS],
        "everything personal and a full mask": everything + parts[Kind.MASK] + parts[Kind.NORMS],
    }


@pytest.mark.parametrize("what", bad_uploads(tiny_world(personal_ratio=0.0)))
def test_an_upload_that_is_not_what_the_method_sends_is_refused(what: str) -> None:
    world = tiny_world(personal_ratio=0.0)
    with pytest.raises(WireError):
        Wire(world).read_finish(bad_uploads(world)[what], 2, torch.zeros(world.masked_size(2), dtype=torch.bool))


def test_a_forged_message_costs_an_error_not_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tiny_world()
    before = State.initial(world)
    kept: dict[str, Any] = {n: t.clone() for n, t in before.to_tensors().items()}
    monkeypatch.setattr(Wire, "write_gradient", lambda *a: b"PMSF")
    with pytest.raises(WireError):
        ReferenceExecutor(world, Ledger()).round(before)
    for name, value in before.to_tensors().items():
        assert torch.equal(value, kept[name])
