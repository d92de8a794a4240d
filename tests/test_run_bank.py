"""Runs whose clients' memories lie in a file: nothing else about them is different."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import pmsfl
from pmsfl.engine.bank import INDEX
from pmsfl.engine.rowfile import RowFile
from pmsfl.errors import PmsflError
from pmsfl.export import model_state
from pmsfl.run import Interrupted
from pmsfl.tensorfile import read_tensors

from .conftest import assert_same_tensors, tiny_federation
from .test_run import DAMAGE, go, half_done, lines, outcome, stop


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> pmsfl.Run:
    """The same run with its bank in memory."""
    return go(tmp_path_factory.mktemp("held") / "run")


@pytest.fixture(autouse=True)
def in_a_file(monkeypatch: pytest.MonkeyPatch, held: pmsfl.Run) -> None:
    """Every bank is too large for memory."""
    monkeypatch.setattr("pmsfl.engine.memory_plan.LARGEST_IN_MEMORY", 0)


def resumed(path: Path, **options: Any) -> pmsfl.Run:
    return pmsfl.run(out=path, resume=True, federation=tiny_federation(), **options)


def assert_same_but_for_the_place(run: pmsfl.Run, held: pmsfl.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(run) == lines(held)
    assert outcome(run) == outcome(held)
    mine = run.state()
    monkeypatch.setattr("pmsfl.engine.memory_plan.LARGEST_IN_MEMORY", 1 << 30)
    other = held.state()
    assert mine.bank.keys() == other.bank.keys()
    for client, memory in mine.bank.items():
        assert torch.equal(memory.indices, other.bank[client].indices)
        assert torch.equal(memory.values, other.bank[client].values)
        assert memory.participations == other.bank[client].participations
    shared = {n: t for n, t in mine.to_tensors().items() if n != INDEX}
    assert_same_tensors(shared, {n: t for n, t in other.to_tensors().items() if not n.startswith("client.")})


def test_the_place_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: pmsfl.Run) -> None:
    run = go(tmp_path / "run")
    tensors, _ = read_tensors(run.directory.checkpoints()[-1][1])
    assert len(tensors[INDEX]) == len(run.state().bank) > 0
    assert not any(name.startswith("client.") for name in tensors)
    assert not (held.path / "bank.bin").exists()
    (tmp_path / "run" / "bank.bin").chmod(0o444)  # whoever only reads need not be able to write
    own = model_state(pmsfl.Run(run.path, run.recipe, _world=run.world), client=next(iter(run.state().bank)))
    assert all(torch.isfinite(t).all() for t in own.values())
    assert_same_but_for_the_place(run, held, monkeypatch)


def test_an_interrupt_costs_its_round_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: pmsfl.Run) -> None:
    with monkeypatch.context() as patch:
        stop(patch, 4, KeyboardInterrupt())
        with pytest.raises(Interrupted):
            go(tmp_path / "run")
    assert_same_but_for_the_place(resumed(tmp_path / "run"), held, monkeypatch)


def test_rows_of_older_checkpoints_survive_later_rounds_of_any_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: pmsfl.Run
) -> None:
    """Stopped in round 7 and again after round 6, then the newest checkpoint breaks: the one before it must do."""
    directory = half_done(tmp_path / "run", monkeypatch)
    for _ in range(2):
        with monkeypatch.context() as patch:
            stop(patch, 6, RuntimeError("power cut"))
            with pytest.raises(RuntimeError, match="power cut"):
                resumed(directory.path)
    for what in ("cut short", "garbage"):
        DAMAGE[what](directory.checkpoints()[-1][1])
        with monkeypatch.context() as patch:
            stop(patch, 6, RuntimeError("power cut"))
            with pytest.raises(RuntimeError, match="power cut"):
                resumed(directory.path)
    for _, file in directory.checkpoints()[1:]:
        DAMAGE["empty"](file)
    assert_same_but_for_the_place(resumed(directory.path), held, monkeypatch)


def test_a_bank_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = half_done(tmp_path / "run", monkeypatch)
    directory.bank_file.unlink()
    with pytest.raises(PmsflError, match=r"no checkpoint can be read: .*cannot read .*bank\.bin: No such file"):
        resumed(directory.path)


def test_a_full_disk_says_what_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: pmsfl.Run) -> None:
    original, calls = RowFile.write, iter(range(100))

    def full(self: RowFile, rows: Any) -> Any:
        if next(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "write", full)
        with pytest.raises(
            PmsflError, match=r"cannot write bank\.bin .*No space left.*checkpoint of round 4 is intact"
        ):
            go(tmp_path / "run")
    assert_same_but_for_the_place(resumed(tmp_path / "run"), held, monkeypatch)


def test_the_file_stays_small_where_rounds_rewrite_the_same_clients(tmp_path: Path) -> None:
    run = go(tmp_path / "run", rounds=30, checkpoint_every=1, keep_checkpoints=1, eval_every=30, growth="one-shot")
    written = 30 * 3 * (run.state().bank.bytes // 5)
    assert run.directory.bank_file.stat().st_size < written / 3
