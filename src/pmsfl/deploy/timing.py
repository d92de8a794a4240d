"""How long sites wait for an answer, and how much of that is the engine and how much the server's own work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from pmsfl.wire.messages import WireError

MOST_REPORTED = 512  # round trips that a site reports of one round


class Timing:
    """Times of the newest calls."""

    def __init__(self, most: int = 4096) -> None:
        self.last: dict[str, float] = {}
        self.began: dict[tuple[str, tuple[int, int, int]], float] = {}
        self.trips: deque[float] = deque(maxlen=most)  # one batch's call, as its site saw it
        self.engine: deque[float] = deque(maxlen=most)  # the same less what it was held here

    def arrived(self, site: str, key: tuple[int, int, int], now: float) -> None:
        """A call came, perhaps not for the first time."""
        self.last[site] = now
        if (site, key) not in self.began:
            for old in [k for k in self.began if k[0] == site]:
                del self.began[old]
            self.began[site, key] = now

    def answered(self, site: str, key: tuple[int, int, int], now: float) -> float:
        """It was answered; the seconds since it first came."""
        self.last[site] = now
        return now - self.began.pop((site, key), now)

    def silent(self, site: str, now: float) -> float:
        """Seconds since a site's last call."""
        return now - self.last.get(site, now)

    def reported(self, trips: list[tuple[float, float]]) -> None:
        """What a site measured in a round, as `read_trips` returns it."""
        for trip, held in trips:
            self.trips.append(trip)
            self.engine.append(max(trip - held, 0.0))

    def summary(self) -> dict[str, Any]:
        """p50 and p99 in milliseconds, and the engine's share of the round trips; None where nothing was measured."""
        trips = sorted(self.trips)
        total = sum(trips)
        return {
            "trip_p50_ms": _at(trips, 0.5),
            "trip_p99_ms": _at(trips, 0.99),
            "engine_p50_ms": _at(sorted(self.engine), 0.5),
            "engine_share": round(sum(self.engine) / total, 4) if total > 0 else None,
            "steps": len(trips),
        }


def read_trips(info: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Pairs of a batch's round trip and how long the server held it, in seconds; WireError where they are none."""
    pairs = info.get("trips", [])
    if not isinstance(pairs, list) or len(pairs) > MOST_REPORTED:
        raise WireError(f"trips: a list of at most {MOST_REPORTED} pairs is expected")
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or any(type(v) not in (int, float) for v in pair):
            raise WireError("trips: every entry is a pair of numbers")
        if not (0.0 <= pair[0] <= 1e6 and 0.0 <= pair[1] <= 1e6):
            raise WireError(f"trips: {pair} are no sensible seconds")
    return [(trip, held) for trip, held in pairs]


def _at(values: list[float], share: float) -> float | None:
    if not values:
        return None
    return round(1000.0 * values[min(int(share * len(values)), len(values) - 1)], 3)
