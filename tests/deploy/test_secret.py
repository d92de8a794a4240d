"""A site's secret and the keys that come from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pmsfl.deploy.secret import OWN_STREAMS, hkdf, load_or_create, site_keys
from pmsfl.deploy.store import Store
from pmsfl.engine.bank import Memory
from pmsfl.engine.plan import Keys
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream
from tests.conftest import tiny_world


def test_hkdf_is_rfc_5869s() -> None:
    """Test cases 1 and 3 of the RFC."""
    okm = hkdf(b"\x0b" * 22, bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), 42, bytes(range(13)))
    assert okm.hex() == ("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")
    okm = hkdf(b"\x0b" * 22, b"", 42)
    assert okm.hex() == ("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8")


def test_a_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "site" / "secret"
    made = load_or_create(file)
    assert len(made) == 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert load_or_create(file) == made
    assert load_or_create(tmp_path / "other") != made
    file.chmod(0o644)
    with pytest.raises(PmsflError, match="can be read by others"):
        load_or_create(file)
    file.chmod(0o600)
    file.write_bytes(b"short")
    with pytest.raises(PmsflError, match="5 bytes"):
        load_or_create(file)


def test_what_hides_something_comes_from_the_secret_and_the_rest_from_the_seed() -> None:
    public = Keys.of_seed(3).roots
    mine, other = site_keys(b"a" * 32, "run", 3).roots, site_keys(b"b" * 32, "run", 3).roots
    again, elsewhere = site_keys(b"a" * 32, "run", 3).roots, site_keys(b"a" * 32, "another", 3).roots
    for stream in Stream:
        assert torch.equal(mine[stream], again[stream])
        assert torch.equal(mine[stream], public[stream]) == (stream not in OWN_STREAMS)
        assert torch.equal(mine[stream], other[stream]) == (stream not in OWN_STREAMS)
        assert torch.equal(mine[stream], elsewhere[stream]) == (stream not in OWN_STREAMS)
    together, also = site_keys(b"a" * 32, "run", 3, b"c" * 32).roots, site_keys(b"b" * 32, "run", 3, b"c" * 32).roots
    for stream in OWN_STREAMS:  # of a secret in common come uploads, and nothing else
        assert torch.equal(together[stream], also[stream]) == (stream is Stream.UPLOAD)
        assert torch.equal(together[stream], mine[stream]) == (stream is not Stream.UPLOAD)
    assert {Stream.FORWARD, Stream.UPLOAD, Stream.NOISE, Stream.LABELS} <= set(OWN_STREAMS)
    assert len({int(mine[s]) for s in OWN_STREAMS}) == len(OWN_STREAMS)


def test_an_optimiser_is_not_recalled_in_another_round_than_its_own(tmp_path: Path) -> None:
    world = tiny_world(client_state="stay", merges=4)
    store, state = Store(tmp_path), {"masked.steps": torch.ones(1)}
    nothing = torch.zeros(0, dtype=torch.int64)
    kept = Memory(nothing, torch.zeros(0, dtype=world.dtype), 1, None, state)
    store.remember(world, 2, "run", 1, kept, 0)  # after the first turn of the first round

    def recalled(turn: int) -> bool:
        memory = store.memory(world, "run", turn)
        return memory is not None and bool(memory.optimiser)

    assert [recalled(turn) for turn in range(1, 7)] == [True, True, True, False, False, False]
