"""A prepared sensor set: maps, labels, who, where and which take, in one .npz that numpy alone can read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pmsfl.data.arrays import load_npz
from pmsfl.data.source import Array, Bools, Ints, Source
from pmsfl.errors import PmsflError

SENSORS = ("mmhar", "sonichar")
TEST_SHARE = 0.25  # of the takes of an activity: 3 of 12


@dataclass(frozen=True, eq=False)
class SensorSet:
    """Segments of takes, one row each.

    x: uint8 [n, frames, bins]; y: [n] numbers of class_names; owner, room: [n] strings; take: [n] whole numbers.
    simulated: how the signals were made up, empty for recordings.
    """

    sensor: str
    x: Array
    y: Ints
    owner: Array
    room: Array
    take: Ints
    class_names: tuple[str, ...]
    simulated: str = ""

    def is_test(self) -> Bools:
        """[n] bool: of each subject's takes of an activity the last quarter (take number, then room)."""
        marks = np.zeros(len(self.y), np.bool_)
        for rows in groups(self.owner, self.y):
            takes = sorted({(int(self.take[i]), str(self.room[i])) for i in rows})
            if len(takes) < 2:
                continue
            held_out = set(takes[-max(1, round(TEST_SHARE * len(takes))) :])
            marks[rows] = [(int(self.take[i]), str(self.room[i])) in held_out for i in rows]
        return marks

    def save(self, path: Path) -> None:
        """Write the set; a file that was there before stays whole until the new one is."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.part")
        fields: dict[str, Any] = {
            "x": self.x,
            "y": self.y,
            "owner": self.owner,
            "room": self.room,
            "take": self.take,
            "is_test": self.is_test(),
            "class_names": np.array(self.class_names),
            "sensor": np.array(self.sensor),
            "simulated": np.array(self.simulated),
        }
        with beside.open("wb") as file:
            np.savez_compressed(file, **fields)
        beside.replace(path)


def groups(*keys: Array) -> list[Ints]:
    """Rows that agree in all of these [n] arrays, as sorted index arrays."""
    numbers = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        found, codes = np.unique(key, return_inverse=True)
        numbers = np.unique(numbers * len(found) + codes, return_inverse=True)[1]
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


def load_mmhar(path: str | Path) -> Source:
    """The rows of a prepared mmHAR set: x uint8 [n, 1, frames, bins], owner = subject, its own test takes marked."""
    return load_sensors(path, "mmhar")


def load_sonichar(path: str | Path) -> Source:
    """The rows of a prepared sonicHAR set, likewise."""
    return load_sensors(path, "sonichar")


def load_sensors(path: str | Path, sensor: str) -> Source:
    """The rows of a prepared set of this sensor. Its name and a note say so where it is simulated."""
    path = Path(path)
    if not path.is_file():
        raise PmsflError(f"{path} is not there. {how_to_get(sensor, path)}")
    source = load_npz(path)
    with np.load(path, allow_pickle=False) as saved:
        extra = {key: saved[key] for key in saved.files if key not in ("x", "y")}
    found = str(extra.get("sensor", ""))
    missing = [key for key in ("owner", "room", "take", "is_test", "class_names") if key not in extra]
    if found != sensor or missing:
        what = f"misses {', '.join(missing)}" if found == sensor else f"holds sensor {found!r}"
        raise PmsflError(
            f"{path} {what}, but data = {sensor!r} wants a set as `pmsfl prepare {sensor}` writes it; for arrays of "
            "your own, use data = 'npz'."
        )
    _check_takes(path, source, extra)
    simulated = str(extra.get("simulated", ""))
    notes = (f"simulated: {simulated}. These are no recordings of people.",) if simulated else ()
    names = tuple(str(extra["class_names"][int(label)]) for label in source.class_names or ())
    name = f"{sensor} (simulated)" if simulated else sensor
    return replace(source, name=name, class_names=names, notes=notes + source.notes)


def how_to_get(sensor: str, path: Path) -> str:
    """The commands that would write this file."""
    simulate = f"pmsfl simulate {sensor} {path.parent}"
    rename = "" if path.name == f"{sensor}.npz" else f" (it writes {path.parent / (sensor + '.npz')})"
    return (
        f"Simulate it with `{simulate}`{rename}, or make it from your own recordings with `pmsfl prepare {sensor} "
        f"RAWDIR {path}` (docs/sensors.md); or set data_path."
    )


def _check_takes(path: Path, source: Source, extra: dict[str, Array]) -> None:
    """Refuse a set in which segments of one take are on both sides: neighbours in time would be tested on."""
    assert source.owner is not None
    assert source.is_test is not None
    for rows in groups(source.owner, source.y, extra["room"], extra["take"]):
        if len(np.unique(source.is_test[rows])) > 1:
            i = rows[0]
            raise PmsflError(
                f"{path}: take {extra['room'][i]}_{extra['take'][i]} of {source.owner[i]} (class {source.y[i]}) has "
                "training and test segments; mark all segments of a take alike in is_test."
            )
