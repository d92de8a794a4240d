"""A body as points that reflect: where they are at rest, how strongly they reflect, and how limbs follow.

Lengths are in units of the person's height. The body's own frame: x forward, y to the left, z up, the origin on the
floor between the feet.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PARTS = (
    "head",
    "chest",
    "belly",
    "elbow_r",
    "elbow_l",
    "hand_r",
    "hand_l",
    "knee_r",
    "knee_l",
    "foot_r",
    "foot_l",
)
INDEX = {part: i for i, part in enumerate(PARTS)}
TRUNK = ("head", "chest", "belly", "elbow_r", "elbow_l", "hand_r", "hand_l")

REST: Floats = np.array(
    [
        (0.00, 0.00, 0.93),
        (0.00, 0.00, 0.74),
        (0.00, 0.00, 0.57),
        (-0.01, -0.14, 0.63),
        (-0.01, 0.14, 0.63),
        (0.03, -0.15, 0.47),
        (0.03, 0.15, 0.47),
        (0.02, -0.06, 0.28),
        (0.02, 0.06, 0.28),
        (0.03, -0.06, 0.04),
        (0.03, 0.06, 0.04),
    ]
)

# Points between two parts: an echo comes from the whole forearm and shin, and their speeds lie in between.
BETWEEN = (
    ("elbow_r", "hand_r"),
    ("elbow_l", "hand_l"),
    ("knee_r", "foot_r"),
    ("knee_l", "foot_l"),
    ("chest", "belly"),
)

# Amplitudes of the echoes: the trunk is several times a hand. PARTS first, then BETWEEN.
REFLECTIVITY: Floats = np.array(
    [0.45, 1.00, 0.90, 0.35, 0.35, 0.30, 0.30, 0.40, 0.40, 0.30, 0.30, 0.35, 0.35, 0.40, 0.40, 0.90]
)


class Pose:
    """Displacements of every part from rest over time, in heights: [parts, T, 3]. Activities write into it."""

    def __init__(self, times: int) -> None:
        self.shift: Floats = np.zeros((len(PARTS), times, 3))

    def move(
        self, part: str, x: Floats | float = 0.0, y: Floats | float = 0.0, z: Floats | float = 0.0, share: float = 1.0
    ) -> None:
        """Shift one part by share · (x, y, z)."""
        for axis, value in enumerate((x, y, z)):
            self.shift[INDEX[part], :, axis] += share * np.asarray(value)

    def hand(self, side: str, x: Floats | float = 0.0, y: Floats | float = 0.0, z: Floats | float = 0.0) -> None:
        """Move a hand; its elbow goes half of the way. side: r or l."""
        self.move(f"hand_{side}", x, y, z)
        self.move(f"elbow_{side}", x, y, z, share=0.5)

    def foot(self, side: str, x: Floats | float = 0.0, y: Floats | float = 0.0, z: Floats | float = 0.0) -> None:
        """Move a foot; its knee goes half of the way."""
        self.move(f"foot_{side}", x, y, z)
        self.move(f"knee_{side}", x, y, z, share=0.5)

    def trunk(self, x: Floats | float = 0.0, y: Floats | float = 0.0, z: Floats | float = 0.0) -> None:
        """Move everything above the legs; the knees give way by a third."""
        for part in TRUNK:
            self.move(part, x, y, z)
        for knee in ("knee_r", "knee_l"):
            self.move(knee, x, y, z, share=0.3)

    def whole(self, x: Floats | float = 0.0, y: Floats | float = 0.0, z: Floats | float = 0.0) -> None:
        """Move the whole body."""
        for part in PARTS:
            self.move(part, x, y, z)

    def lean(self, angle: Floats) -> None:
        """Bend forward at the hip by an angle over time (radians): head, chest and arms turn about the belly."""
        hip = REST[INDEX["belly"]]
        for part in ("head", "chest", "elbow_r", "elbow_l", "hand_r", "hand_l"):
            dx, _, dz = REST[INDEX[part]] - hip
            turned_x, turned_z = dx * np.cos(angle) + dz * np.sin(angle), dz * np.cos(angle) - dx * np.sin(angle)
            self.move(part, x=turned_x - dx, z=turned_z - dz)

    def turn(self, angle: Floats) -> None:
        """Turn the whole body, as it stands so far, about its vertical axis by an angle over time (radians)."""
        placed = REST[:, None] + self.shift
        x, y = placed[..., 0].copy(), placed[..., 1].copy()
        placed[..., 0] = x * np.cos(angle) - y * np.sin(angle)
        placed[..., 1] = x * np.sin(angle) + y * np.cos(angle)
        self.shift = placed - REST[:, None]


def mirrored(shift: Floats) -> Floats:
    """The same motion with left and right exchanged: [parts, T, 3]."""
    order = [INDEX[p[:-1] + {"r": "l", "l": "r"}[p[-1]]] if p[-2:] in ("_r", "_l") else INDEX[p] for p in PARTS]
    out: Floats = shift[order] * np.array([1.0, -1.0, 1.0])
    return out


def points(placed: Floats) -> Floats:
    """All reflecting points of a body whose parts are at `placed` [parts, T, 3]: [parts + between, T, 3]."""
    middles = [(placed[INDEX[a]] + placed[INDEX[b]]) / 2 for a, b in BETWEEN]
    return np.concatenate([placed, np.stack(middles)])
