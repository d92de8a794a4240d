"""Recipes: every knob named, typed and bounded; what is wrong is said with the nearest right."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.errors import PmsflError
from pmsfl.presets import PRESETS, PRIVATE_RESNET
from pmsfl.recipe import Recipe, RecipeError
from pmsfl.recipe_files import nearest, shipped
from pmsfl.sweep_plan import split_values

FIELDS = dataclasses.fields(Recipe)


# --- what is wrong is named


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lr_scor=1", "unknown key 'lr_scor': did you mean 'lr_score'"),
        ("masks.lr_scor=1", "did you mean 'lr_score'"),
        (
            "aggregate=dampd",
            r"aggregate = 'dampd': did you mean 'damped'\? \(allowed: sampled, damped, beta, settled\)",
        ),
        ("rounds=many", "rounds = 'many': must be a whole number"),
        ("rounds=2.5", "must be a whole number"),
        ("rounds=0", "rounds = 0: must be at least 1"),
        ("lr_score=fast", "must be a number"),
        ("lr_score=-1", "must be at least 0.0"),
        ("lr_score=nan", "lr_score = nan"),
        ("clip=0.5", "must be between 1e-06 and 0.49"),
        ("clip=0", "must be between"),
        ("masked_top=maybe", "must be true or false"),
        ("masked_top", "write it as key=value"),
        ("seed=-1", "must be between 0"),
        ("version=9", "must be between 1 and 1"),
        ("preset=papr", "did you mean 'paper'"),
        ("precision=fp16", r"precision = 'fp16': .*\(?(allowed|known): auto, bf16, full"),
        ("capture=on", r"capture = 'on': .*\(?(allowed|known): auto, graph, off|capture = 'on': did you mean"),
    ],
)
def test_a_bad_override_is_named_with_what_is_allowed(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.load("demo", [override])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": "5"}, "must be a whole number"),
        ({"rounds": True}, "must be a whole number"),
        ({"rounds": 5.0}, "must be a whole number"),
        ({"clip": "0.1"}, "must be a number"),
        ({"masked_top": 1}, "must be true or false"),
        ({"method": 3}, "must be text"),
        ({"nonsense": 3}, "unknown key 'nonsense'"),
    ],
)
def test_values_keep_their_types(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe().replace(**changes)


@pytest.mark.parametrize("key", [f.name for f in FIELDS if isinstance(f.default, float)])
def test_a_number_without_end_is_refused(key: str) -> None:
    """It could not be written to recipe.toml, so the run could never be resumed."""
    with pytest.raises(RecipeError, match=key):
        Recipe.load("demo", [f"{key}=inf"])


def test_the_nearest_word_is_offered_or_all_of_them() -> None:
    assert nearest("sampeld", ("sampled", "damped")) == "did you mean 'sampled'?"
    assert nearest("xyz", ("b", "a")) == "known: a, b"


# --- types


def test_overrides_are_read_as_their_key_wants_them() -> None:
    recipe = Recipe.load(
        "demo", ["rounds=7", "lr_score=1e-2", "masked_top=TRUE", "run.name = x ", "depths=1,2", "data_path=a=b"]
    )
    assert (recipe.rounds, recipe.lr_score, recipe.masked_top) == (7, 0.01, True)
    assert (recipe.name, recipe.depths, recipe.data_path) == ("x", "1,2", "a=b")


def test_whole_numbers_become_numbers_and_depths_become_text() -> None:
    assert Recipe(lr_score=1).lr_score == 1.0
    assert isinstance(Recipe(lr_score=1).lr_score, float)
    assert Recipe(depths=3).depths == "3"  # type: ignore[arg-type]
    assert Recipe(depths=[1, 2, 2]).depths == "1,2,2"  # type: ignore[arg-type]


def test_a_recipe_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().rounds = 3  # type: ignore[misc]
    assert Recipe().replace(rounds=3).rounds == 3


def test_every_knob_is_documented() -> None:
    assert all(f.metadata["doc"] and f.metadata["section"] for f in FIELDS)


# --- files


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_loads_with_every_preset(name: str) -> None:
    recipe = Recipe.load(name)
    assert (recipe.name, recipe.preset) == (name, "best")
    for preset in PRESETS:
        assert Recipe.load(name, preset=preset).preset == preset


def test_the_recipes_of_the_paper_are_shipped() -> None:
    assert {"demo", "cifar100", "cifar100-depths", "femnist", "femnist-depths"} <= set(shipped())
    assert {"mmhar", "sonichar", "radar"} <= set(shipped())


def values_of(field: Any) -> st.SearchStrategy[Any]:
    meta, default = field.metadata, field.default
    if meta["choices"]:
        return st.sampled_from(meta["choices"])
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, int):
        low = max(int(meta["low"] or 0), 2 if field.name == "batch" else 0)
        return st.integers(low, int(meta["high"] or 10**9))
    if isinstance(default, float):
        return st.floats(meta["low"], 1e9 if meta["high"] is None else meta["high"])
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=8)


@given(st.fixed_dictionaries({f.name: values_of(f) for f in FIELDS}))
@settings(deadline=None, max_examples=60)
def test_a_recipe_survives_toml(values: dict[str, Any]) -> None:
    recipe = Recipe(**values)
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_a_delete_character_survives_toml() -> None:
    recipe = Recipe(name="a\x7fb")
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def written(path: Path, text: str) -> Path:
    file = path / "my.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_sections_are_headings_only(tmp_path: Path) -> None:
    file = written(tmp_path, "seed = 3\n[anything]\nrounds = 2\n[split]\ndepths = [1, 2]\n")
    recipe = Recipe.load(file)
    assert (recipe.seed, recipe.rounds, recipe.depths) == (3, 2, "1,2")
    assert Recipe.load(str(file), ["rounds=4"], seed=5, method=None).replace() == recipe.replace(rounds=4, seed=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nrounds = 1\n[b]\nrounds = 2\n", "'rounds' is given twice"),
        ("rounds = 1\n[b]\nrounds = 2\n", "'rounds' is given twice"),
        ("rounds = 1\nrounds = 2\n", "not valid TOML"),
        ("rounds = \n", r"my\.toml: not valid TOML"),
        ("[a]\nround = 2\n", "did you mean 'rounds'"),
        ("[a]\nrounds = '2'\n", "must be a whole number"),
        ("[a.b]\nrounds = 2\n", "unknown key 'b'"),
    ],
)
def test_a_bad_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.load(written(tmp_path, text))


def test_a_file_or_name_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot read recipe .*nothing\.toml: No such file"):
        Recipe.load(tmp_path / "nothing.toml")
    with pytest.raises(RecipeError, match="unknown recipe 'demmo': did you mean 'demo'"):
        Recipe.load("demmo")
    assert issubclass(RecipeError, PmsflError)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match=r"my\.toml"):
        Recipe.load(tmp_path / "my.toml")


# --- what one method has instead


OWN = "lr_client = 0.3\n[methods.splitfed]\nlr_client = 0.2\nmomentum = 0.5\n"


def test_a_methods_own_keys_hold_for_it_alone(tmp_path: Path) -> None:
    file = written(tmp_path, OWN)
    found = {m: Recipe.load(file, method=m) for m in ("splitfed", "splitfed-pm", "pm-sfl")}
    assert {m: (r.lr_client, r.momentum) for m, r in found.items()} == {
        "splitfed": (0.2, 0.5),
        "splitfed-pm": (0.3, Recipe().momentum),
        "pm-sfl": (0.3, Recipe().momentum),
    }
    assert Recipe.load(file, ["method=splitfed"]) == found["splitfed"]
    assert Recipe.load(written(tmp_path, 'method = "splitfed"\n' + OWN)) == found["splitfed"]


def test_overrides_and_presets_go_before_a_methods_own_keys(tmp_path: Path) -> None:
    file = written(tmp_path, OWN)
    assert Recipe.load(file, ["lr_client=0.5"], method="splitfed").lr_client == 0.5
    assert Recipe.load(file, ["preset=paper"], method="splitfed").lr_client == PRESETS["paper"]["lr_client"]
    for preset in ("best", "private", "fedpm"):  # which say nothing of it: only the preset is to differ
        assert Recipe.load(file, [f"preset={preset}"], method="splitfed").lr_client == 0.2
    in_file = written(tmp_path, 'preset = "paper"\n' + OWN)  # it lies under the file's own keys
    assert Recipe.load(in_file, method="splitfed").lr_client == 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[methods.splitfd]\nepochs = 1\n", r"my\.toml, \[methods\.splitfd\]: .*did you mean 'splitfed'"),
        ("[methods.splitfed]\nlr_clint = 1.0\n", r"\[methods\.splitfed\]: .*did you mean 'lr_client'"),
        ("[methods.splitfed]\nlr_client = 'fast'\n", r"\[methods\.splitfed\]: lr_client = 'fast': must be a number"),
        ("[methods.splitfed]\n'a.lr_client' = 1.0\n[methods.splitfed.b]\nlr_client = 1.0\n", "is given twice"),
        ("[methods.splitfed]\nclients = 6\n", r"\[methods\.splitfed\]: clients = 6: .*everything else is for all"),
        ("[methods.splitfed]\npreset = 'paper'\n", "preset = 'paper': .*everything else is for all"),
        ("[methods]\nepochs = 1\n", r"methods = \{'epochs': 1\}: .*its own: \[methods\.splitfed\]"),
        ("methods = 1\n", r"methods = 1: .*its own: \[methods\.splitfed\]"),
        ("[[methods]]\nsplitfed = 1\n", r"its own: \[methods\.splitfed\]"),
        ("method = ['splitfed']\n", r"method = \['splitfed'\]: must be text"),
    ],
)
def test_a_bad_section_of_a_method_is_refused_whatever_is_trained(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.load(written(tmp_path, text))


@pytest.mark.parametrize("word", ["methods.splitfed.lr_client=0.9", "methods.lr_client=0.9"])
def test_an_override_is_never_one_methods_own(word: str) -> None:
    with pytest.raises(RecipeError, match=r"only a file has keys of one method; .* lr_client"):
        Recipe.load("demo", [word])
    with pytest.raises(RecipeError, match="only a file has keys of one method"):
        split_values(word)


def test_a_quoted_key_may_name_its_section(tmp_path: Path) -> None:
    assert Recipe.load(written(tmp_path, '"optimisers.lr_client" = 0.25\n')).lr_client == 0.25


def test_a_resolved_recipe_has_no_sections_of_methods(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="unknown key"):
        Recipe.from_toml(OWN)
    resolved = Recipe.load(written(tmp_path, OWN), method="splitfed")
    assert Recipe.from_toml(resolved.to_toml()) == resolved


def test_measured_rates_come_with_their_method() -> None:
    assert [Recipe.load("cifar100", method=m).lr_client for m in ("splitfed", "pm-sfl")] == [0.05, 0.1]
    assert [Recipe.load("radar", method=m).lr_client for m in ("standalone", "splitfed")] == [3e-5, 3e-4]


# --- presets


@pytest.mark.parametrize("preset", [p for p in PRESETS if p != "best"])
def test_a_preset_is_laid_over_a_recipe_and_overrides_over_both(preset: str) -> None:
    recipe = Recipe.load("cifar100", preset=preset)
    for key, value in (PRESETS[preset] | (PRIVATE_RESNET if preset == "private" else {})).items():
        assert getattr(recipe, key) == value
    assert recipe.participation == Recipe.load("cifar100").participation
    assert Recipe.load("demo", [f"preset={preset}", "lr_score=0.7"]).lr_score == 0.7
    assert Recipe.load("demo", [f"preset={preset}"], estimator="plain").estimator == "plain"


def test_a_preset_named_in_a_file_counts(tmp_path: Path) -> None:
    """A recipe that calls itself the paper's must be the paper's, but for the keys it sets itself."""
    recipe = Recipe.load(written(tmp_path, '[run]\npreset = "paper"\nlr_score = 0.5\n'))
    assert (recipe.preset, recipe.estimator, recipe.lr_score) == ("paper", "paper", 0.5)


def test_the_papers_preset_is_the_papers_text() -> None:
    recipe = Recipe.load("cifar100", preset="paper")
    assert (recipe.estimator, recipe.aggregate, recipe.lr_score) == ("paper", "sampled", 1e-3)
    assert (recipe.client_optimiser, recipe.server_optimiser, recipe.lr_server) == ("adam", "adam", 1e-3)
    assert (recipe.epochs, recipe.batch, recipe.participation, recipe.clients) == (5, 32, 0.1, 100)
    assert recipe.personal_ratio == 0.0  # off in the CIFAR-100 rows
    assert Recipe.load("femnist", preset="paper").personal_ratio == 0.5


def test_depths_and_budgets_may_be_lists_in_a_file() -> None:
    recipe = Recipe.from_toml('[split]\ndepths = [1, 2, 2]\n[clients]\nbudgets = ["watch", "64/20"]\n')
    assert (recipe.depths, recipe.budgets) == ("1,2,2", "watch,64/20")


def test_a_preset_on_the_command_line_replaces_the_files_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "paper"\nrounds = 7\n')
    assert Recipe.load(file).aggregate == "sampled"
    best = Recipe.load(file, ["preset=best"])
    assert (best.preset, best.aggregate, best.rounds) == ("best", Recipe().aggregate, 7)
    fedpm = Recipe.load(file, ["preset=fedpm"])
    assert (fedpm.aggregate, fedpm.server_optimiser) == ("beta", Recipe().server_optimiser)


def test_the_papers_preset_takes_the_papers_weights() -> None:
    assert Recipe.load("demo").frozen == "signed"
    assert Recipe.load("demo", ["preset=paper"]).frozen == "kaiming"
    assert Recipe.load("demo", ["preset=paper"]).personal_ratio == 0.5
    assert Recipe.load("cifar100", ["preset=paper"]).personal_ratio == 0.0


def test_the_authors_preset_keeps_an_owners_tests_with_the_owner() -> None:
    assert Recipe.load("demo", ["preset=authors"]).test_split == "matched"
    assert Recipe.load("cifar100", ["preset=authors"]).test_split == "independent"
