"""Recordings cut into windows: the test is what came last, never a window between two training ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pmsfl.data.arrays import load_npz
from pmsfl.data.sensors import groups
from pmsfl.data.source import Bools, Source
from pmsfl.errors import PmsflError


def load_radar(path: str | Path) -> Source:
    """Maps of radar recordings with x [n, time, range], y, person and window (time order within a recording).

    A recording is one person doing one activity, unless the file numbers them in a field `recording`.
    """
    path = Path(path)
    if not path.is_file():
        raise PmsflError(
            f"{path} is not there. data = 'radar' reads an .npz with x uint8 [n, time, range], y, person and window "
            "(time order within a recording); save yours there with numpy.savez, or set data_path."
        )
    source = load_npz(path)
    if source.owner is None or source.window is None:
        missing = "person" if source.owner is None else "window"
        raise PmsflError(
            f"{path} has no field {missing!r}; data = 'radar' is split by time within each person's recordings and "
            "needs x, y, person and window. For rows without time order use data = 'npz'."
        )
    with np.load(path, allow_pickle=False) as saved:
        named = saved["recording"] if "recording" in saved.files else np.zeros(len(source.y), np.int64)
    if named.shape != source.y.shape:
        raise PmsflError(f"recording has shape {named.shape}, but x has {len(source.y)} rows; save one per row.")
    recording = np.empty(len(source.y), np.int64)
    for number, rows in enumerate(groups(source.owner, source.y, named)):
        recording[rows] = number
    return replace(source, recording=recording)


def split_by_time(source: Source, test_fraction: float, gap: int) -> Source:
    """The source with its test rows marked, the last `test_fraction` of every recording; rows in the gap are gone.

    In a recording every test window is later than every training window by more than `gap`. A recording too short for
    a training window, the gap and a test window is for training only.
    """
    assert source.recording is not None
    assert source.window is not None
    is_test, dropped = np.zeros(len(source.y), np.bool_), np.zeros(len(source.y), np.bool_)
    short = 0
    recordings = groups(source.recording)
    for rows in recordings:
        times = source.window[rows]
        _check_times(source, rows[0], times.tolist())
        tests = max(1, round(test_fraction * len(rows)))
        first = np.sort(times)[-tests]
        if (times < first - gap).any():
            is_test[rows] = times >= first
            dropped[rows] = (times < first) & (times >= first - gap)
        else:
            short += 1
    return _marked(source, is_test, dropped, short, len(recordings), gap)


def _check_times(source: Source, row: int, times: list[int]) -> None:
    if len(set(times)) < len(times):
        twice = next(t for t in times if times.count(t) > 1)
        raise PmsflError(
            f"window {twice} occurs twice in the recording of row {row} (class {source.y[row]}); number the windows of "
            "a recording in time, and several recordings of one person and class in a field 'recording'."
        )


def _marked(source: Source, is_test: Bools, dropped: Bools, short: int, recordings: int, gap: int) -> Source:
    keep = np.flatnonzero(~dropped)
    notes = [
        f"split by time: the last windows of each of {recordings} recordings are tests, the earlier ones training."
    ]
    if gap:
        notes.append(f"test_gap = {gap}: {int(dropped.sum())} windows between training and test are left out.")
    if short:
        notes.append(f"{short} recordings are too short for a test and are used for training only.")
    return replace(
        source,
        x=source.x[keep],
        y=source.y[keep],
        owner=None if source.owner is None else source.owner[keep],
        is_test=is_test[keep],
        window=None if source.window is None else source.window[keep],
        recording=None if source.recording is None else source.recording[keep],
        notes=source.notes + tuple(notes),
    )
