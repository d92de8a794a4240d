"""The frontier: cells are trained and attacked, each half on its own; tables, figures and pictures come from logs."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.paper import play, tradeoff
from pmsfl.paper.attacked import AttackPlan, read_attack, read_pictures
from pmsfl.paper.frontier import Point, frontier
from pmsfl.paper.outcome import Group
from pmsfl.presets import PRESETS
from pmsfl.privacy.attacks import Budget
from pmsfl.recipe import Recipe
from pmsfl.report.interval import Summary
from pmsfl.rundir import RunDirectory
from tests.paper.helpers import find, pmsfl

TOY = ("rounds=1", "eval_every=1", "epochs=1", "clients=4", "cohort=2", "eval_masks=1", "width=4", "max_samples=20")
PLAN = AttackPlan("quick", "joint,decoder", 4, Budget(4, 2, 4, 8, 1))
NARROW, PLAIN, PRIVATE = "demo/pm-sfl+narrow", "demo/splitfed", "demo/pm-sfl@private"


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy trainings and toy attacks."""
    monkeypatch.setitem(tradeoff.demo.scales, "quick", TOY)
    monkeypatch.setitem(tradeoff.ATTACKS, "quick", PLAN)


def play_(out: Path, *words: object, table: str = "tradeoff") -> int:
    return pmsfl("paper", table, "--out", out, "--data", out / "data", "--device", "cpu", *words)


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "tradeoff.csv").open(encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three cells, trained and attacked."""
    out = tmp_path_factory.mktemp("papers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tradeoff.demo.scales, "quick", TOY)
        patch.setitem(tradeoff.ATTACKS, "quick", PLAN)
        assert play_(out, "--only", NARROW, "--only", PLAIN, "--only", PRIVATE) == 0
    return out


def test_a_cell_is_trained_and_attacked(played: Path) -> None:
    splitfed, narrow, private = rows_of(played)
    assert [r["method"] for r in (splitfed, narrow)] == ["splitfed", "pm-sfl cut_channels=8 cut_pool=2"]
    assert (private["method"], private["preset"]) == ("pm-sfl", "private")
    log = json.loads((played / splitfed["log"] / "attack-quick.json").read_text(encoding="utf-8"))
    best = max((a["score"], name) for name, a in log["attacks"].items() if a["role"] == "attack")
    assert (float(splitfed["max_ssim"]), splitfed["max_attack"]) == best
    assert splitfed["floor"] == private["floor"] != ""  # the same images
    assert splitfed["unmasked"] == splitfed["max_ssim"]  # there is no mask to take away
    assert private["mask_entropy"]
    assert not splitfed["mask_entropy"]
    assert str(played) not in json.dumps(log)


def test_bytes_across_the_cut(played: Path) -> None:
    # small-cnn of width 4 on 28 × 28 pixels, cut after block 2: 8 × 7 × 7 floats; batches of 16; headers of 48 bytes
    splitfed, narrow, private = rows_of(played)
    plain = 2 * (48 + 4 * 16 * 8 * 7 * 7)
    assert float(splitfed["cut_bytes_ratio"]) == 1.0
    assert float(narrow["cut_bytes_ratio"]) == pytest.approx(plain / (2 * (48 + 4 * 16 * 8 * 4 * 4)), abs=0.01)
    few = 2 * (48 + 8 * 3) + 16 * 8 * 4 * 4 * (0.5 + 1)  # a step and a zero per channel, 4 bits up, 8 bits down
    assert float(private["cut_bytes_ratio"]) == pytest.approx(plain / few, abs=0.01)
    # 16 training samples of each client, at most: one step in a round of one epoch
    assert float(splitfed["cut_bytes_per_client_round"]) == plain
    assert 1.0 < float(narrow["client_flops_ratio"]) == float(private["client_flops_ratio"])  # bits cost no work


def test_tables_and_figures(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play_(played, "--only", PLAIN) == 0  # nothing to play, everything is written
    assert "1 cells, 1 there already, 0 to play" in capsys.readouterr().out
    page = (played / "tradeoff.md").read_text(encoding="utf-8")
    assert "![tradeoff-quick](tradeoff-quick.png)" in page
    assert "PM-SFL, private** ★ |" in page or "PM-SFL, private ★ |" in page
    assert "joint, decoder; 4 images, 4 steps" in page
    assert re.search(r"\| DP ε=0.1 \|( +\|)+", page)  # not run: empty
    assert (played / "tradeoff-quick.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_pictures_of_the_strongest_attack(played: Path) -> None:
    assert play_(played, table="reconstructions") == 0
    assert (played / "reconstructions-demo-quick.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "reconstructions-demo-quick.png" in (played / "reconstructions.md").read_text(encoding="utf-8")
    found = [read_pictures(played / r["log"], PLAN) for r in rows_of(played)]
    assert all(p is not None and p["best"].shape == (4, 1, 28, 28) for p in found)
    first, last = found[0], found[-1]
    assert first is not None
    assert last is not None
    assert np.array_equal(first["truth"], last["truth"])
    assert not np.array_equal(first["best"], last["best"])
    assert first["truth"].std() > 0.1


def test_what_is_trained_is_only_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(play, "attack_run", broken)
        assert play_(tmp_path, "--only", PLAIN) == 1
    assert "the attack on demo-quick-splitfed-s0 failed: out of memory" in capsys.readouterr().err
    assert rows_of(tmp_path) == []  # trained, and in no table before it was attacked
    result = tmp_path / "logs" / "tradeoff" / "demo-quick-splitfed-s0" / "result.json"
    before = result.stat().st_mtime_ns

    with monkeypatch.context() as patch:
        patch.setattr(CohortExecutor, "round", broken)
        assert play_(tmp_path, "--only", PLAIN) == 0
        assert len(rows_of(tmp_path)) == 1
        # Another plan asks for the attack again, and for nothing else.
        patch.setitem(tradeoff.ATTACKS, "quick", AttackPlan("quick", "decoder", 4, PLAN.budget))
        assert play_(tmp_path, "--only", PLAIN) == 0
    assert result.stat().st_mtime_ns == before
    assert read_attack(result.parent, PLAN) is None
    assert "0 there already, 1 to play" in capsys.readouterr().out


def test_without_its_run_a_cell_is_trained_again_for_the_attack(tmp_path: Path) -> None:
    assert play_(tmp_path, "--only", PLAIN) == 0
    [log] = tmp_path.glob("logs/tradeoff/*")
    (log / "attack-quick.json").unlink()
    for file in tmp_path.glob("runs/*/recipe.toml"):
        file.unlink()
    assert play_(tmp_path, "--only", PLAIN) == 0
    assert (log / "attack-quick.json").exists()
    assert list(tmp_path.glob("logs/tradeoff/*")) == [log]


def test_a_damaged_log_of_an_attack_costs_the_attack_alone(tmp_path: Path) -> None:
    assert play_(tmp_path, "--only", PLAIN) == 0
    [log] = tmp_path.glob("logs/tradeoff/*")
    (log / "attack-quick.npz").write_bytes(b"PK")
    assert read_pictures(log, PLAN) is None
    (log / "attack-quick.json").write_text('{"plan": ')
    assert read_attack(log, PLAN) is None
    assert play_(tmp_path, "--only", PLAIN) == 0
    assert read_attack(log, PLAN) is not None
    assert read_pictures(log, PLAN) is not None


def test_an_attack_by_another_call_is_left_to_it(tmp_path: Path) -> None:
    assert play_(tmp_path, "--only", PLAIN) == 0
    [log] = tmp_path.glob("logs/tradeoff/*")
    (log / "attack-quick.json").unlink()
    [run] = tmp_path.glob("runs/demo*")
    with RunDirectory(run).locked():
        assert play_(tmp_path, "--only", PLAIN) == 0
    assert not (log / "attack-quick.json").exists()


def test_the_stages_of_the_recommended_point_stand_in_one_place() -> None:
    row, variant = find("tradeoff", PRIVATE)
    recipe = Recipe.load(row.recipe, variant.changes)
    assert all(getattr(recipe, k) == v for k, v in PRESETS["private"].items())
    assert variant.name == tradeoff.RECOMMENDED
    _, narrow = find("tradeoff", "demo/pm-sfl+narrow")
    keys = ("cut_channels", "cut_pool")
    assert narrow.changes == ("method=pm-sfl", *(f"{k}={PRESETS['private'][k]}" for k in keys))


def test_the_frontier_is_what_nothing_beats() -> None:
    def point(accuracy: float, ssim: float) -> Point:
        row, variant = find("tradeoff", PLAIN)
        group = Group(row, variant, "quick", Recipe(), ())
        return Point(group, Summary(accuracy, None, 1), Summary(ssim, None, 1))

    a, b, c, d = point(70.0, 0.9), point(60.0, 0.4), point(60.0, 0.5), point(50.0, 0.4)
    assert frontier([a, b, c, d]) == [b, a]
    assert frontier([c, d]) == [d, c]
    assert frontier([b, b]) == [b, b]
