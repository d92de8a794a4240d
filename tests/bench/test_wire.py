"""`pmsfl bench wire`: figures that follow from the messages, on a run and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pmsfl
from pmsfl.bench.messages import KIND, load_messages, take_sample
from pmsfl.bench.wire import measure_indices, measure_masks, measure_wire
from pmsfl.engine.state import State
from pmsfl.errors import PmsflError
from pmsfl.tensorfile import write_tensors

from ..conftest import Pmsfl, tiny_federation, tiny_recipe, tiny_world


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "r"
    pmsfl.run(tiny_recipe(name="demo", dtype="float32", width=16, data="digits", cohort=3, max_samples=12), out=path)
    return path


def test_masks_are_measured_against_their_cross_entropy() -> None:
    world = tiny_world(width=16)
    sample = take_sample(world, State.initial(world))
    found = measure_masks(sample, repeats=1)
    theta, bits = sample.theta.double(), sample.bits
    surprise = -torch.where(bits, theta, 1 - theta).log2()[sample.contributes]
    assert found["cross_entropy"] == pytest.approx(float(surprise.mean()))
    assert found["parameters"] == len(surprise)
    assert 1.0 < found["over_cross_entropy"] < 1.02
    assert found["bits_per_parameter"] < found["packed_bits_per_parameter"] == pytest.approx(1.0, rel=0.01)
    own = np.log2(np.stack([theta, 1 - theta])) * np.stack([theta, 1 - theta])
    kept = np.stack([-own.sum(0)] * len(bits))[sample.contributes]
    assert found["entropy"] == pytest.approx(float(kept.mean()))


def test_indices_are_measured_among_what_was_still_shared() -> None:
    world = tiny_world(width=16, personal_ratio=0.3, growth_steps=3)
    found = measure_indices(take_sample(world, State.initial(world)), repeats=1)
    assert found["indices"] > 0
    assert found["entropy_per_index"] < found["bits_per_index"] < 8
    impersonal = tiny_world(personal_ratio=0.0)
    assert measure_indices(take_sample(impersonal, State.initial(impersonal)), repeats=1) == {"indices": 0}


def test_a_runs_own_messages(run: Path, pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "record"
    assert pmsfl("bench", "wire", run, "--repeats", 1, "--device", "cpu", "--json", "--record", out) == 0
    text = capsys.readouterr()
    found = json.loads(text.out)
    assert found["round"] == 3
    assert list(found["tensors"]) == list(found["gradients"]) == ["fp32", "bf16", "fp16", "int8", "int4", "int2"]
    for part in ("tensors", "gradients"):
        assert found[part]["fp32"]["max_error"] == 0.0
        errors = [found[part][c]["relative_error"] for c in ("int8", "int4", "int2")]
        assert errors == sorted(errors)
        assert found[part]["int8"]["ratio"] > 3.7  # a tiny cut: scales and headers weigh more than in a real one
    assert list(found["theta"]) == ["u16", "u8", "entropy"]
    assert found["theta"]["u16"]["max_error"] < found["theta"]["u8"]["max_error"] < 0.003
    assert found["indices"]["of_mask_in_run"] > 0
    for speeds in (found["mask"], found["theta"]["u8"], found["tensors"]["int4"]):
        assert speeds["mb_s_encode"] > 0
        assert speeds["mb_s_decode"] > 0
    assert "Coded masks take" in (out / "log").read_text(encoding="utf-8")
    record = json.loads((out / "record.json").read_text(encoding="utf-8"))
    assert record["command"] == f"pmsfl bench wire {run} --device cpu --repeats 1"
    assert found.items() <= record.items()


def test_without_a_run_the_demo_is_trained_and_said_so(
    pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmsfl.bench.messages.ROUNDS", 1)
    monkeypatch.setattr("pmsfl.engine.world.federation_of", lambda recipe: tiny_federation(sizes=(20,) * 8))
    assert pmsfl("bench", "wire", "--repeats", 1) == 0
    text = capsys.readouterr()
    assert "training the demo" in text.err
    assert "the demo after 1 rounds" in text.out


def test_runs_without_masks_are_refused(tmp_path: Path) -> None:
    recipe = tiny_recipe(method="splitfed", dtype="float32", data="digits", max_samples=12, rounds=1)
    pmsfl.run(recipe, out=tmp_path / "r")
    with pytest.raises(PmsflError, match="uploads no mask bits"):
        measure_wire(tmp_path / "r")


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match="no run directory"):
        measure_wire(tmp_path)


def test_messages_can_be_kept_and_measured_elsewhere(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "messages.safetensors"
    there = measure_wire(run, "cpu", 1, keep=file)
    here = measure_wire(file, "cpu", 1)
    for part in ("mask", "indices", "theta", "tensors", "gradients"):
        assert _without_speeds(here[part]) == _without_speeds(there[part])
    assert {k: v for k, v in here.items() if not isinstance(v, dict)} == {
        k: v for k, v in there.items() if not isinstance(v, dict)
    }


def test_a_file_of_something_else_is_refused(run: Path) -> None:
    checkpoint = next((run / "checkpoints").glob("*.safetensors"))
    with pytest.raises(PmsflError, match="holds no messages"):
        measure_wire(checkpoint)


@pytest.mark.parametrize("damage", ["shape", "dtype", "about", "no-about"])
def test_a_kept_file_that_does_not_fit_together_is_refused(damage: str, tmp_path: Path) -> None:
    masks = {name: torch.zeros(2, 5, dtype=torch.bool) for name in ("bits", "contributes", "fresh")}
    floats = {"theta": torch.zeros(5), "smashed": torch.zeros(3, 4), "gradient": torch.zeros(3, 4)}
    file, metadata = tmp_path / "kept.safetensors", {"kind": KIND, "about": "{}"}
    write_tensors(file, masks | floats, metadata)
    assert load_messages(file)[1] == {}
    more = {"shape": {"bits": torch.zeros(2, 4, dtype=torch.bool)}, "dtype": {"fresh": torch.zeros(2, 5)}}
    if damage == "about":
        metadata["about"] = "[1"
    elif damage == "no-about":
        del metadata["about"]
    write_tensors(file, masks | floats | more.get(damage, {}), metadata)
    with pytest.raises(PmsflError, match="do not fit together"):
        load_messages(file)


def _without_speeds(found: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_speeds(v) if isinstance(v, dict) else v for k, v in found.items() if not k.startswith("mb_s")}
