"""A model taken out of a run gives what the run gave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pmsfl
from pmsfl.engine.evaluate import Evaluator
from pmsfl.export import export_run, model_state, predict
from tests.conftest import tiny_federation, tiny_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pmsfl.Run:
    return pmsfl.run(
        tiny_recipe(dtype="float32", rounds=2), out=tmp_path_factory.mktemp("run") / "r", federation=tiny_federation()
    )


@pytest.fixture(scope="module")
def file(run: pmsfl.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first client's own test rows."""
    rows = run.world.federation.test[0]
    path = tmp_path_factory.mktemp("data") / "test.npz"
    np.savez(path, x=run.world.federation.x[rows], y=run.world.federation.y[rows])
    return path


@pytest.mark.parametrize("client", [None, 0])
def test_the_exported_module_predicts_what_predict_predicts(run: pmsfl.Run, file: Path, client: int | None) -> None:
    model = run.world.model
    model.load_state_dict(model_state(run, client), strict=True)
    model.eval()
    x = torch.from_numpy(np.load(file)["x"])
    with torch.no_grad():
        expected = model((x - run.world.mean) / run.world.std).softmax(-1)
    found = predict(run, file, client)
    assert np.allclose(found.probabilities, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("client", [None, 0, 1, 2, 3])
def test_exports_have_their_own_cuts_statistics(client: int | None, file: Path, tmp_path: Path) -> None:
    """A block is the server's here and a client's own there, each with statistics of its own."""
    recipe = tiny_recipe(method="standalone", depths="1:1:1:1", statistics="client", dtype="float32", rounds=2)
    run = pmsfl.run(recipe, out=tmp_path / "r", federation=tiny_federation())
    test_the_exported_module_predicts_what_predict_predicts(run, file, client)


def test_predict_on_a_clients_test_rows_is_its_evaluated_accuracy(run: pmsfl.Run, file: Path) -> None:
    evaluation = Evaluator(run.world).evaluate(run.state())
    assert predict(run, file, client=0).accuracy == pytest.approx(evaluation.per_client[0])


def test_a_client_and_the_global_model_differ(run: pmsfl.Run, file: Path) -> None:
    held = sorted(run.state().bank)[0]
    assert not np.allclose(predict(run, file, held).probabilities, predict(run, file).probabilities)


def test_the_example_beside_an_export_runs(tmp_path: Path) -> None:
    run = pmsfl.run("demo", rounds=1, epochs=1, clients=3, cohort=2, eval_masks=1, out=tmp_path / "r")
    exported = export_run(run, client=1)
    out = subprocess.run(
        [sys.executable, exported.example_file.name],
        cwd=exported.example_file.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tensor" in out.stdout


def test_a_client_that_does_not_exist_is_an_error(run: pmsfl.Run, file: Path) -> None:
    with pytest.raises(pmsfl.PmsflError, match="clients 0 to 4"):
        predict(run, file, client=5)


def test_samples_of_another_shape_or_type_are_errors(run: pmsfl.Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1, 9, 9), np.float32))
    with pytest.raises(pmsfl.PmsflError, match="trained on"):
        predict(run, tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 1, 8, 8), np.uint8))
    with pytest.raises(pmsfl.PmsflError, match="convert them"):
        predict(run, tmp_path / "b.npz")


def test_no_labels_no_accuracy(run: pmsfl.Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    assert predict(run, tmp_path / "c.npz").accuracy is None


@pytest.mark.parametrize("changes", [{"method": "depthfl"}, {"norm": "group"}, {"statistics": "batch"}])
def test_the_example_runs_for_every_kind_of_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = pmsfl.run("demo", rounds=1, epochs=1, clients=3, cohort=2, eval_masks=1, out=tmp_path / "r", **changes)
    exported = export_run(run)
    subprocess.run(
        [sys.executable, exported.example_file.name], cwd=exported.example_file.parent, capture_output=True, check=True
    )
