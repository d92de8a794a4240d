"""LEAF json: pixels, owners and the file's split are kept; damaged files are explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmsfl.data.leaf import load_leaf
from pmsfl.errors import PmsflError

from .helpers import leaf_file, load, write_leaf


def test_rows_owners_and_split_are_read(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"ann": [0, 1, 2], "bob": [1]}, {"ann": [2], "bob": []})
    source = load_leaf(tmp_path)
    assert source.x.shape == (5, 1, 28, 28)
    assert source.x.dtype == np.uint8
    assert source.x[:, 0, 5, 5].tolist() == [0, 3, 5, 3, 5]
    assert source.y.tolist() == [0, 1, 2, 1, 2]
    assert source.owner is not None
    assert source.owner.tolist() == ["ann", "ann", "ann", "bob", "ann"]
    assert source.is_test is not None
    assert source.is_test.tolist() == [False] * 4 + [True]
    assert source.classes == 3


def test_white_paper_is_255_and_the_order_of_pixels_is_kept(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"ann": [0]})
    content = leaf_file({"ann": [0]})
    pixels = np.ones(784)
    pixels[28 * 3 + 4] = 0.0
    content["user_data"]["ann"]["x"] = [pixels.tolist()]
    (tmp_path / "train" / "all_data.json").write_text(json.dumps(content))
    image = load_leaf(tmp_path).x[0, 0]
    assert image[3, 4] == 0
    assert (image == 255).sum() == 783


def test_without_a_test_folder_there_is_no_split(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"ann": [0, 1], "bob": [1]})
    assert load_leaf(tmp_path).is_test is None


def test_several_files_and_the_data_folder_above_are_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_leaf(tmp_path / "data", {"ann": [0]})
    (tmp_path / "data" / "train" / "more.json").write_text(json.dumps(leaf_file({"bob": [1, 1]})))
    source = load_leaf(tmp_path)
    assert source.owner is not None
    assert source.owner.tolist() == ["ann", "bob", "bob"]


def test_by_owner_the_files_split_is_used_and_owners_without_training_are_left_out(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"ann": [0, 1, 2], "bob": [1, 2]}, {"ann": [2, 0], "eve": [1]})
    fed = load("leaf", tmp_path, partition="owner", clients=None)
    assert fed.owners == ("ann", "bob")
    assert fed.sizes == (3, 2)
    assert fed.y[fed.test[0]].tolist() == [2, 0]
    assert len(fed.test[1]) == 0
    assert fed.global_test.tolist() == fed.test[0].tolist()
    assert not fed.global_test_is_official
    assert "1 of 3 owners are left out." in fed.notes
    assert "1 of 2 clients have no test data: bob." in fed.notes


def test_a_cap_by_owner_counts_train_and_test_together(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"ann": [0, 1] * 20, "bob": [1]}, {"ann": [0, 1] * 5, "bob": [1]})
    fed = load("leaf", tmp_path, partition="owner", clients=None, max_samples=10)
    assert (fed.sizes[0], len(fed.test[0])) == (8, 2)
    assert (fed.sizes[1], len(fed.test[1])) == (1, 1)
    tight = load("leaf", tmp_path, partition="owner", clients=None, max_samples=2)
    assert (tight.sizes[0], len(tight.test[0])) == (1, 1)


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.pop(key)


def put(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["user_data"]["ann"].__setitem__(key, value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop("users"), "no list 'users'"),
        (drop("num_samples"), "no list 'num_samples'"),
        (drop("user_data"), "no dict 'user_data'"),
        (lambda content: content["num_samples"].append(1), "1 users but 2 num_samples"),
        (lambda content: content["num_samples"].__setitem__(0, 5), "num_samples 5"),
        (lambda content: content["user_data"].clear(), "user 'ann' has no user_data"),
        (put("x", None), "user 'ann' has no user_data with lists"),
        (put("y", [0]), "2 x, 1 y"),
        (put("y", [0, -1]), "label -1"),
        (put("y", [0, 0.5]), "label 0.5"),
        (put("y", [0, True]), "label True"),
        (put("y", [0, 10**9]), "label 1000000000"),
        (put("y", [0, float("nan")]), "label nan"),
        (put("x", [[0.0] * 784, [0.0] * 783]), "different lengths"),
        (put("x", [[0.0] * 783] * 2), "expected rows of 784 pixels"),
        (put("x", [["a"] * 784] * 2), "no numbers"),
        (put("x", [[2.0] * 784] * 2), "0..1"),
        (put("x", [[float("nan")] * 784] * 2), "0..1"),
    ],
)
def test_damaged_content_is_explained_with_its_file(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    write_leaf(tmp_path, {"ann": [0, 1]})
    content = leaf_file({"ann": [0, 1]})
    damage(content)
    (tmp_path / "train" / "all_data.json").write_text(json.dumps(content))
    with pytest.raises(PmsflError, match=message) as caught:
        load_leaf(tmp_path)
    assert "all_data.json" in str(caught.value)


@pytest.mark.parametrize("content", ['{"users": [', "[1, 2]", "\x00", ""])
def test_files_that_are_no_leaf_json_are_named(tmp_path: Path, content: str) -> None:
    write_leaf(tmp_path, {"ann": [0]})
    (tmp_path / "train" / "all_data.json").write_text(content)
    with pytest.raises(PmsflError, match=r"all_data\.json"):
        load_leaf(tmp_path)


def test_folders_without_training_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match="no folder 'train'"):
        load_leaf(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(PmsflError, match=r"no \.json file"):
        load_leaf(tmp_path)
    (tmp_path / "train" / "a.json").write_text(json.dumps(leaf_file({"ann": []})))
    with pytest.raises(PmsflError, match="no samples"):
        load_leaf(tmp_path)
