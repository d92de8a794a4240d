"""Where it happens: three rooms with a sensor, still clutter, a wall that mirrors, and noise. Ranges over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pmsfl.data.motion.body import Floats
from pmsfl.data.motion.people import ECHO, ROOM, ROOMS, Take, perform, stream

MOTION_HZ = 512.0  # at which trajectories are computed; splines between them are exact to far below a wavelength

PASSING = 0.3  # share of the takes in which somebody passes behind


@dataclass(frozen=True)
class Room:
    """One room as the sensor sees it. Distances in metres, amplitudes like the body's."""

    distance: float  # from the sensor to where people stand
    aside: float  # how far from the axis they stand
    sensor_height: float
    wall: float  # a wall beside the scene: its mirror image of everything is heard later and weaker
    wall_echo: float
    clutter_ranges: Floats
    clutter_echoes: Floats
    noise: float  # factor on the sensor's own noise
    fan: float  # amplitude of something that always moves, such as a fan or a curtain


@dataclass(frozen=True)
class Scene:
    """Everything that reflects: ranges [S, T] in metres at `seconds` [T], amplitudes [S] at one metre."""

    seconds: Floats
    ranges: Floats
    echoes: Floats
    noise: float


def room_of(seed: int, number: int, near: float) -> Room:
    """The room with this number; `near` scales distances (a phone lies closer than a radar hangs)."""
    rng = stream(seed, ROOM, number)
    still = int(rng.integers(4, 8))
    return Room(
        distance=near * (2.0 + 0.45 * number + rng.uniform(-0.15, 0.15)),
        aside=near * rng.uniform(-0.5, 0.5),
        sensor_height=rng.uniform(0.8, 1.2),
        wall=rng.uniform(1.2, 2.2),
        wall_echo=rng.uniform(0.15, 0.35),
        clutter_ranges=near * rng.uniform(0.8, 5.5, still),
        clutter_echoes=rng.uniform(1.0, 6.0, still),
        noise=(0.8, 1.0, 1.35)[number % ROOMS],
        fan=(0.0, 0.08, 0.15)[number % ROOMS],
    )


def scene_of(take: Take, length: float, near: float = 1.0) -> Scene:
    """The scene of one take of `length` seconds: body, its image in the wall, a fan, a passer-by, still clutter."""
    # a margin on both sides, so that splines are never evaluated at their ends
    seconds = np.arange(-8, round(length * MOTION_HZ) + 9) / MOTION_HZ
    room = room_of(take.seed, take.room, near)
    rng = take.rng(ECHO)
    body, echo = perform(take, seconds)
    sensor = np.array([room.distance, room.aside, room.sensor_height])
    sensor = sensor + np.array([0.12, 0.12, 0.03]) * near * rng.standard_normal(3)
    direct = _distances(body, sensor)
    # the wall is the plane y = wall: a path over it is as long as one to the sensor's mirror image, once
    mirrored = (direct + _distances(body, sensor * [1, -1, 1] + [0, 2 * room.wall, 0])) / 2
    still = np.repeat(room.clutter_ranges[:, None], len(seconds), axis=1)
    blades = 0.12 * np.sin(2 * np.pi * (rng.uniform(1.6, 2.4) * seconds + rng.random()))
    fan = near * 3.5 + rng.uniform(-0.3, 0.3) + blades[None]
    passer, passer_echo = _passer_by(rng, seconds, near)
    ranges = np.concatenate([direct, mirrored, fan, passer, still])
    flicker = np.exp(0.2 * rng.standard_normal(len(echo)))
    others = np.array([room.fan, passer_echo])
    echoes = np.concatenate([echo * flicker, room.wall_echo * echo * flicker, others, room.clutter_echoes])
    return Scene(seconds, ranges, echoes, room.noise)


def _passer_by(rng: np.random.Generator, seconds: Floats, near: float) -> tuple[Floats, float]:
    """Somebody else in the room, behind the subject, in some of the takes: (range over time [1, T], echo)."""
    speed = rng.choice([-1.0, 1.0]) * rng.uniform(0.3, 0.9)
    way = near * 4.2 + speed * (seconds - 1.5) + 0.02 * np.sin(2 * np.pi * 1.8 * seconds)
    present = rng.random() < PASSING
    return way[None], float(present) * rng.uniform(0.4, 1.0)


def _distances(body: Floats, sensor: Floats) -> Floats:
    out: Floats = np.linalg.norm(body - sensor, axis=-1)
    return out
