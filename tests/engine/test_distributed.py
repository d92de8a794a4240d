"""Two processes are one: every mask bit, personal index and byte is equal, numbers are within 1e-9."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pmsfl.engine.distributed import DistributedExecutor
from pmsfl.engine.processes import Processes
from pmsfl.engine.state import State
from pmsfl.errors import PmsflError
from pmsfl.wire.ledger import Ledger

from ..conftest import tiny_world
from .test_agreement import assert_agree
from .two_processes import CASES, play, world_of

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
Results = Callable[[str], list[dict[str, Any]]]


def environment(**more: str) -> dict[str, str]:
    """One thread each, and this tree's sources."""
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | more


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """What each of two processes has of a case. They play all cases, one after another, while the tests wait."""
    folder = tmp_path_factory.mktemp("two")
    log = folder / "log"
    with log.open("w") as out:
        words = [sys.executable, "-m", "tests.engine.two_processes"]
        children = [
            subprocess.Popen([*words, str(rank), "2", str(folder)], cwd=ROOT, env=environment(), stdout=out, stderr=out)
            for rank in range(2)
        ]

    def result(case: str) -> list[dict[str, Any]]:
        files = [folder / f"{case}.{rank}.pt" for rank in range(2)]
        until = time.monotonic() + PATIENCE
        while not all(f.exists() for f in files):
            stopped = any(c.poll() is not None for c in children) and not all(f.exists() for f in files)
            if stopped or time.monotonic() > until:
                pytest.fail(f"the processes have no {case}:\n{log.read_text()[-4000:]}")
            time.sleep(0.05)
        return [torch.load(f, weights_only=False) for f in files]

    yield result
    for child in children:
        child.kill()
        child.wait()


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(case: str, results: Results) -> None:
    one = play(case, Processes())
    world = world_of(case)
    for mine in results(case):
        a, b = (State.from_tensors(world, r["state"]) for r in (mine, one))
        assert_agree(a, b)
        if world.method.uploads == "bits" and not world.mixed:
            bottom = world.masked_size(world.cut)
            assert torch.equal(a.shared[:bottom], b.shared[:bottom])  # means of the same bits
        assert mine["bytes"] == one["bytes"]
        assert mine["messages"] == one["messages"]
        for seen, expected in zip(mine["metrics"], one["metrics"], strict=True):
            assert seen.pop("entropy_per_layer") == pytest.approx(expected["entropy_per_layer"], rel=1e-9)
            for name, value in seen.items():
                assert value == (None if expected[name] is None else pytest.approx(expected[name], rel=1e-9)), name
        for name, value in mine["evaluation"].items():
            assert torch.equal(value.nan_to_num(-1), one["evaluation"][name].nan_to_num(-1)), name


def test_both_processes_end_with_the_same_bits(results: Results) -> None:
    first, second = results("pm-sfl-1:1:1:1")
    assert first["state"].keys() == second["state"].keys()
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    assert first["metrics"] == second["metrics"]


def test_a_sequential_schedule_is_refused() -> None:
    with pytest.raises(PmsflError, match=r"sequential.*start one process.*schedule=parallel"):
        DistributedExecutor(tiny_world(schedule="sequential"), Ledger(), Processes(0, 2))
