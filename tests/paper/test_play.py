"""Playing: cell by cell, stopped and taken up again, with missing data, beside another call."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pmsfl.api import run
from pmsfl.paper import rows
from pmsfl.paper.logs import OF_PERSONAL_MASKS, OF_SCORES, Logs, identity
from pmsfl.recipe import Recipe
from pmsfl.rundir import RunDirectory
from tests.paper.helpers import fake_log, pmsfl

from ..conftest import interrupted_in_round

TOY = ("rounds=2", "eval_every=1", "epochs=1", "clients=4", "cohort=2", "eval_masks=1", "width=4", "max_samples=20")


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded digits at a toy scale."""
    monkeypatch.setitem(rows.demo.scales, "quick", TOY)
    monkeypatch.setitem(rows.demo_depths.scales, "quick", (*TOY, "depths=1:1:1:1"))


def play(out: Path, *words: object, table: str = "table1") -> int:
    return pmsfl("paper", table, "--out", out, "--data", out / "data", "--device", "cpu", *words)


def methods(out: Path) -> list[str]:
    """'recipe method preset seed' of every line of the CSV."""
    lines = (out / "table1.csv").read_text(encoding="utf-8").splitlines()[1:]
    return [" ".join(line.split(",")[:4]) for line in lines]


def test_a_table_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(tmp_path) == 0
    told = capsys.readouterr()
    assert "cell 20 of 20  demo-depths-quick-threshold-mask-s0" in told.out
    for row in ("cifar100", "femnist", "unipen", "cifar100-depths"):
        assert re.search(rf"left out: {row}: no .*; bring", told.err)
    assert len(methods(tmp_path)) == 20
    assert "demo-quick pm-sfl paper 0" in methods(tmp_path)
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert re.search(r"Not played at this scale: `cifar100`, .*`cifar100-depths`", text)
    assert "30.16" not in text  # the paper's figures stand beside ours, not alone
    assert "2 rounds, 2 of 4 clients in each" in text
    assert (tmp_path / "table1-quick.png").exists()
    assert (tmp_path / "entropy-quick.png").exists()
    folder = tmp_path / "logs" / "table1" / "demo-quick-pm-sfl-s0"
    assert {f.name for f in folder.iterdir()} == {"metrics.jsonl", "recipe.toml", "result.json", "versions.json"}

    # Once more: nothing is left to do, and the runs may even be gone.
    for file in tmp_path.glob("runs/*/recipe.toml"):
        file.unlink()
    before = {f: f.stat().st_mtime_ns for f in tmp_path.glob("logs/*/*/*")}
    assert play(tmp_path) == 0
    assert "20 there already, 0 to play" in capsys.readouterr().out
    assert {f: f.stat().st_mtime_ns for f in tmp_path.glob("logs/*/*/*")} == before

    # Borrowed tables come from the same logs.
    assert play(tmp_path, table="communication") == 0
    assert play(tmp_path, table="convergence") == 0
    assert "demo-quick,pm-sfl,best,0,2" in (tmp_path / "convergence.csv").read_text(encoding="utf-8")


def test_only_and_more_seeds_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(tmp_path, "--only", "demo/splitfed, demo-depths/frozen*") == 0
    assert methods(tmp_path) == ["demo-quick splitfed best 0", "demo-depths-quick frozen-mask best 0"]
    assert play(tmp_path, "--only", "demo/splitfed", "--seeds", 2) == 0
    assert "2 cells, 1 there already, 1 to play" in capsys.readouterr().out
    assert play(tmp_path, "--only", "demo/splitfed") == 0  # asked for one seed, the other still shows
    assert methods(tmp_path)[:2] == ["demo-quick splitfed best 0", "demo-quick splitfed best 1"]
    assert play(tmp_path, "--only", "demo/nothing") == 2


