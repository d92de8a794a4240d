"""What a site trains on, and what it tells of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pmsfl.deploy.data import load_site_data
from pmsfl.deploy.roster import EnrolmentError, Facts, Roster
from pmsfl.engine.settings import federation_of
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe

from .helpers import recipe


def saved(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_labels_of_a_file_that_lacks_a_class_are_not_renumbered(tmp_path: Path) -> None:
    x = np.zeros((4, 8, 8), np.uint8)
    file = saved(tmp_path / "x.npz", x=x, y=np.array([0, 5, 5, 2]), is_test=np.array([0, 0, 1, 0]))
    data = load_site_data(file, recipe())
    assert data.y.tolist() == [0, 5, 5, 2]
    assert data.train.tolist() == [0, 1, 3]
    assert data.test.tolist() == [2]
    facts = data.facts(3)
    assert (facts.train, facts.test, facts.shape, facts.classes, facts.depth) == (3, 1, (1, 8, 8), 6, 3)


def test_without_marked_tests_some_rows_are_held_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = saved(tmp_path / "x.npz", x=rng.random((20, 1, 8, 8)), y=rng.integers(0, 3, 20))
    data = load_site_data(file, recipe(test_fraction=0.25))
    assert len(data.test) == 5
    assert sorted([*data.train, *data.test]) == list(range(20))


def test_labels_that_sites_cannot_agree_on_are_refused(tmp_path: Path) -> None:
    x = np.zeros((2, 8, 8), np.uint8)
    with pytest.raises(PmsflError, match="labels are text"):
        load_site_data(saved(tmp_path / "t.npz", x=x, y=np.array(["cat", "dog"])), recipe())
    with pytest.raises(PmsflError, match="negative"):
        load_site_data(saved(tmp_path / "n.npz", x=x, y=np.array([-1, 0])), recipe())


def test_one_owner_has_its_rows_of_the_simulation() -> None:
    wanted = Recipe.load("demo")
    federation = federation_of(wanted)
    data = load_site_data(f"owner:{federation.owners[3]}", wanted)
    assert np.array_equal(data.x[data.train], federation.x[federation.train[3]])
    assert np.array_equal(data.y[data.test], federation.y[federation.test[3]])
    with pytest.raises(PmsflError, match="owner 'nobody' is not in"):
        load_site_data("owner:nobody", wanted)


def facts(**changes: object) -> Facts:
    base = {"train": 4, "test": 1, "shape": [1, 8, 8], "classes": 3, "mean": [0.5], "squares": [0.1]}
    return Facts.read(base | changes)


def test_sites_that_do_not_fit_a_settled_run_are_refused() -> None:
    roster = Roster(("a", "b", "c"))
    roster.enrol("a", facts(depth=1))
    roster.enrol("b", facts(classes=4))
    roster.settle(recipe())
    assert roster.depths == (1, 2, 2)
    assert roster.classes == 4
    for changes, match in (
        ({"shape": [1, 9, 9]}, "shape"),
        ({"classes": 5}, "labels up to 4"),
        ({"depth": 3}, "cut after block 2"),
    ):
        with pytest.raises(EnrolmentError, match=match):
            roster.enrol("c", facts(**changes))
    roster.enrol("c", facts(depth=2, train=9))
    assert roster.sizes() == (4, 4, 9)
    assert roster.sizes(["a", "c"]) == (4, 0, 9)
    assert Roster.of(roster.as_dict()) == roster
    with pytest.raises(EnrolmentError, match="not one of this run"):
        roster.enrol("mallory", facts())


def test_sites_of_different_shapes_cannot_begin() -> None:
    roster = Roster(("a", "b"))
    roster.enrol("a", facts())
    roster.enrol("b", facts(shape=[1, 4, 4]))
    with pytest.raises(EnrolmentError, match="different shapes"):
        roster.settle(recipe())
