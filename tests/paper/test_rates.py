"""Learning rates: grids of equal size around what Table 1 has, and a page that says which value is best."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from pmsfl.paper import rates, rows
from pmsfl.paper.logs import Logs
from pmsfl.paper.outcome import Outcome
from pmsfl.paper.plan import Planned, Row
from pmsfl.paper.rates import GRIDS, Grid, lines
from pmsfl.paper.tables import TABLES
from tests.paper.helpers import fake_log, pmsfl

DATA = Path("data")
COMMITTED = Path(__file__).parents[2] / "papers" / "pm-sfl"
EACH = [pytest.param(row, grid, id=f"{row.name}/{grid.method.name}") for row, grids in GRIDS for grid in grids]


@pytest.mark.parametrize(("row", "grid"), EACH)
def test_grids_are_of_equal_size_around_table_1(row: Row, grid: Grid) -> None:
    values = [float(v) for v in grid.values]
    assert values == sorted(set(values))
    assert list(grid.values) == [f"{v:g}" for v in values]  # as pages, cells and --only spell them
    whole = row.name == "radar-whole"
    tables = next(r for r, _ in TABLES["table1"].lines if r.name == ("radar" if whole else row.name))
    [scale] = row.scales
    same = scale if scale in tables.scales and row.scales[scale] == tables.scales[scale] else "full"
    in_table = Planned(tables, grid.method, same, 0).recipe(DATA)
    # Of the whole Transformer's grid Table 1 has what was best, wherever it lies; the last test sees to that.
    assert getattr(in_table, grid.key) in (values if whole else values[1:2])
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


def row_of(text: str, method: str) -> list[str]:
    """The cells of a method's line."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {method} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_best_is_bold_over_the_seeds_that_all_have(tmp_path: Path) -> None:
    # 0.1 would be best by its own mean, 85; over seed 0, which all of them have, 0.03 is.
    values: dict[str, dict[int, float]] = {"0.03": {0: 82.0}, "0.1": {0: 80.0, 1: 90.0}, "0.3": {0: 70.0}}
    logged(tmp_path, "radar/pm-sfl", {f"lr_score={v}": of for v, of in values.items()})
    logged(tmp_path, "radar/splitfed", {f"lr_client={v}": {0: 60.0, 1: 70.0} for v in ("0.003", "0.01")})
    logged(tmp_path, "radar/frozen-mask", {f"lr_client={v}": {0: 50.0} for v in ("0.001", "0.003")})
    logged(tmp_path, "radar/lg-fedavg", {"lr_score=0.03": {0: 76.0}})
    text = page(tmp_path)
    assert row_of(text, "PM-SFL") == ["scores", "**0.03: 82.00**", "0.1: 80.00", "0.3: 70.00", "0.1", "0"]
    both = "65.00 ± 5.00"
    assert row_of(text, "SplitFed") == ["weights, norms", "0.001:", f"0.003: {both}", f"0.01: {both}", "0.003", "0, 1"]
    assert row_of(text, "frozen mask")[0] == "norms"
    assert "| LG-FedAvg" not in text  # a single value says nothing of its neighbours
    assert "\nNot tried with other rates: Standalone, SplitFed-PM, LG-FedAvg.\n" in text
    assert "\nNo grid was played at this scale for `cifar100`, `unipen-190-own-statistics`, `mmhar`, " in text
    assert "40 rounds, 100 % of 100 clients in each, 2 epochs" in text
    assert str(tmp_path) not in text
    assert (tmp_path / "rates-reduced.png").exists()
    written = (tmp_path / "rates.csv").read_text(encoding="utf-8")
    assert len(written.splitlines()) == 1 + 11
    assert "radar-reduced,pm-sfl lr_score=0.03,best,0,40,82.0" in written


@pytest.mark.parametrize(
    ("values", "bold", "seeds"),
    [
        (({0: 80.0}, {0: 80.001}, {0: 70.0}), [True, True, False], "0"),  # equal as printed
        (({1: 90.0}, {0: 80.0}, {0: 70.0}), [False, False, False], "none in common"),
        (({0: math.nan, 1: 90.0}, {0: 60.0, 1: 95.0}, {0: 50.0, 1: 50.0}), [False, True, False], "1"),
    ],
)
def test_nothing_is_best_by_other_seeds_or_the_last_digit(
    tmp_path: Path, values: tuple[dict[int, float], ...], bold: list[bool], seeds: str
) -> None:
    names = (f"lr_score={v}" for v in ("0.03", "0.1", "0.3"))
    logged(tmp_path, "radar/pm-sfl", dict(zip(names, values, strict=True)))
    _, *cells, _, found = row_of(page(tmp_path), "PM-SFL")
    assert [cell.startswith("**") for cell in cells] == bold
    assert found == seeds


def test_rows_of_global_models_go_by_them(tmp_path: Path) -> None:
    for value, clients, of_global in (("0.025", 70.0, 60.0), ("0.05", 60.0, 65.0), ("0.1", 65.0, 62.0)):
        fake_log(tmp_path, f"cifar100/splitfed:lr_client={value}", 0, clients, "reduced", "rates", of_global)
        fake_log(tmp_path, f"cifar100/standalone:lr_client={float(value) * 2:g}", 0, clients, "reduced", "rates", 1.0)
    text = page(tmp_path)
    assert row_of(text, "SplitFed")[1:4] == ["0.025: 60.00", "**0.05: 65.00**", "0.1: 62.00"]
    assert row_of(text, "Standalone (clients)")[1:4] == ["**0.05: 70.00**", "0.1: 60.00", "0.2: 65.00"]


def test_a_value_that_table_1_has_is_played_once(tmp_path: Path) -> None:
    fake_log(tmp_path, "radar/pm-sfl", 0, 81.0, "reduced", "table1")
    logged(tmp_path, "radar/pm-sfl", {"lr_score=0.3": {0: 80.0}})
    assert row_of(page(tmp_path), "PM-SFL")[1:4] == ["0.03:", "0.1: 81.00", "0.3: 80.00"]


def test_a_scale_without_rows_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pmsfl("paper", "rates", "--scale", "full", "--out", tmp_path) == 2
    assert "rates has no rows at scale full; take one of half, reduced, quick" in capsys.readouterr().err


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


# What Table 1 has not been played again for: its 300 rounds want a GPU, and it lies 47 points behind.
HELD_DOWN = {("cifar100", "Standalone (clients)")}


def test_no_baseline_is_held_down_by_its_rate() -> None:
    """In the committed grids of which every value was played, but for those that docs/results.md names."""
    outcome = Outcome(TABLES["rates"], COMMITTED, DATA, Logs(COMMITTED))
    found = [
        (row.name, line.label, [s.mean for s in line.reached(line.seeds) if s is not None], line.in_table)
        for scale in outcome.scales()
        for row, groups in outcome.played(scale)
        for line in lines(row, groups)
        if line.best
    ]
    # Less than a point is what one seed does not tell; the whole Transformer has the best without exception.
    behind = {
        (row, method)
        for row, method, reached, in_table in found
        if max(reached) - reached[in_table] >= (1.0 if row != "radar-whole" else 1e-9)
    }
    assert behind == HELD_DOWN
