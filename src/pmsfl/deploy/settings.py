"""What a deployment allows: how long the server waits, how large messages may be, what a site puts up with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from pmsfl.errors import PmsflError


@dataclass(frozen=True)
class Patience:
    """The server's clocks, in seconds, and how few sites it goes on with."""

    min_clients: int = 2
    enrol_seconds: float = 60.0  # for named sites that have not said hello
    gather_seconds: float = 30.0  # after the first site asked for a round
    step_seconds: float = 30.0  # after the first smashed data of a step, upload of a round, part of an evaluation
    idle_seconds: float = 180.0  # nothing moves: the job is over
    hold_seconds: float = 20.0  # how long one call may be held; below the transport's own limit
    max_waiting: int = 64  # calls held at once; below the transport's number of threads

    def __post_init__(self) -> None:
        for f in fields(self):
            if not getattr(self, f.name) > 0:
                raise PmsflError(f"{f.name} = {getattr(self, f.name)}: must be above 0")

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


@dataclass(frozen=True)
class Bounds:
    """What the server accepts from a site."""

    smashed: float = 1e4  # largest |value| of smashed data
    values: float = 1e3  # largest |value| of uploaded weights and norms
    steps: int = 100_000  # of a site in one round: whoever claims more rows holds everybody up
    mask_bias: float = 0.1  # share of coordinates by which the number of set bits may miss its expectation
    mask_deviations: float = 6.0  # and standard deviations on top of it


@dataclass(frozen=True)
class Guard:
    """What a site accepts from the server."""

    gradient_norm: float = 10.0  # L2, of one sample's gradient; beyond it is scaled down
    values: float = 1e3  # largest |value| of weights and norms that come down
    max_width: int = 1024  # of a model it is asked to build
    max_parameters: int = 200_000_000
    repeats: int = 5  # how often it plays the same round: each time shows the server its records once more
    own_code: bool = False  # may the recipe name a model outside this package?
