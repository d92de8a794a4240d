"""What cannot be had without giving something up: points that no other beats in both accuracy and secrecy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pmsfl.paper.outcome import Group
from pmsfl.report.interval import Summary


@dataclass(frozen=True)
class Point:
    """A variant in the figure: accuracy in percent, and the maximum SSIM over all attacks."""

    group: Group
    accuracy: Summary
    ssim: Summary


def points(groups: Sequence[Group]) -> list[Point]:
    """The variants that have both figures."""
    found = ((g, g.accuracy, g.summary("max")) for g in groups)
    return [Point(g, a, s) for g, a, s in found if a is not None and s is not None]


def frontier(found: Sequence[Point]) -> list[Point]:
    """The points that no other beats: more accurate and no less secret, or the other way round; by accuracy."""
    return sorted((p for p in found if not any(_beats(q, p) for q in found)), key=lambda p: p.accuracy.mean)


def _beats(a: Point, b: Point) -> bool:
    better = a.accuracy.mean > b.accuracy.mean or a.ssim.mean < b.ssim.mean
    return better and a.accuracy.mean >= b.accuracy.mean and a.ssim.mean <= b.ssim.mean
