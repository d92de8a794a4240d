"""Learning rates: grids of equal size around what Table 1 has, and a page that says which value is best."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from pmsfl.paper import rates, rows
from pmsfl.paper.logs import Logs
from pmsfl.paper.outcome import Group, Outcome
from pmsfl.paper.plan import Planned, Row
from pmsfl.paper.rates import GRIDS, POINTS, Grid, Line, lines
from pmsfl.paper.tables import TABLES
from tests.paper.helpers import fake_log, pmsfl

DATA = Path("data")
COMMITTED = Path(__file__).parents[2] / "papers" / "pm-sfl"
EACH = [pytest.param(row, grid, id=f"{row.name}/{grid.method.name}") for row, grids in GRIDS for grid in grids]


@pytest.mark.parametrize(("row", "grid"), EACH)
def test_grids_are_of_equal_size_around_table_1(row: Row, grid: Grid) -> None:
    values = [float(v) for v in grid.values]
    assert len(values) == POINTS
    assert values == sorted(set(values))
    tables = next(r for r, _ in TABLES["table1"].lines if r.name == row.name)
    [scale] = row.scales
    same = scale if scale in tables.scales and row.scales[scale] == tables.scales[scale] else "full"
    in_table = Planned(tables, grid.method, same, 0).recipe(DATA)
    assert getattr(in_table, grid.key) in values
    free = {grid.key, "name", *(("rounds", "eval_every") if same == "full" else ())}
    for variant in grid.variants:  # the rate alone differs: what else the row has for the method is kept
        recipe = asdict(Planned(row, variant, scale, 0).recipe(DATA))
        assert {k for k, v in asdict(in_table).items() if recipe[k] != v} <= free


def test_what_a_row_has_for_a_method_holds_for_its_grid() -> None:
    grid = next(g for g in rates._BY_WRITER if g.method.name == "pm-sfl")
    assert {Planned(rows.unipen_every_own, v, "reduced", 0).recipe(DATA).growth_steps for v in grid.variants} == {4}


def logged(out: Path, address: str, figures: dict[str, dict[int, float]]) -> None:
    """Logs of a grid: by value, an accuracy per seed."""
    for setting, by_seed in figures.items():
        for seed, accuracy in by_seed.items():
            fake_log(out, f"{address}:{setting}", seed, accuracy, "reduced", "rates")


def page(out: Path) -> str:
    assert pmsfl("paper", "rates", "--scale", "reduced", "--out", out, "--data", out / "no-data") == 0
    return (out / "rates.md").read_text(encoding="utf-8")


def test_the_best_is_bold_over_the_seeds_that_all_have(tmp_path: Path) -> None:
    # 0.1 would be best by its own mean, 85; over seed 0, which all of them have, 0.03 is.
    logged(
        tmp_path,
        "radar/pm-sfl",
        {"lr_score=0.03": {0: 82.0}, "lr_score=0.1": {0: 80.0, 1: 90.0}, "lr_score=0.3": {0: 70.0}},
    )
    logged(tmp_path, "radar/splitfed", {"lr_client=3e-3": {0: 60.0, 1: 70.0}})
    text = page(tmp_path)
    assert "| PM-SFL | scores | **0.03: 82.00** | 0.1: 80.00 | 0.3: 70.00 | 0.1 | 0 |" in text
    assert "| SplitFed | clients' weights and norms | 0.001:  | 0.003: 65.00 | 0.01:  | 0.003 | 0, 1 |" in text
    assert "LG-FedAvg |" not in text  # none of its values was played
    assert "40 rounds, 100 % of 100 clients in each, 2 epochs" in text
    assert str(tmp_path) not in text
    assert (tmp_path / "rates-reduced.png").exists()
    lines_ = (tmp_path / "rates.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines_) == 1 + 6
    assert "radar-reduced,pm-sfl lr_score=0.03,best,0,40,82.0" in "\n".join(lines_)


def test_a_value_that_table_1_has_is_played_once(tmp_path: Path) -> None:
    fake_log(tmp_path, "radar/pm-sfl", 0, 81.0, "reduced", "table1")
    text = page(tmp_path)
    assert "| PM-SFL | scores | 0.03:  | 0.1: 81.00 | 0.3:  | 0.1 | 0 |" in text


def test_a_page_without_cells(tmp_path: Path) -> None:
    assert "No cell has been run yet." in page(tmp_path)


def test_a_grid_is_trained_at_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ("rounds=1", "eval_every=1", "epochs=1", "clients=4", "cohort=2", "eval_masks=1", "width=4", "max_samples=20")
    monkeypatch.setitem(rows.demo.scales, "quick", toy)
    words = ("--out", tmp_path, "--device", "cpu")
    assert pmsfl("paper", "rates", "--only", "demo/pm-sfl:*", *words) == 0
    logs = {f.name for f in tmp_path.glob("logs/rates/*")}
    assert logs == {f"demo-quick-pm-sfl_lr_score={v}-s0" for v in ("0.03", "0.1", "0.3")}
    assert len(re.findall(r"\*\*0\.\d+: ", (tmp_path / "rates.md").read_text(encoding="utf-8"))) == 1
    assert pmsfl("paper", "table1", "--only", "demo/pm-sfl", *words) == 0
    assert not (tmp_path / "logs" / "table1").exists()  # the cell is there already


def whole() -> list[tuple[str, Line]]:
    """The committed grids of which every value was played."""
    outcome = Outcome(TABLES["rates"], COMMITTED, DATA, Logs(COMMITTED))
    found: list[tuple[str, Line]] = []
    for scale in outcome.scales():
        for row, groups in outcome.played(scale):
            found += [(row.name, line) for line in lines(groups, rates._grids(row)) if line.best is not None]
    return found


def test_table_1_has_the_best_of_every_grid_that_was_played() -> None:
    for name, line in whole():
        assert line.best is not None
        groups: list[Group] = list(line.groups)
        best = float(line.grid.values[line.best])
        assert f"{best:g}" == line.in_table, (name, line.grid.method.name, line.reached, groups[0].recipe.name)
