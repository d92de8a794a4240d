"""One process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pmsfl.errors import PmsflError

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]


@contextmanager
def only_one(file: Path, otherwise: str | None = None) -> Iterator[int]:
    """Nobody else holds this lock meanwhile. Where somebody does: PmsflError(otherwise), or without it, wait.

    Gives the file's number: the lock goes with the last process that has it, however that ends.
    """
    with file.open("a") as held:
        if fcntl is not None:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | (fcntl.LOCK_NB if otherwise is not None else 0))
            except OSError:
                if otherwise is None:
                    raise
                raise PmsflError(otherwise) from None
        yield held.fileno()
