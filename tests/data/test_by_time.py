"""Recordings split by time: what is tested always came later than what was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.data import load_source
from pmsfl.data.by_time import split_by_time
from pmsfl.data.source import Source
from pmsfl.errors import PmsflError
from tests.data.helpers import load


def radar_file(path: Path, persons: int = 3, classes: int = 4, windows: int = 8, **fields: Any) -> Path:
    """Rows of every person, class and window, shuffled; a row's pixels are its number."""
    keys = np.array([(p, c, w) for p in range(persons) for c in range(classes) for w in range(windows)])
    keys = np.random.default_rng(3).permutation(keys)
    x = np.arange(len(keys), dtype=np.uint8)[:, None, None] * np.ones((1, 6, 5), np.uint8)
    base = {"x": x, "y": keys[:, 1], "person": keys[:, 0], "window": keys[:, 2].astype(np.uint8)}
    np.savez(path, **{key: value for key, value in {**base, **fields}.items() if value is not None})
    return path


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=14, unique=True), min_size=1, max_size=5),
    st.sampled_from([0.1, 0.25, 0.5]),
    st.integers(0, 3),
)
def test_every_test_window_is_later_than_every_training_window(
    recordings: list[list[int]], fraction: float, gap: int
) -> None:
    window = np.array([w for times in recordings for w in times])
    recording = np.repeat(np.arange(len(recordings)), [len(times) for times in recordings])
    rows = len(window)
    x = np.arange(rows, dtype=np.float32)[:, None, None]
    source = Source("r", x, np.zeros(rows, np.int64), 1, owner=recording, window=window, recording=recording)
    split = split_by_time(source, fraction, gap)
    assert split.is_test is not None
    assert split.window is not None
    assert split.recording is not None
    for r, times in enumerate(recordings):
        mine = split.recording == r
        train, test = split.window[mine & ~split.is_test], split.window[mine & split.is_test]
        assert len(train) >= 1
        if len(test):
            assert test.min() - train.max() > gap
            assert len(test) == max(1, round(fraction * len(times)))
        else:
            assert len(train) == len(times), "a recording without a test loses nothing"
    kept = split.x[:, 0, 0].astype(int)
    assert np.array_equal(split.window, window[kept])
    assert np.array_equal(split.recording, recording[kept])


@pytest.mark.parametrize("partition", ["owner", "iid"])
def test_no_partition_trains_on_what_is_later_than_a_test(tmp_path: Path, partition: str) -> None:
    path = radar_file(tmp_path / "radar.npz")
    federation = load("radar", path, partition=partition, clients=3, test_fraction=0.25, test_gap=1)
    raw = np.load(path)
    number = federation.x[:, 0, 0, 0].astype(int)  # the row in the file
    train, test = number[np.concatenate(federation.train)], number[np.concatenate(federation.test)]
    for person in range(3):
        for label in range(4):
            cell = (raw["person"] == person) & (raw["y"] == label)
            trained, tested = raw["window"][train[cell[train]]], raw["window"][test[cell[test]]]
            assert sorted(trained) == [0, 1, 2, 3, 4]
            if partition == "owner":
                assert sorted(tested) == [6, 7]
            assert set(tested) <= {6, 7}


def test_a_person_is_a_client_and_the_notes_tell_of_the_gap(tmp_path: Path) -> None:
    federation = load("radar", radar_file(tmp_path / "radar.npz"), partition="owner", clients=0, test_gap=2)
    assert federation.owners == ("0", "1", "2")
    assert any("split by time" in note and "12 recordings" in note for note in federation.notes)
    assert any("test_gap = 2: 24 windows" in note for note in federation.notes)


def test_short_recordings_are_for_training_only(tmp_path: Path) -> None:
    federation = load("radar", radar_file(tmp_path / "r.npz", windows=2), partition="owner", clients=0, test_gap=1)
    assert sum(map(len, federation.test)) == 0
    assert any("12 recordings are too short" in note for note in federation.notes)


def test_recordings_may_be_numbered(tmp_path: Path) -> None:
    twice = np.tile(np.arange(2), 24)
    windows = np.repeat(np.arange(24), 2)
    path = tmp_path / "r.npz"
    x = np.zeros((48, 4, 4), np.uint8)
    np.savez(path, x=x, y=np.arange(48) % 1, person=np.zeros(48, int), window=windows, recording=twice)
    source = load_source("radar", str(path))
    assert source.recording is not None
    assert len(np.unique(source.recording)) == 2


def test_windows_that_occur_twice_are_refused(tmp_path: Path) -> None:
    path = radar_file(tmp_path / "r.npz", window=np.zeros(96, np.uint8))
    with pytest.raises(PmsflError, match=r"window 0 occurs twice .* field 'recording'"):
        load("radar", path, partition="owner", clients=0)


@pytest.mark.parametrize("field", ["person", "window"])
def test_a_file_without_persons_or_time_is_refused(tmp_path: Path, field: str) -> None:
    without: dict[str, Any] = {field: None}
    path = radar_file(tmp_path / "r.npz", **without)
    with pytest.raises(PmsflError, match=f"no field '{field}'"):
        load("radar", path, partition="owner", clients=0)


def test_a_missing_file_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match=r"is not there.*person and window"):
        load("radar", tmp_path / "radar.npz", partition="owner")


def test_a_gap_is_refused_where_there_are_no_recordings() -> None:
    with pytest.raises(PmsflError, match="test_gap = 1 is for windows of recordings"):
        load("digits", None, partition="owner", clients=3, test_gap=1)
    with pytest.raises(PmsflError, match="test_gap = -1"):
        load("digits", None, partition="owner", clients=3, test_gap=-1)
