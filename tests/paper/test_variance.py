"""How much persons differ: rows that are Table 1's but for the set, and a page that puts the variances side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from pmsfl.paper import variance
from pmsfl.paper.plan import SCALES, Planned, Row
from pmsfl.paper.tables import TABLES
from tests.paper.helpers import fake_log, find, pmsfl

DATA = Path("data")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("usual", variance.SETS, ids=lambda row: row.name)
def test_variances_differ_in_nothing_but_the_set(usual: Row, scale: str) -> None:
    assert scale in usual.scales
    for method in variance.VARIANTS:
        recipes = [
            asdict(Planned(variance.AT[usual.name, amount], method, scale, 0).recipe(DATA))
            for amount in variance.AMOUNTS
        ]
        table1, variant = find("table1", f"{usual.name}/{method.name}")
        assert recipes[1] == asdict(Planned(table1, variant, scale, 0).recipe(DATA))
        for recipe in recipes:
            assert {k for k, v in recipe.items() if v != recipes[1][k]} <= {"name", "data_path"}
        assert len({r["name"] for r in recipes}) == len({r["data_path"] for r in recipes}) == len(variance.AMOUNTS)


def test_a_missing_set_is_named_with_what_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--scale", "reduced", "--out", tmp_path, "--data", tmp_path / "no-data")
    assert pmsfl("paper", "variance", *words) == 0
    printed = capsys.readouterr()
    assert "pmsfl simulate sonichar DIR/variance-2 --variance 2" in printed.out + printed.err
    assert "No cell has been run yet." in (tmp_path / "variance.md").read_text(encoding="utf-8")


def test_the_page_puts_variances_side_by_side(tmp_path: Path) -> None:
    fake_log(tmp_path, "sonichar/pm-sfl", 0, 88.0, "reduced", "table1")  # table1's own cell is the middle one
    fake_log(tmp_path, "sonichar-variance-0/pm-sfl", 0, 92.0, "reduced", "variance")
    fake_log(tmp_path, "sonichar-variance-0/pm-sfl", 1, 94.0, "reduced", "variance")
    fake_log(tmp_path, "sonichar-variance-2/splitfed", 0, 70.0, "reduced", "variance")
    words = ("--scale", "reduced", "--out", tmp_path, "--data", tmp_path / "no-data")
    assert pmsfl("paper", "variance", *words) == 0
    text = (tmp_path / "variance.md").read_text(encoding="utf-8")
    assert "| sonichar: PM-SFL | 93.00 ± 1.00 | 88.00 |  |" in text
    assert "| sonichar: SplitFed |  |  | 70.00 |" in text
    assert "mmhar: " not in text  # nothing of it was played
    assert (tmp_path / "variance-reduced.png").exists()
    assert len((tmp_path / "variance.csv").read_text(encoding="utf-8").splitlines()) == 1 + 4


def test_a_set_that_was_played_at_one_variance_is_not_compared(tmp_path: Path) -> None:
    fake_log(tmp_path, "mmhar/pm-sfl", 0, 88.0, "reduced", "table1")
    words = ("--scale", "reduced", "--out", tmp_path, "--data", tmp_path / "no-data")
    assert pmsfl("paper", "variance", *words) == 0
    assert "| variance 0 |" not in (tmp_path / "variance.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.png"))


def test_no_figure_of_the_paper_stands_beside_other_variances() -> None:
    made = [row for row, _ in TABLES["variance"].lines if row not in variance.SETS]
    assert len(made) == len(variance.SETS) * (len(variance.AMOUNTS) - 1)
    assert not any(row.published for row in made)
    assert all("simulated" in row.remark for row in made)
