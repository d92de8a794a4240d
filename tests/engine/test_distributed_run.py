"""`torchrun -m pmsfl run`: the run directory is that of one process, whatever became of the processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pmsfl
from pmsfl.engine import processes
from pmsfl.run import train

from .test_distributed import environment

CHANGES = [
    *("rounds=2", "dtype=float64", "width=2", "max_samples=40", "cohort=3", "eval_masks=2"),
    *("agreement=0", "bank=file", "checkpoint_every=1", "depths=1:1:1:1"),
]
TIMES = ("seconds", "seconds_training")


def torchrun(*words: str, folder: Path) -> str:
    """What two processes print, which must end well."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "-m", "pmsfl", *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what may differ."""
    return {k: v for k, v in result.items() if k not in (*TIMES, "run", "executor")}


def assert_alike(mine: dict[str, Any], one: dict[str, Any]) -> None:
    assert mine.pop("bytes") == one["bytes"]
    for name, value in mine.items():
        expected = one[name]
        assert value == (pytest.approx(expected, rel=1e-9) if isinstance(expected, float) else expected), name


def test_a_run_of_two_processes_is_that_of_one_and_resumes(tmp_path: Path) -> None:
    one = comparable(train("demo", CHANGES, out=tmp_path / "one", device="cpu").result or {})
    changes = [word for change in CHANGES for word in ("-c", change)]
    printed = torchrun("run", "demo", *changes, "--out", "two", "--json", "--device", "cpu", folder=tmp_path)
    result = json.loads(printed)  # one process speaks, and once
    assert result["executor"] == "distributed (2 processes)"
    assert_alike(comparable(result), one)
    two = pmsfl.Run.open(tmp_path / "two")
    assert len(two.metrics) == 2
    assert (two.path / "report.html").exists()
    (two.path / "result.json").unlink()
    (two.path / "checkpoints" / "round-000002.safetensors").unlink()
    torchrun("run", "--resume", "--out", "two", "--device", "cpu", folder=tmp_path)
    assert_alike(comparable(pmsfl.Run.open(two.path).result or {}), one)


LOSES = """
import torch
from pmsfl.engine.processes import CPU, together
from pmsfl.errors import PmsflError
try:
    with together(CPU) as processes:
        processes.total(torch.ones(1))
        if processes.rank:
            raise SystemExit(0)
        processes.total(torch.ones(1))
except PmsflError as e:
    print(e)
"""


def test_a_process_that_goes_away_is_an_error_in_the_others(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    words = [sys.executable, "-c", LOSES]
    first, second = (
        subprocess.Popen(words, cwd=tmp_path, env=environment(RANK=rank, **where), stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    )
    said, _ = first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert "process 0 lost another one" in said


def test_sweeps_and_the_reference_do_not_go_with_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert not processes.leads()
    with pytest.raises(pmsfl.PmsflError, match="without torchrun"):
        train("demo", executor="reference")
