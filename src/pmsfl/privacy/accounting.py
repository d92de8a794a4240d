"""What many releases come to. Training uses closed forms (`bound`); `tight` asks dp-accounting where that is better."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pmsfl.errors import PmsflError
from pmsfl.privacy.mechanisms import gaussian_epsilon, laplace_epsilon, zcdp_epsilon

CELLS = 100_000  # of a privacy loss distribution, about


@dataclass(frozen=True)
class Event:
    """`times` releases of one kind, one after another, each free to depend on those before.

    size: sensitivity over σ (gaussian), ε (laplace, pure) or ρ (zcdp) of one of them.
    """

    kind: Literal["gaussian", "laplace", "zcdp", "pure"]
    size: float
    times: int


def bound(events: Iterable[Event], delta: float) -> float:
    """The ε at δ of all events together, in closed form: exact for Gaussian noise alone, sound for all else.

    Never less for more releases.
    """
    live = [e for e in events if e.times > 0]
    parts = [e for e in live if e.kind == "laplace"]
    mu = math.sqrt(sum(e.times * e.size**2 for e in live if e.kind == "gaussian"))
    rho = sum(e.times * e.size for e in live if e.kind == "zcdp")
    share = delta / max(len(parts) + (mu > 0.0) + (rho > 0.0), 1)
    total = sum(e.times * e.size for e in live if e.kind == "pure")
    total += sum(laplace_epsilon(e.size, e.times, share) for e in parts)
    return total + (gaussian_epsilon(mu, share) if mu > 0.0 else 0.0) + zcdp_epsilon(rho, share)


def tight(events: Iterable[Event], delta: float) -> float:
    """The same as close as it can be had: the closed form where it is exact, else the better of it and of
    dp-accounting's privacy loss distribution, which errs on the safe side too."""
    live = [e for e in events if e.times > 0]
    closed = bound(live, delta)
    kinds = {e.kind for e in live}
    if "laplace" not in kinds or not kinds <= {"laplace", "gaussian"} or not has_library():
        return closed
    return min(closed, pld_epsilon(live, delta, max(closed / CELLS, 1e-6)))


def has_library() -> bool:
    """Is dp-accounting installed?"""
    return importlib.util.find_spec("dp_accounting") is not None


def pld_epsilon(events: Sequence[Event], delta: float, interval: float = 1e-4) -> float:
    """The ε at δ of Gaussian and Laplace events by dp-accounting's accountant of privacy loss distributions."""
    try:
        import dp_accounting
    except ImportError:
        raise PmsflError(
            "this needs dp-accounting, which is not installed: pip install 'pmsfl[privacy]', or dp-accounting"
        ) from None
    made = []
    for e in events:
        if e.kind not in ("gaussian", "laplace"):
            raise PmsflError(f"a privacy loss distribution of {e.kind!r} releases is not known; take bound()")
        one = dp_accounting.GaussianDpEvent if e.kind == "gaussian" else dp_accounting.LaplaceDpEvent
        made.append(dp_accounting.SelfComposedDpEvent(one(1.0 / e.size), e.times))
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=interval)
    accountant.compose(dp_accounting.ComposedDpEvent(made))
    return float(accountant.get_epsilon(delta))
