"""A user's .npz: layouts are recognised, labels renumbered only when needed, bad files explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmsfl.data.arrays import load_npz
from pmsfl.errors import PmsflError

from .helpers import write_npz

FLOATS = np.linspace(0, 1, 40 * 6 * 5)


@pytest.mark.parametrize(
    ("x", "shape", "kind"),
    [
        (np.zeros((40, 8, 9), np.uint8), (40, 1, 8, 9), np.uint8),
        (np.zeros((40, 3, 8, 8), np.uint8), (40, 3, 8, 8), np.uint8),
        (np.zeros((40, 8, 9, 3), np.uint8), (40, 3, 8, 9), np.uint8),
        (np.zeros((40, 8, 9, 1), np.float32), (40, 1, 8, 9), np.float32),
        (np.zeros((40, 2, 3, 3), np.float32), (40, 2, 3, 3), np.float32),
        (FLOATS.reshape(40, 6, 5), (40, 6, 5), np.float32),
    ],
)
def test_layouts_are_recognised(tmp_path: Path, x: Any, shape: tuple[int, ...], kind: Any) -> None:
    source = load_npz(write_npz(tmp_path / "mine.npz", x=x))
    assert source.x.shape == shape
    assert source.x.dtype == kind
    assert source.name == "mine"


def test_channels_last_keeps_every_pixel_in_place_and_says_so(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 5, 6, 3), dtype=np.uint8)
    source = load_npz(write_npz(tmp_path / "a.npz", x=x))
    assert (source.x[7, 2, 4, 1], source.x[0, 0, 1, 5]) == (x[7, 4, 1, 2], x[0, 1, 5, 0])
    assert "channels first" in source.notes[0]


def test_labels_from_zero_are_kept(tmp_path: Path) -> None:
    source = load_npz(write_npz(tmp_path / "a.npz", y=(np.arange(40) % 4).astype(np.float32)))
    assert source.y.tolist() == (np.arange(40) % 4).tolist()
    assert source.y.dtype == np.int64
    assert source.notes == ()


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (np.tile([7, 3, -1, 3], 10), ("-1", "3", "7")),
        (np.tile(["walk", "sit", "fall", "sit"], 10), ("fall", "sit", "walk")),
    ],
)
def test_other_labels_are_renumbered_in_order_with_a_note(tmp_path: Path, y: Any, names: tuple[str, ...]) -> None:
    source = load_npz(write_npz(tmp_path / "a.npz", y=y))
    assert source.y[:4].tolist() == [2, 1, 0, 1]
    assert source.class_names == names
    assert "renumbered 0..2" in source.notes[0]


@pytest.mark.parametrize("key", ["owner", "writer", "person"])
def test_the_owner_may_have_three_names(tmp_path: Path, key: str) -> None:
    source = load_npz(write_npz(tmp_path / "a.npz", **{key: np.arange(40) // 10}))
    assert source.owner is not None
    assert source.owner.tolist() == (np.arange(40) // 10).tolist()


def test_optional_fields_are_read(tmp_path: Path) -> None:
    fields = {"is_test": np.arange(40) >= 30, "window": np.arange(40, dtype=np.uint8)}
    source = load_npz(write_npz(tmp_path / "a.npz", **fields))
    assert source.is_test is not None
    assert source.is_test.sum() == 10
    assert source.window is not None
    # unsigned numbers would wrap when the split negates them
    assert source.window.dtype == np.int64
    plain = load_npz(write_npz(tmp_path / "b.npz"))
    assert plain.owner is None
    assert plain.is_test is None
    assert plain.window is None


NAN = FLOATS.reshape(40, 6, 5).copy()
NAN[3, 2, 1] = np.nan


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": None}, "no field 'x'"),
        ({"y": None}, "no field 'y'"),
        ({"x": NAN}, "NaN"),
        ({"x": np.full((40, 2, 2), 1e300)}, "infinite"),
        ({"x": np.zeros((40, 64))}, r"x has shape \(40, 64\)"),
        ({"x": np.zeros((40, 2, 2), np.int64)}, "type int64"),
        ({"x": np.zeros((0, 2, 2)), "y": np.zeros(0, int)}, "at least one row"),
        ({"y": np.arange(39)}, r"y has shape \(39,\), but x has 40 rows"),
        ({"y": np.zeros((40, 2), int)}, "flat array"),
        ({"y": np.full(40, np.nan)}, "NaN or fractions"),
        ({"y": np.full(40, 0.5)}, "NaN or fractions"),
        ({"owner": np.arange(39)}, "owner has shape"),
        ({"owner": np.zeros(40)}, "owner has type float64"),
        ({"is_test": np.zeros(3, bool)}, "is_test has shape"),
        ({"is_test": np.full(40, 2)}, "0 and 1"),
        ({"window": np.zeros(40)}, "window has type"),
        ({"y": np.array([{}] * 40, dtype=object)}, "without object arrays"),
    ],
)
def test_unusable_fields_are_explained(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    path = write_npz(tmp_path / "a.npz", **fields)
    with pytest.raises(PmsflError, match=message):
        load_npz(path)


def test_files_that_are_no_npz_are_explained(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    empty = tmp_path / "empty.npz"
    empty.touch()
    cut = write_npz(tmp_path / "cut.npz")
    cut.write_bytes(cut.read_bytes()[:300])
    for path in (text, empty, cut):
        with pytest.raises(PmsflError, match=rf"{path.name} cannot be read"):
            load_npz(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(PmsflError, match="single array"):
        load_npz(tmp_path / "one.npy")
    with pytest.raises(PmsflError, match="not a file"):
        load_npz(tmp_path)
