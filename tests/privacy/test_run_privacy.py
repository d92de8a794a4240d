"""What a run writes about privacy and about the health of its masks, and what `pmsfl privacy` says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pmsfl.engine.health import FEW_CROSS, HIGH_CLIP, LOW_ENTROPY, warnings
from pmsfl.engine.spending import Spending
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.masks.bernoulli import bound, share_at_clip, to_scores
from pmsfl.privacy.mechanisms import zcdp_epsilon
from pmsfl.privacy.paper import smashed_claim, theta_claim, update_claim
from pmsfl.recipe import Recipe
from pmsfl.report.page import render
from pmsfl.report.privacy import as_dict
from pmsfl.run import Interrupted, Listener, Progress, Run, train

from ..conftest import Pmsfl, tiny_recipe, tiny_world

ROUNDS = 4
CLIPPED: dict[str, Any] = {"score_clip": 0.3, "rounds": ROUNDS, "eval_every": 2, "checkpoint_every": 1}
SMALL = ("-c", "max_samples=20", "-c", "width=4")


def digits(**changes: Any) -> Recipe:
    return Recipe.load("demo", ["max_samples=20", "width=4", "cohort=3", "eval_masks=1", "epochs=1"], **changes)


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(digits(**CLIPPED), out=tmp_path_factory.mktemp("runs") / "clipped")


# --- metrics


def test_every_round_tells_how_healthy_masks_are_and_how_often_records_were_seen(clipped: Run) -> None:
    seen = [line["observations"] for line in clipped.metrics]
    assert [s["max"] for s in seen] == sorted(s["max"] for s in seen)
    assert all(0.0 < s["mean"] <= s["max"] for s in seen)
    assert all(0.0 <= line["at_clip"] <= 1.0 for line in clipped.metrics)
    assert Spending.of(clipped.world, ROUNDS).observations(clipped.world) == (seen[-1]["mean"], seen[-1]["max"])


def test_evaluations_tell_what_was_spent(clipped: Run) -> None:
    lines = clipped.metrics
    assert ["privacy" in line for line in lines] == [False, True, False, True]
    uploads = max(s.uploads for s in Spending.of(clipped.world, ROUNDS).clients.values())
    spent = lines[-1]["privacy"]
    assert spent["channels"]["masks"]["unit"] == "client"
    expected = zcdp_epsilon(uploads * 0.3**2 / 8, spent["delta"])
    assert spent["channels"]["masks"]["epsilon"] == pytest.approx(expected)
    assert clipped.result is not None
    assert clipped.result["privacy"] == spent


def test_a_run_without_mechanisms_claims_nothing(tmp_path: Path) -> None:
    run = train(digits(rounds=1), out=tmp_path / "run")
    assert "privacy" not in run.metrics[-1]
    assert run.result is not None
    assert run.result["privacy"] is None
    assert "Guaranteed" not in render(run)


def test_a_resumed_run_has_spent_what_an_uninterrupted_one_has(clipped: Run, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(digits(**CLIPPED), out=tmp_path / "run", listener=Listener(on_round=stop))
    resumed = train(out=tmp_path / "run", resume=True)
    for mine, other in zip(resumed.metrics, clipped.metrics, strict=True):
        assert mine["observations"] == other["observations"]
        assert mine.get("privacy") == other.get("privacy")


# --- health


def line(**changes: Any) -> dict[str, Any]:
    layers = {"first": 0.9, "second": 0.1}
    return {"mask_entropy": 0.8, "entropy_per_layer": layers, "at_clip": 0.1, "disagree": 0.1} | changes


@pytest.mark.parametrize(
    ("changes", "kind", "advice"),
    [
        ({"mask_entropy": LOW_ENTROPY / 2}, "mask_entropy", "second"),
        ({"at_clip": HIGH_CLIP * 1.1}, "at_clip", "damping"),
        ({"disagree": FEW_CROSS / 2}, "disagree", "larger lr_score"),
    ],
)
def test_masks_in_trouble_are_warned_about_with_what_to_change(changes: dict[str, Any], kind: str, advice: str) -> None:
    found = warnings(tiny_recipe(), True, line(**changes))
    assert list(found) == [kind]
    assert advice in found[kind]


def test_means_of_many_masks_are_told_to_hide_nothing_whatever_their_entropy() -> None:
    for entropy in (0.9, LOW_ENTROPY / 2):
        found = warnings(tiny_recipe(forward_masks=15), True, line(mask_entropy=entropy))
        assert "mean of 15 masks" in found["mask_entropy"]
        assert "forward_masks=1" in found["mask_entropy"]
    assert warnings(tiny_recipe(forward_masks=2), True, line()) == {}


def test_healthy_masks_and_metrics_of_older_runs_give_no_warning() -> None:
    assert warnings(tiny_recipe(), True, line()) == {}
    assert warnings(tiny_recipe(), True, {"mask_entropy": None, "disagree": None}) == {}


def test_nobody_needs_a_disagree_group_without_personalisation() -> None:
    assert warnings(tiny_recipe(), False, line(disagree=0.0)) == {}
    assert warnings(tiny_recipe(personal_ratio=0.0), True, line(disagree=0.0)) == {}


def test_scores_that_came_to_rest_need_not_cross() -> None:
    late, few = tiny_recipe(rounds=10, score_schedule="late", rest_from=0.5), FEW_CROSS / 2
    assert list(warnings(late, True, line(disagree=few, round=5))) == ["disagree"]
    assert warnings(late, True, line(disagree=few, round=9)) == {}
    constant = late.replace(score_schedule="constant")
    assert list(warnings(constant, True, line(disagree=few, round=9))) == ["disagree"]


def test_a_rate_is_not_advised_to_who_has_it() -> None:
    def advice(rate: float) -> str:
        return warnings(tiny_recipe(lr_score=rate), True, line(disagree=0.0))["disagree"]

    assert advice(0.01).endswith("0.01 (0.1 works)")
    assert advice(0.1).endswith("lr_score than 0.1")


@pytest.mark.parametrize("schedule", ["constant", "late"])  # at rest in the last round of three
def test_each_kind_of_trouble_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pmsfl: Pmsfl, schedule: str
) -> None:
    notes: list[str] = []
    recipe = digits(rounds=3, lr_score=1e-6, score_schedule=schedule)
    run = train(recipe, out=tmp_path / "run", listener=Listener(on_note=notes.append))
    assert len([n for n in notes if "disagree group is empty" in n]) == 1
    assert pmsfl("show", run.path) == 0
    assert "warning: the disagree group is empty" in capsys.readouterr().out
    assert "Warning: the disagree group is empty" in render(run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_share_at_the_clip_counts_both_ends(dtype: torch.dtype) -> None:
    theta = torch.tensor([[0.01, 0.99, 0.5, 0.02], [0.0, 1.0, 0.011, 0.989]], dtype=dtype)
    assert share_at_clip(to_scores(theta, 0.01), 0.01).tolist() == [0.5, 0.5]
    assert share_at_clip(torch.full((1, 3), bound(0.01), dtype=dtype), 0.01).tolist() == [1.0]


# --- pmsfl privacy


def test_privacy_of_a_recipe_as_json(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("privacy", "demo", *SMALL, "-c", "score_clip=1", "-c", "cohort=24", "--rounds", 10, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("smashed data", "masks", "norms", "labels", "indicator", "statistics"):
        assert found["channels"][name].keys() >= {"epsilon", "unit", "why"}
        assert found["channels"][name]["unit"] in ("client", "sample")
    assert found["channels"]["masks"]["epsilon"] == pytest.approx(8.08, abs=0.01)
    assert [n for n, c in found["channels"].items() if c["epsilon"] is None] == [
        "smashed data",
        "norms",
        "labels",
        "indicator",
        "statistics",
    ]
    assert found["covers_everything"] is False
    assert all(claim["guarantee"] is False and claim["verdict"] for claim in found["paper"])


def test_privacy_of_a_run_is_what_it_spent(clipped: Run, pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("privacy", clipped.path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    spent = clipped.metrics[-1]["privacy"]["channels"]["masks"]["epsilon"]
    assert found["rounds"] == ROUNDS
    assert found["channels"]["masks"]["epsilon"] == pytest.approx(spent)
    assert max(c["epsilon"]["masks"] for c in found["clients"]) == pytest.approx(spent)
    assert sum(c["uploads"] for c in found["clients"]) == 3 * ROUNDS
    assert pmsfl("privacy", clipped.path) == 0
    assert "was spent" in capsys.readouterr().out
    assert pmsfl("privacy", clipped.path, "--rounds", 3) == 2
    assert "leave out" in capsys.readouterr().err


def test_privacy_for_people_marks_the_papers_formulas(pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("privacy", "demo", *SMALL) == 0
    out = capsys.readouterr().out
    assert "the paper's formulas: not a guarantee" in out
    assert "no guarantee for what a client sends as a whole" in out


def test_a_claim_that_cannot_hold_is_refused_on_the_command_line(
    pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pmsfl("privacy", "demo", *SMALL, "-c", "dp_smashed=gaussian") == 1
    assert "batch statistics" in capsys.readouterr().err


def test_a_run_whose_data_changed_is_refused(clipped: Run, tmp_path: Path) -> None:
    from pmsfl.report.privacy import show

    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "recipe.toml").write_text(clipped.recipe.replace(max_samples=10).to_toml())
    for name in ("versions.json", "metrics.jsonl"):
        (copy / name).write_bytes((clipped.path / name).read_bytes())
    with pytest.raises(PmsflError, match="fingerprint"):
        show(str(copy), (), None, True)


def test_the_page_and_show_say_what_was_spent(clipped: Run, pmsfl: Pmsfl, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Guaranteed: masks ε = " in render(clipped)
    assert pmsfl("show", clipped.path) == 0
    assert "masks ε = " in capsys.readouterr().out


# --- the paper's formulas


def test_the_papers_formulas_give_the_papers_numbers() -> None:
    assert smashed_claim(1.0, 0.25, 1) == pytest.approx(math.log(0.75 * math.e + 0.25))
    assert smashed_claim(0.1, 0.01, 100_000) == pytest.approx(0.1)
    epsilon = update_claim(3.0, 40, 1e-5)
    assert 2 * 40 * math.log(1e5) / epsilon**2 == pytest.approx(9.0)  # σ² of the theorem, in units of Γ/|Q|
    epsilon = theta_claim(0.5, 0.01, 1e-5)
    assert 2 * 0.98**2 * math.log(1.25e5) / epsilon**2 == pytest.approx(0.25)


def test_the_paper_claims_far_less_than_holds() -> None:
    world = tiny_world(theta_noise=1.0, cohort=5)
    found = as_dict(world, Spending.of(world, 1), 1)
    claimed = next(c["value"] for c in found["paper"] if "3b" in c["statement"])
    assert found["channels"]["masks"]["epsilon"] > 5 * claimed


def test_methods_without_masks_have_nothing_of_the_papers() -> None:
    world: World = tiny_world(method="splitfed")
    assert as_dict(world, Spending.of(world, 1), 1)["paper"] == []