def test_borrowed_tables_train_only_when_asked(tmp_path: Path) -> None:
    assert play(tmp_path, table="convergence") == 0
    assert not list(tmp_path.glob("logs/*/*"))
    assert play(tmp_path, "--only", "demo/frozen-mask", table="convergence") == 0
    assert [f.name for f in tmp_path.glob("logs/table1/*")] == ["demo-quick-frozen-mask-s0"]


def test_interrupted_cells_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--only", "demo/splitfed", "--seeds", 2)
    with interrupted_in_round(4, monkeypatch):  # that is in the second cell
        assert play(tmp_path, *words) == 130
    assert "Go on with the same command" in capsys.readouterr().err
    assert methods(tmp_path) == ["demo-quick splitfed best 0"]
    run = tmp_path / "runs" / "demo-quick-splitfed-s1"
    begun = (run / "metrics.jsonl").read_text(encoding="utf-8")
    assert len(begun.splitlines()) == 1

    # While another call is at it, this one leaves it alone.
    with RunDirectory(run).locked():
        assert play(tmp_path, *words) == 0
    told = capsys.readouterr()
    assert "demo-quick-splitfed-s1  another process is at it" in told.out
    assert "another process is training demo-quick-splitfed-s1: run this again when it is done" in told.err
    assert methods(tmp_path) == ["demo-quick splitfed best 0"]

    assert play(tmp_path, *words) == 0
    assert (run / "metrics.jsonl").read_text(encoding="utf-8").startswith(begun)  # with the time it took then
    assert methods(tmp_path) == ["demo-quick splitfed best 0", "demo-quick splitfed best 1"]


def test_a_cell_that_fails_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "cifar-100-python"
    folder.mkdir(parents=True)  # there, but empty
    assert play(tmp_path, "--only", "cifar100/splitfed", "--only", "demo/splitfed") == 1
    told = capsys.readouterr()
    assert "1 cells failed: cifar100-quick-splitfed-s0" in told.err
    assert methods(tmp_path) == ["demo-quick splitfed best 0"]


