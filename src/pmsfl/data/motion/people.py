"""Who moves, and how this time: a person's size and habits, a take's chance. Every draw hangs on its own key.

`variance` scales how much persons differ: 0 makes ten copies of one person, 1 is the default, 2 exaggerates. What
differs from take to take of one person is not scaled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pmsfl.data.motion.activities import ACTIVITIES, Beat
from pmsfl.data.motion.body import PARTS, REFLECTIVITY, REST, Floats, Pose, mirrored, points

# one stream per purpose: the same numbers never serve two of them
PERSON, HABIT, TAKE, ROOM, ECHO = 201, 202, 203, 204, 205
ROOMS = 3


def stream(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """A generator that depends on nothing but these numbers, so the order of calls never matters."""
    return np.random.default_rng([seed, purpose, *key])


def _normal(rng: np.random.Generator, count: int) -> Floats:
    """Standard normal draws [count] without the tails: nobody is five deviations from everybody else."""
    return np.clip(rng.standard_normal(count), -2.0, 2.0)


@dataclass(frozen=True)
class Person:
    """What stays the same in everything a subject does. height in metres; the rest are factors around 1."""

    height: float
    pace: float
    reach: float
    left_handed: bool
    turned: float  # how far from square to the sensor the person likes to stand, radians
    restless: float  # metres of involuntary sway
    echo: Floats  # strength of every reflecting point [points]

    @staticmethod
    def of(seed: int, subject: int, variance: float) -> Person:
        """The subject with this number."""
        rng = stream(seed, PERSON, subject)
        normal = variance * _normal(rng, 5)
        return Person(
            height=float(np.clip(1.70 + 0.09 * normal[0], 1.40, 2.05)),
            pace=float(np.exp(0.14 * normal[1])),
            reach=float(np.exp(0.14 * normal[2])),
            left_handed=bool(rng.random() < min(0.2 * variance, 0.5)),
            turned=0.35 * float(normal[3]),
            restless=0.006 * float(np.exp(0.5 * normal[4])),
            echo=REFLECTIVITY * np.exp(0.25 * variance * _normal(rng, len(REFLECTIVITY))),
        )


@dataclass(frozen=True)
class Habit:
    """How one subject performs one activity, every time."""

    tempo: float
    reach: float
    skew: float
    gains: Floats  # how much each part takes part [parts]
    bearing: float  # direction of the motion about the vertical, radians

    @staticmethod
    def of(seed: int, subject: int, activity: int, variance: float) -> Habit:
        """The habit of a subject in an activity."""
        rng = stream(seed, HABIT, subject, activity)
        normal = variance * _normal(rng, 4)
        return Habit(
            tempo=float(np.exp(0.18 * normal[0])),
            reach=float(np.exp(0.16 * normal[1])),
            skew=0.09 * float(normal[2]),
            gains=np.exp(0.28 * variance * _normal(rng, len(PARTS))),
            bearing=0.4 * float(normal[3]),
        )


@dataclass(frozen=True)
class Take:
    """Which recording: the keys of every draw. repetition counts from 0; rooms take turns."""

    seed: int
    subject: int
    activity: int
    repetition: int
    variance: float = 1.0

    @property
    def room(self) -> int:
        """The room it is recorded in."""
        return self.repetition % ROOMS

    def rng(self, purpose: int, *more: int) -> np.random.Generator:
        """A generator of this take's own."""
        return stream(self.seed, purpose, self.subject, self.activity, self.repetition, *more)


def perform(take: Take, seconds: Floats) -> tuple[Floats, Floats]:
    """The body during a take: (reflecting points [points, T, 3] in metres, echo strengths [points]).

    In the person's frame: x towards the sensor, y to the left, z up, the feet around the origin.
    """
    person = Person.of(take.seed, take.subject, take.variance)
    habit = Habit.of(take.seed, take.subject, take.activity, take.variance)
    activity = ACTIVITIES[take.activity]
    rng = take.rng(TAKE)
    beat = _beat(rng, seconds, activity.tempo * person.pace * habit.tempo, person.pace * habit.tempo, habit.skew)
    beat = replace(beat, reach=person.reach * habit.reach * float(np.exp(0.14 * _normal(rng, 1)[0])))
    pose = Pose(len(seconds))
    activity.write(beat, pose)
    shift = pose.shift * (habit.gains * np.exp(0.18 * _normal(rng, len(PARTS))))[:, None, None]
    if person.left_handed:
        shift = mirrored(shift)
    shift = _rotated(shift, habit.bearing + 0.12 * rng.standard_normal())
    placed = (REST[:, None] + shift) * person.height + _restless(rng, seconds, person.restless)
    facing = person.turned + 0.2 * rng.standard_normal()
    return points(_rotated(placed, facing)), person.echo


def _beat(rng: np.random.Generator, seconds: Floats, tempo: float, pace: float, skew: float) -> Beat:
    """This take's time: nobody keeps a tempo exactly, and a take begins anywhere in a cycle."""
    quick = float(np.exp(0.11 * _normal(rng, 1)[0]))
    wander = 0.05 * np.sin(2 * np.pi * (rng.uniform(0.15, 0.5) * seconds + rng.random())) * rng.standard_normal()
    phase = rng.random() + tempo * quick * seconds + wander
    onset = rng.uniform(0.2, 1.2)
    return Beat(seconds, phase, onset, pace * quick, 1.0, skew + 0.03 * rng.standard_normal())


def _rotated(vectors: Floats, angle: float) -> Floats:
    """Vectors [..., 3] turned about the vertical."""
    c, s = np.cos(angle), np.sin(angle)
    out: Floats = vectors @ np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])
    return out


def _restless(rng: np.random.Generator, seconds: Floats, metres: float) -> Floats:
    """Breathing and sway that everybody has: [parts, T, 3]."""
    out = np.zeros((len(PARTS), len(seconds), 3))
    for axis, scale in enumerate((1.0, 0.7, 0.2)):
        for hertz in (0.3, 0.55, 0.9):
            wave = np.sin(2 * np.pi * (hertz * rng.uniform(0.8, 1.2) * seconds + rng.random()))
            out[..., axis] += metres * scale * rng.standard_normal() * wave
    # limbs at rest are never quite still
    loose = metres * 0.7 * rng.standard_normal((len(PARTS), 3))
    hertz_each = rng.uniform(0.5, 1.5, (len(PARTS), 1))
    out += loose[:, None] * np.sin(2 * np.pi * (hertz_each * seconds + rng.random((len(PARTS), 1))))[..., None]
    return out
