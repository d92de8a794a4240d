"""The embedded sample: real handwritten digits by 24 writers (see digits_by_writer.md)."""

from __future__ import annotations

from importlib import resources

import numpy as np

from pmsfl.data.source import Source


def load_digits() -> Source:
    """Return the embedded sample: x uint8 [2640, 1, 28, 28], y 0..9, owner = NIST writer id."""
    path = resources.files("pmsfl.data").joinpath("digits_by_writer.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
        return Source(
            name="digits",
            x=saved["x"][:, None],
            y=saved["y"].astype(np.int64),
            classes=10,
            owner=saved["writer"].astype(np.int64),
            class_names=tuple(str(digit) for digit in range(10)),
        )