def test_a_changed_plan_keeps_what_was_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--only", "demo/frozen-mask")
    assert play(tmp_path, *words) == 0
    monkeypatch.setitem(rows.demo.scales, "quick", (*TOY, "rounds=1"))
    assert play(tmp_path, *words) == 0
    assert [f.name for f in sorted(tmp_path.glob("logs/table1/*"))] == [
        "demo-quick-frozen-mask-s0",
        "demo-quick-frozen-mask-s0-2",
    ]
    [line] = (tmp_path / "table1.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert line.endswith("logs/table1/demo-quick-frozen-mask-s0-2")  # of the plan as it is now


def test_logs_say_nothing_of_this_machine_and_stay_small(tmp_path: Path) -> None:
    assert play(tmp_path, "--only", "demo/pm-sfl") == 0
    run, folder = tmp_path / "runs" / "demo-quick-pm-sfl-s0", tmp_path / "logs" / "table1" / "demo-quick-pm-sfl-s0"
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["run"] == "logs/table1/demo-quick-pm-sfl-s0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    assert str(tmp_path) not in "".join(f.read_text(encoding="utf-8") for f in folder.iterdir())
    raw, kept = RunDirectory(run).metrics(), RunDirectory(folder).metrics()
    assert [line["bytes"] for line in kept] == [line["bytes"] for line in raw]
    assert [line["loss"] for line in kept] == pytest.approx([line["loss"] for line in raw], rel=1e-5)
    assert "per_client" not in kept[0]["evaluation"]
    assert len(kept[1]["evaluation"]["per_client"]) == 4


def test_a_cell_is_known_wherever_its_data_lies(tmp_path: Path) -> None:
    fake_log(tmp_path, "cifar100/splitfed", 1, 70.0)
    logs = Logs(tmp_path)
    [folder] = tmp_path.glob("logs/*/*")
    recipe = RunDirectory(folder).recipe()
    assert logs.has(recipe.replace(data_path="/elsewhere"))
    assert logs.has(recipe.replace(capture="off", checkpoint_every=7, keep_checkpoints=1))
    assert not logs.has(recipe.replace(seed=0))
    assert not logs.has(recipe.replace(rounds=299))
    assert logs.of(Recipe()) == {}


def losses(recipe: Recipe, out: Path) -> list[tuple[float, float]]:
    """Loss and accuracy of every round."""
    metrics = run(recipe, out=out, device="cpu").metrics
    return [(line["loss"], line["evaluation"]["accuracy"]) for line in metrics]


NOT_PERSONAL: dict[str, Any] = {
    "personal_ratio": 0.9,
    "agreement": 0.0,
    "growth": "one-shot",
    "growth_steps": 3,
    "personal_order": "random",
}


@pytest.mark.parametrize("method", ["splitfed-pm", "lg-fedavg", "depthfl", "threshold-mask"])
def test_knobs_of_personal_masks_change_nothing_where_there_are_none(method: str, tmp_path: Path) -> None:
    base = Recipe.load("demo", [*TOY, f"method={method}"])
    other = base.replace(**NOT_PERSONAL)
    assert all(getattr(base, k) != getattr(other, k) for k in OF_PERSONAL_MASKS)
    assert identity(base) == identity(other)
    assert losses(base, tmp_path / "a") == losses(other, tmp_path / "b")


@pytest.mark.parametrize("method", ["splitfed", "splitfed-dp", "standalone", "frozen-mask", "dense-frozen"])
@pytest.mark.parametrize("depths", ["2", "1:1:1:1"])
def test_knobs_that_only_scores_read_change_nothing_else(method: str, depths: str, tmp_path: Path) -> None:
    base = Recipe.load("demo", [*TOY, f"method={method}", f"depths={depths}"])
    other = base.replace(
        lr_score=0.7,
        score_schedule="cosine",
        score_decay=0.2,
        estimator="paper",
        entropy_target=0.9,
        entropy_rate=0.5,
        mask_sharpness=9.0,
        mask_per="round",
        upload_draw="even",
        mask_act="flip",
        forward_masks=3,
        upload_masks=7,
        eval_mask="threshold",
        **NOT_PERSONAL,
    )
    assert all(getattr(base, k) != getattr(other, k) for k in (*OF_SCORES, *OF_PERSONAL_MASKS))
    assert identity(base) == identity(other)
    assert losses(base, tmp_path / "a") == losses(other, tmp_path / "b")


def test_of_methods_that_train_scores_every_knob_counts() -> None:
    masks, weights = (Recipe(method="lg-fedavg", train=what) for what in ("masks", "weights"))
    assert identity(masks) != identity(masks.replace(lr_score=0.7))
    assert identity(weights) == identity(weights.replace(lr_score=0.7))
    assert identity(masks.replace(aggregate="settled")) != identity(masks.replace(aggregate="sampled"))
    assert identity(masks.replace(rest_from=0.5)) != identity(masks)
    assert identity(weights.replace(rest_from=0.5)) == identity(weights)
    late = weights.replace(lr_schedule="late")
    assert identity(late.replace(rest_from=0.5)) != identity(late)
    assert identity(weights.replace(aggregate="settled")) == identity(weights.replace(aggregate="sampled"))
    assert identity(masks.replace(frozen="signed-masks")) != identity(masks)
    assert identity(weights.replace(frozen="signed-masks")) == identity(weights.replace(frozen="kaiming"))
    assert identity(weights.replace(frozen="signed")) != identity(weights.replace(frozen="kaiming"))
    assert identity(weights.replace(aggregate="damped")) != identity(weights.replace(aggregate="sampled"))
    assert identity(Recipe(method="splitfed")) != identity(Recipe(method="splitfed", lr_client=0.7))


@pytest.mark.parametrize("empty", ["", " , "])
def test_an_empty_choice_is_not_everything(empty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(tmp_path, "--only", empty) == 2
    assert "name a cell, row/method" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
