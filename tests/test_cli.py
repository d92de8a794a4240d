"""The command line, built by typer and, where that is missing, by argparse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmsfl import commands
from pmsfl.cli import ABOUT, COMMANDS
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.recipe import Recipe

from .conftest import Pmsfl

KEYS = ("rounds=2", "epochs=1", "clients=4", "cohort=2", "eval_masks=1", "aggregate=damped", "damping=0.25")
TINY = [word for key in KEYS for word in ("-c", key)]
WITHOUT = "import sys; sys.modules['typer'] = None; sys.modules['rich'] = None"
FALLBACK = f"{WITHOUT}; from pmsfl.__main__ import main; main()"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs: pm-sfl and splitfed."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("pm-sfl", "splitfed"):
        words = ["run", "demo", "-m", method, *TINY, "--device", "cpu", "--out", str(folder / method)]
        assert commands.main(COMMANDS, words, ABOUT) == 0
    return folder


def subprocess_run(start: list[str], words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *start, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def last_json(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


# --- the whole program


def test_trains_without_typer_and_rich(tmp_path: Path) -> None:
    done = subprocess_run(["-c", FALLBACK], ["run", "--json", *TINY, "--threads", "1"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    result = json.loads(done.stdout)
    assert result["rounds"] == 2
    assert result["bytes"]["total"] > 0
    assert (tmp_path / result["run"] / "result.json").exists()
    assert "damped, η = 0.25" in done.stderr
    assert "round 2/2" in done.stderr


def test_a_reader_who_hangs_up_does_not_stop_the_training(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pmsfl", "run", *TINY, "--out", "here"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.close()
        assert program.stderr is not None
        errors = program.stderr.read().decode()
        assert program.wait() == 0, errors
    assert "Error" not in errors
    assert (tmp_path / "here" / "result.json").exists()


# --- run


def test_run_says_what_it_does_and_what_came_of_it(
    pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert pmsfl("run", *TINY, "--out", out, "--executor", "reference", "--device", "cpu") == 0
    text = capsys.readouterr()
    for word in ("preset", "damped, η = 0.25", "4, 2 per round", "reference executor", f"pmsfl show {out}"):
        assert word in text.out
    assert text.err.count("note: 20 of 24 owners are left out") == 1


def test_run_json_is_the_last_and_only_line(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("run", *TINY, "--out", tmp_path / "run", "--json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["run"] == str(tmp_path / "run")


def test_dry_run(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("run", *TINY, "--dry-run", "--out", tmp_path / "run") == 0
    said = capsys.readouterr().out
    assert "smashed" in said
    assert "at the peak" in said
    assert pmsfl("run", *TINY, "-c", "depths=1:1", "--dry-run", "--json") == 0
    plan = last_json(capsys.readouterr().out)
    assert plan["bytes"]["total"] == sum(v for k, v in plan["bytes"].items() if k != "total")
    assert [d["depth"] for d in plan["depths"]] == [1, 2]
    assert plan["seconds"] > 0
    assert plan["memory_plan"]["host"] > plan["memory_plan"]["device"] > plan["memory_plan"]["bank"] > 0
    assert not (tmp_path / "run").exists()
    assert plan["bytes_bounded"] == []
    assert pmsfl("run", *TINY, "-c", "mask_codec=entropy", "--dry-run") == 0
    assert "about mask.up: entropy-coded" in capsys.readouterr().out


def test_a_dry_run_says_what_does_not_fit(
    pmsfl: Pmsfl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pmsfl.engine.memory_plan.free_bytes", lambda device: 1)
    assert pmsfl("run", *TINY, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "only 1 B are free" in said
    assert "do not fit into memory" in said
    assert pmsfl("run", *TINY, "--dry-run", "--json") == 0
    plan = last_json(capsys.readouterr().out)
    assert plan["seconds"] is None
    assert not plan["memory_plan"]["fits"]


def test_interrupt_then_resume(
    pmsfl: Pmsfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = CohortExecutor.round

    def one_round(self: CohortExecutor, state: Any) -> Any:
        if state.round:
            raise KeyboardInterrupt
        return original(self, state)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(CohortExecutor, "round", one_round)
        assert pmsfl("run", *TINY, "--out", out) == 130
    assert f"error: interrupted after round 1 of 2; go on with: pmsfl run --resume --out {out}" in (
        capsys.readouterr().err
    )
    assert pmsfl("ls", tmp_path) == 0
    assert "resumable from round 1" in capsys.readouterr().out
    assert pmsfl("run", "--resume", "--out", out) == 0
    assert "resumed after round 1" in capsys.readouterr().out


# --- looking at runs


def test_ls_and_show(pmsfl: Pmsfl, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("ls", runs) == 0
    assert capsys.readouterr().out.count("finished") == 2
    assert pmsfl("show", runs / "pm-sfl") == 0
    text = capsys.readouterr().out
    for word in ("blocks.0.0.weight", "accuracy", "smashed", "partition owner"):
        assert word in text
    assert pmsfl("show", runs / "splitfed") == 0
    assert "mask entropy per layer" not in capsys.readouterr().out


def test_ls_of_nothing(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("ls", tmp_path / "none") == 0
    assert "no runs" in capsys.readouterr().out


def made_up(source: Path, target: Path, seed: int, accuracy: float) -> None:
    """A copy of a run with another seed and accuracy."""
    shutil.copytree(source, target)
    recipe = Recipe.from_toml((source / "recipe.toml").read_text(encoding="utf-8")).replace(seed=seed)
    (target / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    result = json.loads((source / "result.json").read_text(encoding="utf-8"))
    result |= {"seed": seed, "accuracy": accuracy}
    (target / "result.json").write_text(json.dumps(result), encoding="utf-8")


def test_compare_pairs_runs_by_seed(
    pmsfl: Pmsfl, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, (mine, theirs) in enumerate([(70.0, 73.5), (71.0, 75.0), (72.0, 76.5)]):
        made_up(runs / "pm-sfl", tmp_path / "a" / str(seed), seed, mine)
        made_up(runs / "splitfed", tmp_path / "b" / str(seed), seed, theirs)
    assert pmsfl("compare", tmp_path / "a", "--json", tmp_path / "b") == 0
    first, second = last_json(capsys.readouterr().out)["groups"]
    assert first["figures"]["accuracy"]["mean"] == 71.0
    assert first["against_baseline"] is None
    assert second["against_baseline"]["mean"] == 4.0
    assert second["against_baseline"]["verdict"] == "better"
    assert second["figures"]["mask_entropy"]["mean"] is None
    assert pmsfl("compare", tmp_path / "a", tmp_path / "b") == 0
    text = capsys.readouterr().out
    assert "71.0 ± 0.6" in text
    assert "+4.00" in text


def test_compare_needs_finished_runs(pmsfl: Pmsfl, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "pm-sfl", tmp_path / "open")
    (tmp_path / "open" / "result.json").unlink()
    assert pmsfl("compare", tmp_path / "open") == 1
    assert pmsfl("compare", tmp_path / "nowhere") == 1


# --- what there is


def test_methods_recipes_knobs(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("methods", "--json") == 0
    assert last_json(capsys.readouterr().out)["methods"][0]["name"] == "pm-sfl"
    assert pmsfl("methods") == pmsfl("recipes") == pmsfl("knobs") == pmsfl("knobs", "damping") == 0
    text = capsys.readouterr().out
    for word in ("frozen-mask", "Handwritten digits", "personal_ratio", "at least 1"):
        assert word in text
    assert pmsfl("knobs", "dampign") == 1
    assert capsys.readouterr().err == "error: unknown key 'dampign': did you mean 'damping'?\n"


def test_data(pmsfl: Pmsfl, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "labels.png"
    assert pmsfl("data", "demo", "-c", "clients=4", "-c", "depths=1,2,3,4", "--out", picture) == 0
    assert f"heat map: {picture}" in capsys.readouterr().out
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert pmsfl("data", "demo", "-c", "clients=4", "--json") == 0
    found = last_json(capsys.readouterr().out)
    assert [c["depth"] for c in found["clients"]] == [2, 2, 2, 2]
    assert sum(found["clients"][0]["labels"]) == found["clients"][0]["train"]
    assert pmsfl("data", "demo", "--out", tmp_path / "labels.xyz") == 1
    assert pmsfl("data", "demo", "--out", tmp_path / "no" / "labels.png") == 1


# --- models


def test_check_model(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("check-model", "small-cnn", "--input-shape", "1,28,28") == 0
    assert "run vectorised" in capsys.readouterr().out
    assert pmsfl("check-model", "pmsfl.models.small:small_cnn_", "--json") == 1
    assert pmsfl("check-model", "small-cnn", "--input-shape", "1,28,28", "--classes", "7", "--json") == 0
    found = last_json(capsys.readouterr().out)
    assert [c["depth"] for c in found["cuts"]] == [1, 2, 3, 4]
    assert found["vectorised"] is True
    assert pmsfl("check-model", "small-cnn", "--input-shape", "1,a") == 2


def test_export_and_predict(pmsfl: Pmsfl, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("export", runs / "pm-sfl", "--client", "1", "--out", tmp_path / "model") == 0
    assert str(tmp_path / "model") in capsys.readouterr().out
    assert len(list((tmp_path / "model").iterdir())) == 2
    samples, out = tmp_path / "x.npz", tmp_path / "found.npz"
    np.savez(samples, x=np.zeros((25, 1, 28, 28), np.uint8), y=np.zeros(25, np.int64))
    assert pmsfl("predict", runs / "pm-sfl", samples, "--out", out) == 0
    text = capsys.readouterr().out
    assert "and 5 more" in text
    assert "accuracy" in text
    with np.load(out) as found:
        assert found["labels"].shape == (25,)
        np.testing.assert_allclose(found["probabilities"].sum(1), 1.0)
    assert pmsfl("predict", runs / "pm-sfl", samples, "--client", "0", "--json") == 0
    assert len(last_json(capsys.readouterr().out)["labels"]) == 25


# --- mistakes


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["rnu"], 2, "run"),
        (["run", "--jsn"], 2, "--json"),
        (["run", "--executor", "refrence"], 2, "'reference'"),
        (["run", "--threads", "many"], 2, "--threads"),
        (["run", "--threads", "0"], 2, "at least 1"),
        (["run", "--dry-run", "--resume"], 2, "--resume"),
        (["show"], 2, "RUN"),
        (["show", "a", "b"], 2, "b"),
        (["run", "dmo"], 1, "error: unknown recipe 'dmo': did you mean 'demo'?"),
        (["run", "-m", "pmsfl"], 1, "'pm-sfl'"),
        (["run", "-c", "round=3"], 1, "did you mean 'rounds'?"),
        (["show", "nowhere"], 1, "error: nowhere is no run directory"),
    ],
)
def test_mistakes_get_a_hint_and_no_traceback(
    pmsfl: Pmsfl, words: list[str], code: int, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pmsfl(*words) == code
    text = capsys.readouterr()
    assert hint in text.err
    assert "Traceback" not in text.err
    assert not text.out


def test_help_and_version(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl() == pmsfl("--help") == pmsfl("-h") == 0
    assert capsys.readouterr().out.count("check-model") == 3
    assert pmsfl("--version") == 0
    assert capsys.readouterr().out.startswith("pmsfl ")
    assert pmsfl("run", "--help") == 0
    text = capsys.readouterr().out
    for word in ("--dry-run", "-c", "--config", "--executor", "[default: demo]", "--json"):
        assert word in text
    assert "--no-" not in text


def test_both_ways_know_the_same_options(monkeypatch: pytest.MonkeyPatch) -> None:
    every: dict[str, commands.Command] = {}
    for name, known in COMMANDS.items():
        every |= known.commands if isinstance(known, commands.Group) else {name: known}
    assert "step" in every
    for name, command in every.items():
        mine = {s for p in commands.parameters(command) if not p.positional for s in p.spellings}
        theirs = set(commands._parser(name, command)._option_string_actions) - {"-h", "--help"}
        assert mine == theirs
