"""The bank: memories come back as they went, states stay valid, and many clients fit."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmsfl.engine.bank import INDEX, Bank, Memory, pack_bits, unpack_bits
from pmsfl.engine.memory_plan import row_bytes
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.tensorfile import TensorFileError, read_tensors, write_tensors
from tests.conftest import assert_same_tensors, copied, play, tiny_federation, tiny_world

PLACES = ("memory", "file")


def some_memory(world: World, client: int, share: float, seed: int = 0) -> Memory:
    size = world.masked_size(world.depths[client])
    rng = torch.Generator().manual_seed(seed)
    indices = torch.rand(size, generator=rng).lt(share).nonzero().squeeze(1)
    return Memory(indices, torch.randn(len(indices), generator=rng, dtype=world.dtype), 1 + seed)


def assert_same_memory(a: Memory, b: Memory) -> None:
    assert torch.equal(a.indices, b.indices)
    assert a.values.dtype == b.values.dtype
    assert torch.equal(a.values, b.values)
    assert a.participations == b.participations
    assert (a.plain is None) == (b.plain is None)
    if a.plain is not None and b.plain is not None:
        assert torch.equal(a.plain, b.plain)
    assert_same_tensors(a.optimiser, b.optimiser)


# --- rows


@given(st.integers(1, 200), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.02, 0.5, 1.0]))
@settings(deadline=None, max_examples=100)
def test_packed_bits_are_the_indices(size: int, seed: int, share: float) -> None:
    flags = np.random.default_rng(seed).random(size) < share
    indices = torch.from_numpy(np.flatnonzero(flags))
    bits = pack_bits(indices, size)
    assert bits.tolist() == np.packbits(flags, bitorder="little").tolist()
    assert torch.equal(unpack_bits(bits, len(indices)), indices)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_memory_comes_back_as_it_went(place: str, dtype: str, share: float) -> None:
    world = tiny_world(bank=place, dtype=dtype)
    memory = some_memory(world, 2, share)
    extras = {"masked.first": torch.randn(5), "plain.steps": torch.ones(1)}
    full = dataclasses.replace(memory, plain=torch.randn(7, dtype=world.dtype), optimiser=extras)
    bank = Bank.empty(world) | {2: memory, 4: full}
    assert_same_memory(bank[2], memory)
    assert_same_memory(bank[4], full)
    assert list(bank) == [2, 4]
    assert bank.get(0) is None
    assert 0 not in bank


@pytest.mark.parametrize("share", [0.01, 0.03, 0.5])
def test_a_row_is_as_small_as_it_can_be(share: float) -> None:
    world = tiny_world(width=16, dtype="float32")
    size, memory = world.masked_size(2), some_memory(world, 0, share)
    assert size > 1000
    bank = Bank.empty(world) | {0: memory}
    where = min(4 * len(memory.indices), -(-size // 8))
    assert 0 < bank.bytes - where - 4 * len(memory.indices) <= 350


def test_half_precision_halves_the_values_and_nothing_else() -> None:
    world = tiny_world(width=16, bank_dtype="fp16", dtype="float32")
    memory = dataclasses.replace(some_memory(world, 0, 0.5), plain=torch.randn(7))
    bank = Bank.empty(world) | {0: memory}
    found = bank[0]
    assert found.values.dtype == torch.float32
    assert torch.equal(found.values, memory.values.half().float())
    assert torch.equal(found.indices, memory.indices)
    assert found.plain is not None
    assert memory.plain is not None
    assert torch.equal(found.plain, memory.plain)
    exact = Bank.empty(tiny_world(width=16, dtype="float32")) | {0: memory}
    assert abs(exact.bytes - bank.bytes - 2 * len(memory.indices)) <= 8


def test_the_bank_knows_without_reading_whether_anybody_is_personal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tiny_world(norms="local")
    nothing, plain = some_memory(world, 0, 0.0), torch.ones(3, dtype=world.dtype)
    nobody = Bank.empty(world) | {0: nothing}
    with_norms = nobody | {1: dataclasses.replace(nothing, plain=plain)}
    with_masks = nobody | {1: some_memory(world, 1, 0.5)}
    for bank, expected in ((nobody, False), (with_norms, True), (with_masks, True)):
        restored = Bank.empty(world).restored(bank.to_tensors())
        with monkeypatch.context() as patch:
            patch.setattr(Bank, "__getitem__", None)
            assert bank.personalised is expected
            assert restored.personalised is expected


# --- states


@pytest.mark.parametrize("place", PLACES)
def test_an_older_bank_keeps_its_rows(place: str) -> None:
    world = tiny_world(bank=place)
    old = some_memory(world, 1, 0.5)
    first = Bank.empty(world) | {1: old, 2: some_memory(world, 2, 0.5)}
    second = first | {1: some_memory(world, 1, 0.5, seed=1)}
    for seed in range(2, 6):  # given up at once, as interrupted rounds are
        _ = second | {1: some_memory(world, 1, 0.5, seed), 3: some_memory(world, 3, 0.5, seed)}
    assert_same_memory(first[1], old)
    assert_same_memory(second[1], some_memory(world, 1, 0.5, seed=1))
    assert sorted(second) == [1, 2]


@pytest.mark.parametrize("changes", [{}, {"norms": "local", "client_state": "persistent"}, {"method": "lg-fedavg"}])
def test_where_rows_lie_changes_no_number(changes: dict[str, Any]) -> None:
    """Also over a checkpoint, and for a round that is played twice from the same state."""
    held, filed = (tiny_world(bank=place, **changes) for place in PLACES)
    expected, _, _ = play(held, rounds=3)
    half, _, _ = play(filed, rounds=2)
    play(filed, rounds=1, state=half)
    again, _, _ = play(filed, rounds=1, state=half)
    assert_same_tensors(expected.to_tensors(), again.to_tensors())
    resumed, _, _ = play(filed, ReferenceExecutor, rounds=1, state=State.from_tensors(filed, copied(half)))
    for client, memory in expected.bank.items():
        torch.testing.assert_close(resumed.bank[client].values, memory.values, rtol=0, atol=1e-9)


def index_of(bank: Bank) -> Tensor:
    return bank.to_tensors()[INDEX]


def test_a_checkpoint_refers_to_rows_in_a_named_file(tmp_path: Path) -> None:
    world = tiny_world(bank="file")
    memories = {c: some_memory(world, c, 0.5) for c in (1, 3)}
    bank = Bank.empty(world, tmp_path / "bank.bin") | memories
    assert bank.is_durable
    assert list(bank.to_tensors()) == [INDEX]
    other = Bank.empty(world, tmp_path / "bank.bin").restored(bank.to_tensors())
    for c, memory in memories.items():
        assert_same_memory(other[c], memory)
    assert other.personalised
    before = index_of(bank)
    grown = other | {1: some_memory(world, 1, 0.6), 0: some_memory(world, 0, 0.6)}
    assert torch.equal(index_of(other), before)
    assert len(index_of(grown)) == 3
    assert_same_memory(Bank.empty(world, tmp_path / "bank.bin").restored({INDEX: before})[1], memories[1])


def test_rows_that_changed_under_a_checkpoint_are_refused(tmp_path: Path) -> None:
    world, path = tiny_world(bank="file"), tmp_path / "bank.bin"
    tensors = (Bank.empty(world, path) | {1: some_memory(world, 1, 0.5)}).to_tensors()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(TensorFileError, match="has changed"):
        Bank.empty(world, path).restored(tensors)
    with pytest.raises(ValueError, match="does not have"):
        Bank.empty(tiny_world(bank="memory"), path).restored(tensors)


# --- many clients


@pytest.mark.parametrize("place", PLACES)
def test_ten_thousand_clients_fit(place: str, tmp_path: Path) -> None:
    """Every client with half of its bottom: as many bytes as planned, and a checkpoint that comes back."""
    n = 10_000
    world = tiny_world(tiny_federation([2] * n, 0), bank=place, dtype="float32", width=8)
    memories = [some_memory(world, 0, 0.5, seed) for seed in range(7)]
    bank = Bank.empty(world, tmp_path / "bank.bin")
    began = time.perf_counter()
    for start in range(0, n, 500):  # each twice, as in two rounds
        for turn in range(2):
            bank = bank | {c: memories[(c + turn) % 7] for c in range(start, start + 500)}
    assert len(bank) == n
    assert bank.bytes == pytest.approx(n * row_bytes(world, 2), rel=0.1)
    if place == "file":  # the older halves made room
        assert (tmp_path / "bank.bin").stat().st_size < 1.3 * bank.bytes
    write_tensors(tmp_path / "checkpoint", bank.to_tensors(), {})
    bank = Bank.empty(world, tmp_path / "bank.bin").restored(read_tensors(tmp_path / "checkpoint")[0])
    for c in (0, 1, n // 2, n - 1):
        assert_same_memory(bank[c], memories[(c + 1) % 7])
    assert time.perf_counter() - began < 60
