"""Seventeen daily activities as motions of a body.

The paper does not name its seventeen; these are ours. Some pairs differ only in the order of things: sitting down and
standing up, pushing and pulling. Others share their limbs and differ in direction or tempo: waving and clapping, boxing
and pushing. No single moment tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmsfl.data.motion.body import Floats, Pose


@dataclass(frozen=True)
class Beat:
    """The time an activity is performed in.

    seconds: [T]; phase: [T] cycles since some beginning, at the performer's tempo; onset: seconds at which a motion
    done once begins; pace: how much faster than usual; reach: amplitude; skew: shifts the fast part of a stroke.
    """

    seconds: Floats
    phase: Floats
    onset: float
    pace: float
    reach: float
    skew: float

    def sway(self, cycles: float = 1.0, offset: float = 0.0) -> Floats:
        """A sine over the phase, −1 to 1."""
        out: Floats = np.sin(2 * np.pi * (cycles * self.phase + offset))
        return out

    def stroke(self, rise: float = 0.5, duty: float = 1.0, offset: float = 0.0) -> Floats:
        """Once per cycle from 0 to 1 and back, then rest: `duty` of the cycle moves, `rise` of that goes out."""
        rise = float(np.clip(rise + self.skew, 0.15, 0.85))
        u = (self.phase + offset) % 1.0 / duty
        out: Floats = np.where(u < rise, smooth(u / rise), smooth((1.0 - u) / (1.0 - rise)))
        return out

    def once(self, seconds: float) -> Floats:
        """From 0 to 1 within `seconds` at the usual pace, from the onset on."""
        return smooth((self.seconds - self.onset) * self.pace / seconds)


def smooth(u: Floats) -> Floats:
    """The minimum-jerk curve from 0 (u ≤ 0) to 1 (u ≥ 1): how people move from rest to rest."""
    u = np.clip(u, 0.0, 1.0)
    out: Floats = u**3 * (10.0 - 15.0 * u + 6.0 * u**2)
    return out


def _walk(b: Beat, p: Pose) -> None:
    swing = b.reach * b.sway()
    p.whole(x=0.5 * np.sin(2 * np.pi * 0.22 * b.pace * (b.seconds + b.onset)))
    for side, sign in (("r", 1.0), ("l", -1.0)):
        p.foot(side, x=0.2 * sign * swing, z=0.05 * np.maximum(sign * b.sway(offset=0.25), 0.0) ** 2)
        p.hand(side, x=-0.1 * sign * swing)
    p.trunk(z=0.012 * b.sway(2.0))


def _jog(b: Beat, p: Pose) -> None:
    for side, offset in (("r", 0.0), ("l", 0.5)):
        lift = b.reach * b.stroke(duty=0.6, offset=offset)
        p.foot(side, x=-0.06 * lift, z=0.14 * lift)
        p.hand(side, x=0.1 + 0.08 * b.reach * b.sway(offset=offset), z=0.14)
    p.whole(z=0.02 * b.sway(2.0, 0.2))


def _jump(b: Beat, p: Pose) -> None:
    up = b.reach * b.stroke(duty=0.5, offset=-0.4)
    p.whole(z=0.12 * up)
    p.trunk(z=-0.08 * b.stroke(duty=0.4))
    for side in ("r", "l"):
        p.hand(side, x=0.08 * up, z=0.12 * up)


def _squat(b: Beat, p: Pose) -> None:
    down = b.reach * b.stroke(0.5, 0.85)
    p.trunk(z=-0.22 * down, x=-0.04 * down)
    p.lean(0.35 * down)
    for side in ("r", "l"):
        p.hand(side, x=0.25 * down, z=0.2 * down)
        p.move(f"knee_{side}", x=0.1 * down)


def _pick_up(b: Beat, p: Pose) -> None:
    down = b.reach * b.stroke(0.45, 0.8)
    p.lean(1.2 * down)
    p.trunk(z=-0.08 * down, x=-0.05 * down)
    p.hand("r", x=0.15 * down, z=-0.15 * down)


def _sit_down(b: Beat, p: Pose) -> None:
    down = b.once(1.4)
    p.trunk(z=-0.2 * b.reach * down, x=-0.16 * down)
    p.lean(0.45 * b.reach * 4.0 * down * (1.0 - down))


def _stand_up(b: Beat, p: Pose) -> None:
    seated = 1.0 - b.once(1.25)
    p.trunk(z=-0.2 * b.reach * seated, x=-0.16 * seated)
    p.lean(0.5 * b.reach * 4.0 * seated * (1.0 - seated))


def _kick(b: Beat, p: Pose) -> None:
    out = b.reach * b.stroke(0.42, 0.5)
    p.foot("r", x=0.38 * out - 0.1 * b.stroke(0.5, 0.3, 0.3), z=0.18 * out)
    p.trunk(x=-0.04 * out)
    p.hand("l", x=0.08 * out)


def _side_step(b: Beat, p: Pose) -> None:
    p.whole(y=0.2 * b.reach * b.sway(0.5))
    for side, offset in (("r", 0.0), ("l", 0.5)):
        p.foot(side, z=0.04 * b.stroke(duty=0.5, offset=offset), y=0.05 * b.sway(1.0, offset))
    p.trunk(z=0.01 * b.sway())


def _turn_around(b: Beat, p: Pose) -> None:
    for side, sign in (("r", -1.0), ("l", 1.0)):
        p.hand(side, y=0.06 * sign * b.reach, z=0.02)
        p.foot(side, z=0.03 * b.stroke(duty=0.6, offset=0.25 * sign))
    p.turn(2 * np.pi * 0.6 * b.phase + 0.3 * b.sway(1.0))


def _wave(b: Beat, p: Pose) -> None:
    swing = b.reach * b.sway()
    p.hand("r", x=0.12 + 0.05 * swing, y=-0.04 + 0.13 * swing, z=0.42 - 0.03 * swing**2)
    p.trunk(y=0.006 * swing)


def _push(b: Beat, p: Pose) -> None:
    out = b.reach * b.stroke(0.33, 0.9)
    for side in ("r", "l"):
        p.hand(side, x=0.06 + 0.3 * out, z=0.26)
    p.trunk(x=0.03 * out)


def _pull(b: Beat, p: Pose) -> None:
    out = b.reach * b.stroke(0.67, 0.9)
    for side in ("r", "l"):
        p.hand(side, x=0.06 + 0.3 * out, z=0.22)
    p.trunk(x=0.03 * out - 0.015)


def _box(b: Beat, p: Pose) -> None:
    for side, offset, sign in (("r", 0.0, 1.0), ("l", 0.5, -1.0)):
        out = b.reach * b.stroke(0.42, 0.55, offset)
        p.hand(side, x=0.08 + 0.24 * out, y=0.08 * sign, z=0.28)
        p.move("chest", x=0.02 * out)


def _clap(b: Beat, p: Pose) -> None:
    apart = b.reach * b.stroke(0.55)
    for side, sign in (("r", -1.0), ("l", 1.0)):
        p.hand(side, x=0.2 - 0.03 * apart, y=sign * (0.13 * apart - 0.13), z=0.22)


def _drink(b: Beat, p: Pose) -> None:
    up = np.clip(1.6 * b.stroke(0.5), 0.0, None)
    up = b.reach * up / (0.35 + up) * 1.2
    p.hand("r", x=0.1 * up, y=0.12 * up, z=0.36 * up)
    p.move("head", x=-0.03 * up**2, z=-0.01 * up)


def _sweep(b: Beat, p: Pose) -> None:
    swing = b.reach * b.sway()
    p.lean(np.full_like(b.phase, 0.35))
    p.trunk(y=0.03 * swing, x=0.02 * b.sway(1.0, 0.2))
    p.hand("r", x=0.16 + 0.1 * swing, y=0.1 + 0.15 * swing, z=0.05)
    p.hand("l", x=0.2 + 0.05 * swing, y=-0.05 + 0.15 * swing, z=0.12)


@dataclass(frozen=True)
class Activity:
    """One activity: its name, its usual cycles per second, what it does, and how it moves the body."""

    name: str
    tempo: float
    what: str
    write: Callable[[Beat, Pose], None]


ACTIVITIES = (
    Activity("walk", 0.9, "to and fro along the line of sight, arms and legs swinging", _walk),
    Activity("jog", 1.4, "on the spot, feet lifted behind, arms bent", _jog),
    Activity("jump", 0.75, "crouch and leap, arms thrown up", _jump),
    Activity("squat", 0.45, "knees bent, arms stretched forward, and up again", _squat),
    Activity("pick-up", 0.4, "bend at the hip and reach for the floor", _pick_up),
    Activity("sit-down", 1.0, "once: from standing onto a chair", _sit_down),
    Activity("stand-up", 1.0, "once: from a chair to standing", _stand_up),
    Activity("kick", 0.65, "one foot forward and up, quickly", _kick),
    Activity("side-step", 0.8, "to the left and right, across the line of sight", _side_step),
    Activity("turn-around", 0.45, "about the own axis in steps", _turn_around),
    Activity("wave", 1.6, "one hand beside the head", _wave),
    Activity("push", 0.75, "both hands forward fast, back slowly", _push),
    Activity("pull", 0.75, "both hands forward slowly, back fast", _pull),
    Activity("box", 1.0, "fists forward in turn", _box),
    Activity("clap", 1.9, "hands together before the chest", _clap),
    Activity("drink", 0.4, "one hand to the mouth, held, and down", _drink),
    Activity("sweep", 0.65, "bent, both hands from side to side with a broom", _sweep),
)
ACTIVITY_NAMES = tuple(activity.name for activity in ACTIVITIES)
