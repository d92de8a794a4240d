"""A folder of recordings, and the chain over all of it.

    ROOT/sensor.toml                       what the sensor was set to (optional)
    ROOT/SUBJECT/ACTIVITY/ROOM_TAKE.npy    a radar take (see radar.py), or .wav, an ultrasound take (see ultrasound.py)

TAKE is a whole number. A take may be longer than a segment; all its segments stay on one side of the split.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pmsfl.data.radar import RadarSetting, radar_maps, read_cube
from pmsfl.data.sensors import SENSORS, SensorSet
from pmsfl.data.ultrasound import UltrasoundSetting, read_audio, ultrasound_maps
from pmsfl.errors import PmsflError
from pmsfl.recipe_files import nearest

Maps = list[npt.NDArray[np.uint8]]
Setting = RadarSetting | UltrasoundSetting
SUFFIXES = {"mmhar": ".npy", "sonichar": ".wav"}
SETTING_FILE = "sensor.toml"


@dataclass(frozen=True)
class TakeFile:
    """One recording and what its place says about it."""

    path: Path
    subject: str
    activity: str
    room: str
    take: int


def check_sensor(sensor: str) -> None:
    """PmsflError unless there is a chain for it."""
    if sensor not in SENSORS:
        raise PmsflError(f"sensor {sensor!r}: {nearest(sensor, SENSORS)} (there is a chain for {', '.join(SENSORS)})")


def find_takes(root: Path, sensor: str) -> list[TakeFile]:
    """Every take below `root`, in a fixed order."""
    check_sensor(sensor)
    suffix = SUFFIXES[sensor]
    layout = f"{root}/SUBJECT/ACTIVITY/ROOM_TAKE{suffix}"
    found = []
    for path in sorted(root.glob(f"*/*/*{suffix}")):
        room, _, number = path.stem.rpartition("_")
        if not room or not (number.isascii() and number.isdigit()):
            raise PmsflError(f"{path}: name takes ROOM_TAKE{suffix} with a whole number, such as kitchen_3{suffix}")
        found.append(TakeFile(path, path.parent.parent.name, path.parent.name, room, int(number)))
    if not found:
        raise PmsflError(f"{root} has no takes for {sensor}; they are looked for as {layout}")
    return found


def read_setting(root: Path, sensor: str) -> tuple[Setting, str]:
    """(what the sensor was set to, how the takes were simulated or nothing) from sensor.toml, or the defaults."""
    kind: type[Setting] = RadarSetting if sensor == "mmhar" else UltrasoundSetting
    path = root / SETTING_FILE
    if not path.is_file():
        return kind(), ""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as e:
        raise PmsflError(f"{path}: not valid TOML: {e}") from None
    simulated = values.pop("simulated", "")
    known = {f.name: type(f.default) for f in fields(kind)}
    for key, value in values.items():
        if key not in known:
            raise PmsflError(f"{path}: unknown key {key!r}: {nearest(key, known)}")
        whole = known[key] is int and not isinstance(value, int)
        if isinstance(value, bool) or not isinstance(value, int | float) or whole or not 0 < value < float("inf"):
            raise PmsflError(f"{path}: {key} = {value!r} must be a positive {'whole ' if whole else ''}number")
    return kind(**values), str(simulated)


def write_setting(root: Path, setting: Setting, simulated: str) -> None:
    """Write sensor.toml for takes that were made up."""
    root.mkdir(parents=True, exist_ok=True)
    lines = [f'simulated = "{simulated}"', *(f"{f.name} = {getattr(setting, f.name)}" for f in fields(setting))]
    (root / SETTING_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def maps_of(path: Path, setting: Setting) -> Maps:
    """The chain over one take's file: a map per 3-second segment."""
    if isinstance(setting, RadarSetting):
        return radar_maps(read_cube(path), setting, str(path))
    audio, rate = read_audio(path)
    return ultrasound_maps(audio, rate, setting, str(path))


def prepare(root: Path, sensor: str, tick: Callable[[int, int], None] | None = None) -> SensorSet:
    """The chain over every take below `root`. tick(done, all) is called after each."""
    takes = find_takes(root, sensor)
    setting, simulated = read_setting(root, sensor)
    names = tuple(sorted({t.activity for t in takes}))
    maps = []
    for done, take in enumerate(takes, 1):
        maps.append(maps_of(take.path, setting))
        if tick:
            tick(done, len(takes))
    return collect(sensor, takes, maps, names, simulated)


def collect(
    sensor: str, takes: Sequence[TakeFile], maps: Sequence[Maps], names: tuple[str, ...], simulated: str
) -> SensorSet:
    """The maps of each take as one set."""
    counts = [len(m) for m in maps]

    def each(values: list[Any]) -> npt.NDArray[Any]:
        return np.repeat(np.array(values), counts)

    return SensorSet(
        sensor=sensor,
        x=np.stack([piece for m in maps for piece in m]),
        y=each([names.index(t.activity) for t in takes]).astype(np.int64),
        owner=each([t.subject for t in takes]),
        room=each([t.room for t in takes]),
        take=each([t.take for t in takes]).astype(np.int64),
        class_names=names,
        simulated=simulated,
    )
