"""The simulator: every draw hangs on its key, bodies move as bodies can, persons differ as much as told."""

from __future__ import annotations

import numpy as np
import pytest

from pmsfl.data.motion.activities import ACTIVITIES, ACTIVITY_NAMES, Beat, smooth
from pmsfl.data.motion.body import INDEX, PARTS, REFLECTIVITY, REST, Pose, mirrored, points
from pmsfl.data.motion.echo import radar_cube, ultrasound_audio
from pmsfl.data.motion.people import Habit, Person, Take, perform
from pmsfl.data.motion.scene import MOTION_HZ, scene_of
from pmsfl.data.radar import RadarSetting
from pmsfl.data.ultrasound import UltrasoundSetting

SECONDS = np.arange(round(3 * MOTION_HZ)) / MOTION_HZ


def beat(tempo: float = 1.0) -> Beat:
    return Beat(SECONDS, tempo * SECONDS, onset=0.5, pace=1.0, reach=1.0, skew=0.0)


def test_there_are_seventeen_activities_with_names_of_their_own() -> None:
    assert len(set(ACTIVITY_NAMES)) == len(ACTIVITIES) == 17


@pytest.mark.parametrize("number", range(17), ids=ACTIVITY_NAMES)
def test_bodies_move_smoothly_and_no_faster_than_people_do(number: int) -> None:
    for subject in range(3):
        body, echo = perform(Take(0, subject, number, 0), SECONDS)
        assert body.shape == (len(REFLECTIVITY), len(SECONDS), 3)
        assert echo.shape == (len(body),)
        speed = np.linalg.norm(np.diff(body, axis=1), axis=-1) * MOTION_HZ
        assert 0.05 < speed.max() < 9.0
        jolt = np.linalg.norm(np.diff(body, 2, axis=1), axis=-1).max() * MOTION_HZ**2
        assert jolt < 250.0, "a jump in speed would ring over all Doppler bins"
        assert body[..., 2].min() > -0.35, "nobody reaches far below the floor"


def test_the_same_take_is_the_same_signal_whatever_was_made_before() -> None:
    take, other = Take(5, 1, 10, 3), Take(5, 1, 11, 3)
    setting, tone = RadarSetting(), UltrasoundSetting()
    first, first_sound = radar_cube(take, 0.25, setting), ultrasound_audio(take, 0.25, tone)
    different = radar_cube(other, 0.25, setting)
    assert np.array_equal(radar_cube(take, 0.25, setting), first)
    assert np.array_equal(ultrasound_audio(take, 0.25, tone), first_sound)
    assert not np.array_equal(different, first)
    assert first.shape == (1024, 1, 32, 2)
    assert first.dtype == first_sound.dtype == np.int16
    assert len(first_sound) == 11_025


@pytest.mark.parametrize("key", ["seed", "subject", "activity", "repetition"])
def test_every_key_matters(key: str) -> None:
    keys = {"seed": 0, "subject": 0, "activity": 3, "repetition": 0}
    first, _ = perform(Take(**keys), SECONDS)
    second, _ = perform(Take(**{**keys, key: keys[key] + 1}), SECONDS)
    assert np.abs(first - second).max() > 0.01


def test_no_variance_makes_one_person_of_all_and_more_makes_them_differ_more() -> None:
    alike = [Person.of(0, s, 0.0) for s in range(4)]
    assert len({(p.height, p.pace, p.reach, p.left_handed, p.turned) for p in alike}) == 1
    assert {Habit.of(0, s, 2, 0.0).tempo for s in range(4)} == {1.0}

    def spread(variance: float) -> float:
        return float(np.std([Habit.of(0, s, a, variance).tempo for s in range(10) for a in range(17)]))

    assert 0 < spread(0.5) < spread(1.0) < spread(2.0)


def test_takes_of_one_person_differ_even_without_variance() -> None:
    first, _ = perform(Take(0, 0, 3, 0, 0.0), SECONDS)
    second, _ = perform(Take(0, 0, 3, 3, 0.0), SECONDS)
    assert np.abs(first - second).max() > 0.01


def test_rooms_take_turns_and_differ() -> None:
    assert [Take(0, 0, 0, r).room for r in range(6)] == [0, 1, 2, 0, 1, 2]
    scenes = [scene_of(Take(0, 0, 0, r), 0.5) for r in range(3)]
    assert len({s.noise for s in scenes}) == 3
    assert len({round(float(s.ranges[1].mean()), 1) for s in scenes}) == 3
    for s in scenes:
        assert s.ranges.shape == (len(s.echoes), len(s.seconds))
        assert 0.3 < s.ranges.min() < s.ranges.max() < 6.4, "beyond the last range bin it would fold over"


def test_a_way_over_the_wall_is_longer_than_the_straight_one() -> None:
    scene = scene_of(Take(0, 2, 4, 1), 0.5)
    body = len(REFLECTIVITY)
    assert (scene.ranges[body : 2 * body] > scene.ranges[:body]).all()


def test_sitting_down_and_standing_up_are_opposite_ways() -> None:
    chest = {}
    for name in ("sit-down", "stand-up"):
        pose = Pose(len(SECONDS))
        ACTIVITIES[ACTIVITY_NAMES.index(name)].write(beat(), pose)
        chest[name] = pose.shift[INDEX["belly"], :, 2]
    assert chest["sit-down"][0] == pytest.approx(0.0)
    assert chest["sit-down"][-1] == pytest.approx(-0.2)
    assert chest["stand-up"][0] == pytest.approx(-0.2)
    assert chest["stand-up"][-1] == pytest.approx(0.0)


def test_pushing_is_fast_forward_and_pulling_fast_back() -> None:
    def hand_speeds(name: str) -> np.ndarray:
        pose = Pose(len(SECONDS))
        ACTIVITIES[ACTIVITY_NAMES.index(name)].write(beat(), pose)
        return np.diff(pose.shift[INDEX["hand_r"], :, 0])

    push, pull = hand_speeds("push"), hand_speeds("pull")
    assert push.max() > 1.5 * -push.min()
    assert -pull.min() > 1.5 * pull.max()


def test_a_left_handed_body_is_the_mirror_image() -> None:
    pose = Pose(4)
    pose.hand("r", x=0.3, y=0.1)
    turned = mirrored(pose.shift)
    assert turned[INDEX["hand_l"], 0].tolist() == [0.3, -0.1, 0.0]
    assert turned[INDEX["hand_r"]].any() == np.False_
    assert np.array_equal(mirrored(turned), pose.shift)


def test_turning_and_leaning_keep_the_body_in_one_piece() -> None:
    pose = Pose(50)
    pose.lean(np.linspace(0.0, 1.2, 50))
    pose.turn(np.linspace(0.0, 3.0, 50))
    placed = REST[:, None] + pose.shift
    for part in ("head", "chest"):
        distance = np.linalg.norm(placed[INDEX[part]] - placed[INDEX["belly"]], axis=-1)
        assert np.allclose(distance, distance[0])
    assert points(placed).shape == (len(REFLECTIVITY), 50, 3)
    assert np.allclose(points(placed)[len(PARTS)], (placed[INDEX["elbow_r"]] + placed[INDEX["hand_r"]]) / 2)


def test_a_stroke_goes_out_and_back_and_rests() -> None:
    out = beat().stroke(rise=0.25, duty=0.5)
    at = np.searchsorted(SECONDS, [0.0, 0.125, 0.5, 0.9, 1.125])
    assert np.allclose(out[at], [0.0, 1.0, 0.0, 0.0, 1.0], atol=1e-3)
    assert smooth(np.array([-1.0, 0.0, 0.5, 1.0, 2.0])).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
