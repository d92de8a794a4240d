"""The statistics of a comparison, as pure functions: means over seeds, differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pmsfl.report.interval import Summary, mean, summarise, t_quantile

LEAST_SEEDS = 3  # fewer pairs never separate two methods


@dataclass(frozen=True)
class Record:
    """One finished run: settings are its whole recipe but for what cannot change a figure."""

    recipe: str
    method: str
    preset: str
    seed: int
    settings: Mapping[str, Any]
    values: Mapping[str, float]


@dataclass
class Group:
    """Runs that differ by nothing but their seed."""

    label: tuple[str, str, str]  # recipe, method, preset
    settings: Mapping[str, Any]
    records: list[Record] = field(default_factory=list)
    extra: str = ""  # settings that tell it from other groups of the same label

    @property
    def seeds(self) -> list[int]:
        """The seeds, sorted."""
        return sorted({r.seed for r in self.records})

    def by_seed(self, key: str) -> dict[int, float]:
        """One figure per seed; a seed that was run twice counts once, with its mean."""
        return {seed: mean(self._values(key, seed)) for seed in self.seeds if self._values(key, seed)}

    def _values(self, key: str, seed: int) -> list[float]:
        found = (r.values.get(key) for r in self.records if r.seed == seed)
        return [v for v in found if v is not None and math.isfinite(v)]


@dataclass(frozen=True)
class Difference:
    """A group minus the baseline, over the seeds both have."""

    seeds: tuple[int, ...]
    mean: float | None
    error: float | None
    verdict: str


def paired(baseline: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """other − baseline over common seeds, and whether the difference can be told from chance."""
    seeds = tuple(sorted(baseline.keys() & other.keys()))
    found = summarise(other[s] - baseline[s] for s in seeds)
    if found is None:
        return Difference((), None, None, verdict(None))
    return Difference(seeds, found.mean, found.error, verdict(found))


def verdict(difference: Summary | None) -> str:
    """better or worse where 0 lies outside Student's 95 % interval of at least three pairs.

    With three seeds that takes 4.3 standard errors, with five 2.8: two would call chance a finding too often.
    """
    if difference is None or difference.error is None or difference.n < LEAST_SEEDS:
        return "not separable"
    if abs(difference.mean) <= t_quantile(difference.n - 1) * difference.error:
        return "not separable"
    return "better" if difference.mean > 0 else "worse"


def group(records: Iterable[Record]) -> list[Group]:
    """Groups in the order their first run was given.

    Equal labels are told apart by what they set differently; and what a group sets otherwise than the baseline
    (the first) is named too, unless a preset says it already: a difference may come from there.
    """
    groups: dict[tuple[Any, ...], Group] = {}
    for r in records:
        label = (r.recipe, r.method, r.preset)
        key = (label, tuple(sorted((k, repr(v)) for k, v in r.settings.items())))
        groups.setdefault(key, Group(label, r.settings)).records.append(r)
    found = list(groups.values())
    for g in found:
        alike = [other for other in found if other.label == g.label]
        apart = [
            k
            for k in g.settings
            if _differs(k, alike) or (g.label[2] == found[0].label[2] and _differs(k, [g, found[0]]))
        ]
        g.extra = ", ".join(f"{k}={g.settings[k]}" for k in apart)
    return found


def _differs(key: str, groups: list[Group]) -> bool:
    return len({repr(g.settings.get(key)) for g in groups}) > 1
