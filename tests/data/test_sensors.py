"""Prepared sets: by take, labelled where simulated, made from folders of recordings or from the simulator."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pmsfl.data import load_source
from pmsfl.data.motion.activities import ACTIVITY_NAMES
from pmsfl.data.motion.people import Take
from pmsfl.data.radar import RadarSetting
from pmsfl.data.recordings import find_takes, prepare, read_setting
from pmsfl.data.sensors import SensorSet, groups
from pmsfl.data.simulate import Plan, simulate, simulate_take
from pmsfl.data.ultrasound import UltrasoundSetting
from pmsfl.errors import PmsflError
from tests.data.helpers import load

SENSORS = ("mmhar", "sonichar")
SMALL = Plan("mmhar", subjects=2, activities=2, repetitions=4)


def made_up(sensor: str = "mmhar", simulated: str = "seed 0", subjects: int = 3, classes: int = 2) -> SensorSet:
    """Twelve segments of every subject and class in three rooms, as in the paper; the pixels are random."""
    keys = [(s, c, r) for s in range(subjects) for c in range(classes) for r in range(12)]
    s, c, r = (np.array(k) for k in zip(*keys, strict=True))
    x = np.random.default_rng(0).integers(0, 256, (len(keys), 8, 6), dtype=np.uint8)
    room, owner = np.char.add("room-", (r % 3).astype(str)), np.char.add("s", s.astype(str))
    return SensorSet(sensor, x, c, owner, room, r // 3 + 1, ACTIVITY_NAMES[:classes], simulated)


@pytest.mark.parametrize("sensor", SENSORS)
def test_nine_takes_train_and_three_test_per_class_and_subject(tmp_path: Path, sensor: str) -> None:
    made = made_up(sensor)
    made.save(tmp_path / "set.npz")
    federation = load(sensor, tmp_path / "set.npz", partition="owner", clients=0)
    assert federation.owners == ("s0", "s1", "s2")
    for train, test in zip(federation.train, federation.test, strict=True):
        assert np.bincount(federation.y[train]).tolist() == [9, 9]
        assert np.bincount(federation.y[test]).tolist() == [3, 3]
        assert set(made.take[test]) == {4}
        assert set(made.room[test]) == {"room-0", "room-1", "room-2"}
    assert federation.x.shape == (72, 1, 8, 6)
    assert federation.class_names == ("walk", "jog")


def test_the_split_is_fixed_whatever_the_seed(tmp_path: Path) -> None:
    made_up().save(tmp_path / "set.npz")
    tests = [load("mmhar", tmp_path / "set.npz", partition="owner", clients=0, seed=s).test for s in (0, 1)]
    assert all(np.array_equal(a, b) for a, b in zip(*tests, strict=True))


def test_segments_of_a_take_stay_together() -> None:
    made = made_up(subjects=1, classes=1)
    three = np.repeat(np.arange(12), 3)
    long = replace(made, x=made.x[three], y=made.y[three], owner=made.owner[three], room=made.room[three])
    long = replace(long, take=made.take[three])
    assert long.is_test().sum() == 9
    for rows in groups(long.room, long.take):
        assert len(rows) == 3
        assert len(set(long.is_test()[rows])) == 1


def test_a_single_take_is_for_training() -> None:
    made = made_up(subjects=1, classes=1)
    first = replace(made, x=made.x[:1], y=made.y[:1], owner=made.owner[:1], room=made.room[:1], take=made.take[:1])
    assert not first.is_test().any()


def test_a_set_that_tests_on_a_take_it_trains_on_is_refused(tmp_path: Path) -> None:
    made_up().save(tmp_path / "set.npz")
    fields = dict(np.load(tmp_path / "set.npz"))
    fields["take"] = np.ones_like(fields["take"])
    np.savez(tmp_path / "set.npz", **fields)
    with pytest.raises(PmsflError, match=r"take room-0_1 of s0 .* training and test segments"):
        load("mmhar", tmp_path / "set.npz", partition="owner")


def test_what_is_simulated_says_so_in_its_name_and_notes(tmp_path: Path) -> None:
    made_up(simulated="10 subjects, variance 1, seed 7").save(tmp_path / "a.npz")
    made_up(simulated="").save(tmp_path / "b.npz")
    federation = load("mmhar", tmp_path / "a.npz", partition="owner", clients=0)
    assert federation.name == "mmhar (simulated)"
    assert federation.summary()["name"] == "mmhar (simulated)"
    assert any(note.startswith("simulated: 10 subjects, variance 1, seed 7") for note in federation.notes)
    recorded = load("mmhar", tmp_path / "b.npz", partition="owner", clients=0)
    assert recorded.name == "mmhar"
    assert not any("simulated" in note for note in recorded.notes)


@pytest.mark.parametrize("sensor", SENSORS)
def test_a_missing_set_names_the_commands_that_make_it(tmp_path: Path, sensor: str) -> None:
    path = tmp_path / f"{sensor}.npz"
    with pytest.raises(PmsflError) as caught:
        load_source(sensor, str(path))
    assert f"pmsfl simulate {sensor} {tmp_path}`" in str(caught.value)
    assert f"pmsfl prepare {sensor} RAWDIR {path}`" in str(caught.value)


def test_the_other_sensors_set_and_plain_arrays_are_refused(tmp_path: Path) -> None:
    made_up("sonichar").save(tmp_path / "set.npz")
    with pytest.raises(PmsflError, match="holds sensor 'sonichar', but data = 'mmhar'"):
        load_source("mmhar", str(tmp_path / "set.npz"))
    np.savez(tmp_path / "plain.npz", x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4), sensor=np.array("mmhar"))
    with pytest.raises(PmsflError, match=r"misses owner, room.*data = 'npz'"):
        load_source("mmhar", str(tmp_path / "plain.npz"))


@pytest.mark.parametrize("sensor", SENSORS)
def test_kept_raw_signals_go_through_the_chain_to_the_same_set(tmp_path: Path, sensor: str) -> None:
    made = simulate(replace(SMALL, sensor=sensor, activities=1, repetitions=2), raw=tmp_path)
    again = prepare(tmp_path, sensor)
    assert again.simulated == made.simulated == "2 subjects, variance 1, seed 0"
    assert len(again.y) == 4
    assert made.x.shape == (4, 64, 64)
    place = {(o, r, t): i for i, (o, r, t) in enumerate(zip(again.owner, again.room, again.take, strict=True))}
    rows = [place[key] for key in zip(made.owner, made.room, made.take, strict=True)]
    assert np.array_equal(again.x[rows], made.x)
    assert np.array_equal(again.is_test()[rows], made.is_test())


def test_a_take_does_not_depend_on_the_set_it_is_made_for() -> None:
    made = simulate(replace(SMALL, repetitions=1))
    (alone,) = simulate_take(Take(0, 1, 1, 0), RadarSetting())
    (row,) = np.flatnonzero((made.owner == "subject-01") & (made.y == 1))
    assert np.array_equal(made.x[row], alone)


def test_several_processes_make_the_same_set() -> None:
    plan = replace(SMALL, sensor="sonichar", subjects=1, activities=1, repetitions=2)
    assert np.array_equal(simulate(plan, jobs=2).x, simulate(plan).x)


def test_a_set_is_small_and_loads_without_scipy(tmp_path: Path) -> None:
    made_up().save(tmp_path / "set.npz")
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "from pmsfl.data import load_source\n"
        f"print(load_source('mmhar', {str(tmp_path / 'set.npz')!r}).x.shape)\n"
        "from pmsfl.data.simulate import Plan, simulate\n"
        "from pmsfl.errors import PmsflError\n"
        "try: simulate(Plan('mmhar'))\n"
        "except PmsflError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "(72, 1, 8, 6)" in done.stdout
    assert "pip install 'pmsfl[sensors]'" in done.stdout


def test_a_folder_of_takes_is_read_by_its_names(tmp_path: Path) -> None:
    for name in ("anna/wave/living_room_2.npy", "anna/wave/kitchen_10.npy", "ben/walk/kitchen_1.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / name, np.zeros(1))
    found = {(t.subject, t.activity, t.room, t.take) for t in find_takes(tmp_path, "mmhar")}
    assert found == {("anna", "wave", "living_room", 2), ("anna", "wave", "kitchen", 10), ("ben", "walk", "kitchen", 1)}


@pytest.mark.parametrize("name", ["kitchen.npy", "kitchen_x.npy", "_3.npy"])
def test_takes_without_room_or_number_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "anna" / "wave").mkdir(parents=True)
    np.save(tmp_path / "anna" / "wave" / name, np.zeros(1))
    with pytest.raises(PmsflError, match=r"name takes ROOM_TAKE\.npy"):
        find_takes(tmp_path, "mmhar")


def test_an_empty_folder_and_an_unknown_sensor_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match=r"no takes for sonichar; they are looked for as .*ROOM_TAKE\.wav"):
        find_takes(tmp_path, "sonichar")
    with pytest.raises(PmsflError, match="did you mean 'mmhar'"):
        find_takes(tmp_path, "mmhr")


def test_the_setting_of_a_sensor_is_read_and_checked(tmp_path: Path) -> None:
    assert read_setting(tmp_path, "mmhar") == (RadarSetting(), "")
    file = tmp_path / "sensor.toml"
    file.write_text("carrier_hz = 18_000\n")
    assert read_setting(tmp_path, "sonichar") == (UltrasoundSetting(18_000), "")
    for text, complaint in (
        ("carier_hz = 2.0", "did you mean 'carrier_hz'"),
        ("samples = 2.5", "must be a positive whole number"),
        ("chirp_hz = -1", "must be a positive number"),
        ("chirp_hz = 'fast'", "must be a positive number"),
        ("chirp_hz", "not valid TOML"),
    ):
        file.write_text(text)
        with pytest.raises(PmsflError, match=complaint):
            read_setting(tmp_path, "mmhar")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"subjects": 0}, "subjects = 0"),
        ({"variance": -1.0}, "variance = -1"),
        ({"activities": 18}, "activities = 18"),
        ({"sensor": "lidar"}, "sensor 'lidar'"),
    ],
)
def test_sets_that_cannot_be_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(PmsflError, match=complaint):
        replace(SMALL, **changes).check()  # type: ignore[arg-type]
