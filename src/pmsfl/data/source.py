"""What every loader returns: rows with labels, before they are dealt to clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Source:
    """Labelled rows as read from files.

    x: [n, C, H, W] uint8 or float32, or [n, T, F] float32; y: [n] int64 in 0..classes-1;
    owner: [n] integers or strings (who made the row); is_test: [n] bool (the data's own test set);
    window: [n] int64 time order, for recordings whose neighbouring rows resemble each other;
    recording: [n] int64, which recording a window is of, where tests are to be split off by time in each.
    """

    name: str
    x: Array
    y: Ints
    classes: int
    owner: Array | None = None
    is_test: Bools | None = None
    class_names: tuple[str, ...] | None = None
    window: Ints | None = None
    recording: Ints | None = None
    notes: tuple[str, ...] = ()
