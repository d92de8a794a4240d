"""The plan reads like the paper's table: which methods meet which rows, with one budget for a row."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from pmsfl.methods import METHODS
from pmsfl.paper import published, rows
from pmsfl.paper.plan import SCALES, Planned, cells, unavailable
from pmsfl.paper.tables import TABLES
from pmsfl.recipe_files import shipped
from pmsfl.report.console import UsageError

DATA = Path("data")


def test_the_papers_columns_and_our_controls() -> None:
    lines = {row.name: [v.name for v in variants] for row, variants in TABLES["table1"].lines}
    weights = ["standalone", "splitfed", "splitfed-dp", "splitfed-pm"]
    controls = ["frozen-mask", "dense-frozen", "threshold-mask"]
    assert lines["cifar100"] == [*weights, "pm-sfl", "pm-sfl-single", "pm-sfl@paper", *controls]
    for row in ("femnist", "unipen"):
        assert lines[row] == [*weights, "lg-fedavg", "pm-sfl", *controls]
    own_norms = [*weights[:2], "splitfed-own-norms", *weights[2:]]
    for row in ("mmhar", "sonichar", "radar"):
        masks = ["lg-fedavg", "pm-sfl", "pm-sfl-single"]
        assert lines[row] == [*own_norms, *masks, *controls, "frozen-mask-own-norms"]
    merged = [*weights[:2], "splitfed-merge-all", *weights[2:]]
    assert lines["cifar100-depths"] == [
        *merged,
        "depthfl",
        "pm-sfl",
        "pm-sfl-single",
        "pm-sfl-uncompensated",
        *controls,
    ]
    for row in ("femnist-depths", "unipen-depths", "demo-depths"):
        assert lines[row] == [*weights, "depthfl", "pm-sfl", "pm-sfl-uncompensated", *controls]


def test_every_printed_figure_has_its_cell() -> None:
    for row, variants in TABLES["table1"].lines:
        names = {v.name for v in variants}
        printed = {m for m in METHODS if published.accuracy(row.published, m) is not None}
        assert printed <= names, row.name


def test_printed_figures() -> None:
    assert published.accuracy("cifar100", "splitfed") == 51.39
    assert published.accuracy("femnist-depths", "pm-sfl") == 78.56
    assert published.accuracy("femnist", "pm-sfl@paper") == 81.89
    assert published.accuracy("cifar100", "lg-fedavg") is None  # a dash
    assert published.accuracy("cifar100", "frozen-mask") is None
    assert published.accuracy("", "pm-sfl") is None


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", list(TABLES))
def test_one_budget_for_all_methods_of_a_row(name: str, scale: str) -> None:
    free = {"method", "preset", "compensation", "personal_ratio", "personal_order", "agreement", "aggregate"}
    free |= {"growth_steps"}  # PM-SFL's alone
    free |= {"beta_reset", "estimator", "frozen", "server_optimiser", "client_optimiser", "weight_decay"}
    defences = {"dp_epsilon_smashed", "no_peek", "cut_channels", "cut_pool", "cut_codec", "gradient_codec"}
    free |= defences | {"cut_weights", "guard", "guard_width", "model", "depths"}  # a deeper cut is one, too
    # published presets have these as published
    free |= {"union_rate", "eval_mask", "score_spread", "mask_sharpness", "upload_draw", "score_schedule"}
    free |= {"mask_act", "forward_masks", "upload_masks", "score_decay"}
    free |= {"norms", "merge"}  # SplitFed's labelled variants
    for row, variants in TABLES[name].at(scale):
        if row.recipe not in shipped():
            continue
        found = [asdict(Planned(row, v, scale, 0).recipe(DATA)) for v in variants]
        for recipe in found[1:]:
            differs = {k for k in recipe if recipe[k] != found[0][k]}
            assert {k for k in differs if not k.startswith(("lr_", "damping"))} <= free, row.name


def test_a_rate_chosen_by_a_grid_is_of_one_method_at_one_scale() -> None:
    def rates(method: str, scale: str) -> tuple[float, float]:
        recipe = cells(TABLES["table1"], scale, 1, (f"unipen-depths/{method}",))[0].recipe(DATA)
        return recipe.lr_client, recipe.lr_score

    assert rates("splitfed", "reduced") == (0.4, 0.1)
    assert rates("standalone", "reduced") == rates("pm-sfl", "reduced") == (0.1, 0.1)
    assert rates("splitfed", "full") == rates("pm-sfl", "full") == (0.1, 0.02)


def test_single_masks_are_what_the_paper_has_in_every_row() -> None:
    shown = [(row, v) for row, variants in TABLES["table1"].lines for v in variants if v.name == rows.SINGLE]
    assert {row.name for row, _ in shown} >= {"cifar100", "cifar100-depths", "unipen-own-statistics"}
    ratio = [(row, variants[0]) for row, variants in TABLES["ratio"].lines if row.name.startswith("unipen")]
    assert len(ratio) == 2
    for row, variant in (*shown, *ratio):
        for scale in row.scales:
            if variant.name == rows.SINGLE or scale == "reduced":
                recipe = Planned(row, variant, scale, 0).recipe(DATA)
                assert (recipe.mask_act, recipe.forward_masks, recipe.upload_masks) == ("drop", 1, 1)
                assert recipe.mask_sharpness > 1.0  # as they were tuned, at every scale


def test_no_two_ablations_are_the_same() -> None:
    for row, variants in TABLES["ablation"].lines:
        for scale in row.scales:
            found = [Planned(row, v, scale, 0).recipe(DATA) for v in variants]
            assert len(set(found)) == len(found), row.name


def test_scales_shrink_and_name_themselves() -> None:
    [variant] = [v for v in TABLES["table1"].lines[2][1] if v.name == "pm-sfl"]
    rounds = []
    for scale, name in (("full", "cifar100"), ("half", "cifar100-half"), ("quick", "cifar100-quick")):
        recipe = Planned(rows.cifar100, variant, scale, 3).recipe(Path("there"))
        assert (recipe.name, recipe.seed) == (name, 3)
        assert Path(recipe.data_path) == Path("there/cifar-100-python")
        rounds.append(recipe.rounds)
    assert rounds == [300, 150, 10]
    assert "full" not in rows.demo.scales


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["cifar100/pm-sfl"], {"cifar100/pm-sfl"}),
        (["demo"], {f"demo/{v.name}" for v in TABLES["table1"].lines[0][1]}),
        (["demo*/depthfl", "demo/splitfed"], {"demo-depths/depthfl", "demo/splitfed"}),
        (["cifar100*/pm-sfl@*"], {"cifar100/pm-sfl@paper"}),
    ],
)
def test_only(only: list[str], expected: set[str]) -> None:
    found = cells(TABLES["table1"], "quick", 2, only)
    assert {c.address for c in found} == expected
    assert [c.seed for c in found] == [0, 1] * len(expected)


@pytest.mark.parametrize(
    ("scale", "only", "hint"),
    [
        ("full", "demo/pm-sfl", "it has one at quick: --scale quick"),  # the embedded digits are of scale quick only
        ("quick", "demo/spiltfed", "did you mean 'splitfed'?"),
        ("quick", "dmeo", "did you mean 'demo'?"),
        ("quick", "demo/nope", "known: dense-frozen, frozen-mask,"),  # this row's methods, no other's
    ],
)
def test_only_nothing_is_a_mistake(scale: str, only: str, hint: str) -> None:
    with pytest.raises(
        UsageError, match=f"--only {only}.*: no such cell of table1 at scale {scale}; {re.escape(hint)}"
    ):
        cells(TABLES["table1"], scale, 1, [only, "cifar100/pm-sfl"])  # not left out silently beside the other


def test_what_is_not_there_says_what_brings_it(tmp_path: Path) -> None:
    told = unavailable(rows.cifar100, tmp_path)
    assert told is not None
    assert "no cifar-100-python; bring" in told
    assert str(tmp_path) not in told  # a table says it, too
    assert "cs.toronto.edu" in told
    (tmp_path / "cifar-100-python").mkdir()
    assert unavailable(rows.cifar100, tmp_path) is None
    assert unavailable(rows.demo, tmp_path) is None


def test_femnist_by_writer_in_one_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "femnist.npz", x=np.zeros(1), y=np.zeros(1))
    variant = TABLES["table1"].lines[0][1][0]
    recipe = Planned(rows.femnist, variant, "full", 0).recipe(tmp_path)
    assert (recipe.data, recipe.data_path) == ("npz", str(tmp_path / "femnist.npz"))
    (tmp_path / "femnist").mkdir()
    assert Planned(rows.femnist, variant, "full", 0).recipe(tmp_path).data == "leaf"


def test_a_recipe_that_is_not_shipped_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pmsfl.paper.plan.shipped", lambda: ["demo"])
    assert "does not come with this version" in str(unavailable(rows.cifar100, tmp_path))
