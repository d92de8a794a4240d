"""The planned peak of memory, against what runs really take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pmsfl.engine.bank import Bank
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.cost import estimate
from pmsfl.engine.memory_plan import (
    LARGEST_IN_MEMORY,
    LIBRARIES,
    MemoryPlan,
    bank_bytes,
    bank_in_file,
    free_bytes,
    plan_memory,
    row_bytes,
)
from pmsfl.recipe import Recipe
from pmsfl.report.progress import memory_line
from tests.conftest import play, tiny_federation, tiny_world

# One round and an evaluation in a process of their own: a peak is never forgotten.
MEASURED = """
import json, sys
import torch
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.memory_plan import peak_process_bytes, plan_memory
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.recipe import Recipe
from pmsfl.wire.ledger import Ledger
from tests.conftest import tiny_federation

torch.set_num_threads(1)
recipe, images = json.loads(sys.argv[1]), json.loads(sys.argv[2])
federation = tiny_federation([40] * images, 4, shape=(3, 32, 32), classes=10) if images else None
chosen = Recipe.load("demo", **recipe) if not images else Recipe(**recipe)
world = World(chosen, federation=federation)
before = peak_process_bytes()
plan = plan_memory(world)
state, _ = CohortExecutor(world, Ledger()).round(State.initial(world))
Evaluator(world).evaluate(state)
print(json.dumps([before, plan.host, peak_process_bytes()]))
"""

CIFAR = {"model": "resnet18", "width": 16, "batch": 32, "epochs": 1, "eval_masks": 1, "agreement": 0.0}


@pytest.mark.parametrize(
    ("recipe", "images"),
    [({"eval_masks": 1}, 0), (CIFAR | {"cohort": 10}, 20)],
    ids=["demo", "cifar"],
)
def test_the_plan_is_near_the_measured_peak(recipe: dict[str, Any], images: int) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", MEASURED, json.dumps(recipe), json.dumps(images)]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    before, planned, measured = json.loads(out.splitlines()[-1])
    assert before < measured  # the run itself, not what came before it
    assert measured / 1.5 < planned < measured * 1.5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"personal_ratio": 0.02},
        {"personal_ratio": 0.0},
        {"bank_dtype": "fp16"},
        {"norms": "local"},
        {"client_state": "persistent", "client_optimiser": "adam"},
        {"client_state": "persistent", "method": "splitfed"},
        {"method": "lg-fedavg"},
        {"method": "standalone"},
        {"depths": "1:1"},
    ],
    ids=str,
)
def test_the_bank_grows_to_its_planned_size_and_no_further(changes: dict[str, Any]) -> None:
    world = tiny_world(width=16, cohort=5, growth="one-shot", **changes)
    bank = play(world, rounds=1)[0].bank
    assert len(bank) == 5
    slack = 5 * 450  # what a row says about its parts is planned only roughly
    assert abs(bank.bytes - bank_bytes(world)) < slack


def test_a_short_run_fills_only_the_rows_of_those_who_take_part() -> None:
    worlds = {rounds: tiny_world(tiny_federation([4] * 10), cohort=2, rounds=rounds) for rounds in (3, 50)}
    row = row_bytes(worlds[3], 2)
    assert {rounds: bank_bytes(w) for rounds, w in worlds.items()} == {3: 6 * row, 50: 10 * row}


def test_a_large_bank_goes_into_a_file_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not bank_in_file(tiny_world())
    assert bank_in_file(tiny_world(bank="file"))
    monkeypatch.setattr("pmsfl.engine.memory_plan.LARGEST_IN_MEMORY", 1000)
    assert bank_in_file(tiny_world())
    assert not bank_in_file(tiny_world(bank="memory"))
    assert not Bank.empty(tiny_world()).is_durable  # nowhere to lie but in a temporary file


def test_the_issue_s_ten_thousand_clients() -> None:
    """Half of ResNet-18's first two blocks: 1.4 MB a client, 14 GB in all, in a file, or half of that as halves."""
    federation = tiny_federation([2] * 10_000, 0, shape=(3, 8, 8))
    changes: dict[str, Any] = {"model": "resnet18", "width": 0, "dtype": "float32", "batch": 2, "rounds": 1000}
    world = tiny_world(federation, cohort=10, **changes)
    plan = plan_memory(world)
    assert world.masked_size(2) == 673_472
    assert plan.bank == 10_000 * row_bytes(world, 2)
    assert 14.2e9 < plan.bank < 14.4e9
    assert plan.bank > LARGEST_IN_MEMORY
    assert plan.bank_in_file
    assert plan.bank < plan.bank_file < 2 * plan.bank
    assert plan.host < 4e9
    world.recipe = world.recipe.replace(bank_dtype="fp16")
    assert 7.5e9 < bank_bytes(world) < 7.7e9


