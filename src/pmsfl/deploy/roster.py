"""Who takes part in a deployment, with what, and what each site is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pmsfl.data.source import Array, Ints
from pmsfl.engine.plan import assign_depths
from pmsfl.errors import PmsflError
from pmsfl.models.registry import make_model
from pmsfl.recipe import Recipe


class EnrolmentError(PmsflError):
    """A site that does not fit this run."""


@dataclass(frozen=True)
class Facts:
    """What a site says of itself. mean and squares: per channel over its training rows, on the scale 0..1 for bytes."""

    train: int
    test: int
    shape: tuple[int, ...]
    classes: int  # its largest label + 1
    mean: tuple[float, ...]
    squares: tuple[float, ...]  # mean squared deviations from that mean
    depth: int | None = None  # None: the recipe's

    @staticmethod
    def read(info: Mapping[str, Any]) -> Facts:
        """From JSON; EnrolmentError where something is missing or no sensible number."""
        try:
            depth = info.get("depth")
            facts = Facts(
                _whole(info["train"]),
                _whole(info["test"]),
                tuple(_whole(n, 1, 1 << 16) for n in _list(info["shape"], 4)),
                _whole(info["classes"], 1, 1 << 16),
                tuple(_number(v) for v in _list(info["mean"], 4096)),
                tuple(_number(v) for v in _list(info["squares"], 4096)),
                None if depth is None else _whole(depth, 1, 1 << 10),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise EnrolmentError(f"the enrolment cannot be read: {e!r}") from None
        channels = facts.shape[0] if len(facts.shape) == 3 else facts.shape[-1]
        if len(facts.shape) not in (2, 3) or not len(facts.mean) == len(facts.squares) == channels:
            raise EnrolmentError(f"shape {facts.shape} and {len(facts.mean)} channel means do not go together")
        if min(facts.squares) < 0.0:
            raise EnrolmentError("squared deviations are negative")
        return facts

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass
class Roster:
    """The named sites of a run, in the order of their client numbers. What is None is settled at the first start."""

    sites: tuple[str, ...]
    facts: dict[str, Facts] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    depths: tuple[int, ...] | None = None
    secure_sums: bool = False  # of masks; a run keeps what it began with

    def client(self, site: str) -> int:
        """A site's number; EnrolmentError for a name that is not on the list."""
        if site not in self.sites:
            raise EnrolmentError(f"site {site!r} is not one of this run: {', '.join(self.sites)}")
        return self.sites.index(site)

    def settle(self, recipe: Recipe) -> None:
        """Fix shape, classes, normalisation and depths from those who enrolled; later ones must fit."""
        if self.depths is not None:
            return
        there = [self.facts[s] for s in self.sites if s in self.facts]
        if len({f.shape for f in there}) != 1:
            found_shapes = ", ".join(f"{s} {self.facts[s].shape}" for s in self.sites if s in self.facts)
            raise EnrolmentError(f"sites have samples of different shapes: {found_shapes}")
        self.shape = self.shape or there[0].shape
        self.classes = self.classes or max(f.classes for f in there)
        if self.mean is None or self.std is None:
            self.mean, self.std = _pooled(there)
        deepest = make_model(recipe, self.shape, self.classes).depth
        if recipe.depths == "auto":
            raise EnrolmentError("depths = 'auto' is for simulations; every site names its own with --depth")
        common = assign_depths(recipe.depths, len(self.sites), deepest)
        found = []
        for site, default in zip(self.sites, common, strict=True):
            own = self.facts[site].depth if site in self.facts else None
            if own is not None and own > deepest:
                raise EnrolmentError(f"site {site!r} wants depth {own}; this model can be cut after 1 to {deepest}")
            found.append(own or default)
        self.depths = tuple(found)

    def enrol(self, site: str, facts: Facts) -> None:
        """Enter a site, or enter it anew; EnrolmentError where it does not fit what was settled."""
        client = self.client(site)
        if self.depths is not None:
            if facts.shape != self.shape:
                raise EnrolmentError(f"samples of shape {facts.shape}, this run has {self.shape}")
            if facts.classes > (self.classes or 0):
                raise EnrolmentError(f"labels up to {facts.classes - 1}, this run has {self.classes} classes")
            if facts.depth not in (None, self.depths[client]):
                raise EnrolmentError(
                    f"depth {facts.depth}, but site {site!r} is cut after block {self.depths[client]} in this run; "
                    "take that one, or start a new run"
                )
        self.facts[site] = facts

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe as this federation plays it: a depth for each site, nothing that points into a file system."""
        assert self.depths is not None
        return recipe.replace(
            depths=",".join(map(str, self.depths if len(set(self.depths)) > 1 else self.depths[:1])),
            cohort=min(recipe.cohort, len(self.sites)),
            data_path="",
            pretrained="",
        )

    def sizes(self, present: Sequence[str] | None = None) -> tuple[int, ...]:
        """Training rows of each site; 0 for those that are unknown, or not present."""
        names = self.facts.keys() if present is None else present
        return tuple(self.facts[s].train if s in names and s in self.facts else 0 for s in self.sites)

    # --- a file

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @staticmethod
    def of(content: Mapping[str, Any]) -> Roster:
        """The inverse of `as_dict`."""
        plain = {k: None if content[k] is None else tuple(content[k]) for k in ("shape", "mean", "std", "depths")}
        facts = {site: Facts.read(f) for site, f in content["facts"].items()}
        return Roster(
            tuple(content["sites"]),
            facts,
            classes=content["classes"],
            secure_sums=content.get("secure_sums", False),
            **plain,
        )


@dataclass(frozen=True)
class Manifest:
    """What a site is told: the recipe, its number, how data are normalised, what the frozen weights hash to."""

    run: str
    recipe: str  # TOML
    sites: tuple[str, ...]
    client: int
    classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    frozen: str  # sha256
    secure_sums: bool = False  # are masks summed so that the server sees none of them?

    @staticmethod
    def read(info: Mapping[str, Any]) -> Manifest:
        """From JSON; EnrolmentError where it is not one."""
        try:
            client, sites = _whole(info["client"]), tuple(str(s) for s in _list(info["sites"], 10_000))
            if client >= len(sites):
                raise ValueError(client)
            return Manifest(
                str(info["run"]),
                str(info["recipe"]),
                sites,
                client,
                _whole(info["classes"], 1, 1 << 16),
                tuple(_whole(n, 1, 1 << 16) for n in _list(info["shape"], 4)),
                tuple(_number(v) for v in _list(info["mean"], 4096)),
                tuple(_number(v) for v in _list(info["std"], 4096)),
                str(info["frozen"]),
                _truth(info["secure_sums"]),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise EnrolmentError(f"the server's manifest cannot be read: {e!r}") from None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def moments(x: Array, rows: Ints) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and mean squared deviation per channel over some rows; bytes on the scale 0..1."""
    axes = (0, 2, 3) if x.ndim == 4 else (0, 1)
    own = x[rows].astype(np.float64) / (255.0 if x.dtype == np.uint8 else 1.0)
    return tuple(own.mean(axes).tolist()), tuple(own.var(axes).tolist())


def _pooled(facts: Sequence[Facts]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation over all sites' training rows; a constant channel has deviation 1."""
    counts = np.array([f.train for f in facts], dtype=np.float64)[:, None]
    means, squares = (np.array([getattr(f, name) for f in facts]) for name in ("mean", "squares"))
    mean = (counts * means).sum(0) / max(counts.sum(), 1.0)
    variance = (counts * (squares + (means - mean) ** 2)).sum(0) / max(counts.sum(), 1.0)
    std = np.sqrt(variance)
    std = np.where(std > 1e-12, std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _whole(value: Any, low: int = 0, high: int = 1 << 40) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} is no whole number in {low}..{high}")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= most:
        raise ValueError(f"a list of 1 to {most} entries is expected")
    return list(value)