# --- what is said


def a_plan(**changes: Any) -> MemoryPlan:
    sizes = dict.fromkeys(("data", "weights", "clients", "server", "activations", "evaluation"), 1_000_000_000)
    base: dict[str, Any] = {"bank": 14_300_000_000, "bank_in_file": True, "bank_file": 18_600_000_000}
    base |= {"process": 850_000_000, "process_peak": 900_000_000, "on_host": False}
    return MemoryPlan(**(sizes | base | changes))


def test_the_line_says_where_memory_goes() -> None:
    assert memory_line(a_plan(), "cuda") == (
        "5.00 GB on cuda at the peak, 1.00 GB on the host; the bank, 14.3 GB, in a file of at most 18.6 GB"
    )
    held = a_plan(on_host=True, bank_in_file=False, bank=1_000_000_000)
    assert memory_line(held, "cpu") == "5.00 GB at the peak, 1.00 GB of it the bank"
    assert memory_line(a_plan(on_host=True, bank_in_file=False, bank=0), "cpu") == "4.00 GB at the peak"
    assert a_plan(process_peak=10**12).host == 10**12
    assert memory_line(a_plan(on_host=True, bank_in_file=False, bank=0, free=10**9), "cpu") == (
        "4.00 GB at the peak (only 1.00 GB are free: take a smaller batch, cohort or width)"
    )


def test_only_what_a_run_adds_has_to_fit() -> None:
    more = 3_000_000_000  # clients, server and activations; data and weights are there already
    assert a_plan(free=more).fits
    assert not a_plan(free=more - 1).fits
    on_host = more + LIBRARIES
    assert a_plan(on_host=True, free=on_host).fits
    assert not a_plan(on_host=True, free=on_host - 1).fits
    assert a_plan(on_host=True, free=None).fits  # nobody knows: then it is tried


def test_what_is_free_is_the_machine_s_or_its_container_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.memory_plan.MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("pmsfl.engine.memory_plan.CGROUP", tmp_path)
    cpu = torch.device("cpu")
    assert free_bytes(cpu) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\nHugePages_Total: 0\n")
    assert free_bytes(cpu) == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.stat").write_text("anon 1000\nfile 7\n")
    assert free_bytes(cpu) == 5000 * 1024
    (tmp_path / "memory.max").write_text("1500\n")
    assert free_bytes(cpu) == 500


def test_an_estimate_tries_nothing_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.memory_plan.free_bytes", lambda device: 1)
    monkeypatch.setattr("pmsfl.engine.cost.CohortExecutor", None)
    found = estimate(tiny_world())
    assert found.measured is None
    assert found.steps_total > 0


def test_an_estimate_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step = list[dict[int, int]](), CohortExecutor.step

    def counted(self: CohortExecutor, play: Any, active: dict[int, int]) -> None:
        steps.append(active)
        step(self, play, active)

    monkeypatch.setattr(CohortExecutor, "step", counted)
    monkeypatch.setattr("pmsfl.engine.cost.PROBE_STEPS", 2)
    estimate(tiny_world())
    assert len(steps) == 2
    monkeypatch.setattr("pmsfl.engine.cost.PROBE_SECONDS", 1e-9)
    estimate(tiny_world())
    assert len(steps) == 3


def test_the_knobs_have_a_section_of_their_own() -> None:
    text = Recipe(bank="file").to_toml()
    assert '[memory]\nbank = "file"\nbank_dtype = "same"\n' in text
    assert Recipe.from_toml(text).bank == "file"
