"""What a table is made of: rows (federations), variants (methods and settings), and their product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from pmsfl.recipe import Recipe
from pmsfl.recipe_files import nearest, shipped
from pmsfl.report.console import UsageError

if TYPE_CHECKING:
    from pmsfl.paper.attacked import AttackPlan
    from pmsfl.paper.outcome import Outcome

SCALES = ("full", "half", "reduced", "quick")  # the order in which results are shown
CLIENTS, GLOBAL = "accuracy", "accuracy_global"  # what a row compares: the mean over clients, or the global model
SEEDS = {"quick": 1, "reduced": 2, "half": 2, "full": 3}  # unless told; the paper has three


@dataclass(frozen=True)
class Place:
    """A file or folder below --data, and what a recipe has to know besides its path."""

    path: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """What a row needs on disk: the first place that exists is taken.

    bring: how to come by it. remarks: by fingerprint (of samples, or of how they were dealt), what has to be said of
    figures on just this data.
    """

    places: tuple[Place, ...]
    bring: str
    remarks: Mapping[str, str] = field(default_factory=dict)

    def find(self, folder: Path) -> Place | None:
        """The place that is there; None where none is."""
        return next((p for p in self.places if (folder / p.path).exists()), None)


@dataclass(frozen=True)
class Row:
    """One federation: a recipe, its data, and what each scale changes (a scale that is not named leaves it out).

    published: the row of the paper's Table 1 that it stands beside, "" for none; remark: why its figures are of other
    data. note: what else a reader has to know. rates: by scale and variant, what a cell has instead of the row's: the
    best learning rate of an equal grid, or the settings that it was measured with. measure: the figure that its
    methods are compared by.
    """

    name: str
    recipe: str
    label: str
    scales: Mapping[str, tuple[str, ...]]
    data: Data | None = None
    published: str = ""
    remark: str = ""
    note: str = ""
    rates: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    measure: str = CLIENTS

    @property
    def measured(self) -> str:
        """What the row's figures are, for an axis."""
        return "accuracy, %" if self.measure == CLIENTS else "accuracy of the global model, %"


@dataclass(frozen=True)
class Variant:
    """What is played on a row: a method and settings, as `--only` spells it and as a reader knows it.

    like: the variant whose rates of a row it has, where that is not its own name.
    """

    name: str
    label: str
    changes: tuple[str, ...]
    like: str = ""


@dataclass(frozen=True)
class Planned:
    """One cell: a row, a variant, a scale and a seed."""

    row: Row
    variant: Variant
    scale: str
    seed: int

    @property
    def address(self) -> str:
        """'cifar100/pm-sfl', as --only and the display have it."""
        return f"{self.row.name}/{self.variant.name}"

    def overrides(self, data: Path) -> tuple[str, ...]:
        """Everything that is laid over the row's recipe, the variant's settings last."""
        name = self.row.name if self.scale == "full" else f"{self.row.name}-{self.scale}"
        words = [f"name={name}", *self.row.scales[self.scale]]
        if self.row.data is not None:
            place = self.row.data.find(data) or self.row.data.places[0]
            words += [*place.changes, f"data_path={data / place.path}"]
        rates = self.row.rates.get((self.scale, self.variant.like or self.variant.name), ())
        return (*words, *rates, *self.variant.changes, f"seed={self.seed}")

    def recipe(self, data: Path) -> Recipe:
        """The resolved recipe."""
        return Recipe.load(self.row.recipe, self.overrides(data))

    def plain_recipe(self, data: Path) -> Recipe:
        """The row's recipe at this scale, without the variant."""
        return replace(self, variant=Variant("", "", ())).recipe(data)


@dataclass(frozen=True)
class Table:
    """A table or figure of the evaluation.

    about: what the command line says of it. lines: its rows, each with its variants. write: makes the files of it and
    returns them. borrows: the table whose cells it shows; such a table plays what is missing only where --only asks.
    attacks: by scale, where a cell is not finished before its result was attacked. write_csv: the CSV alone, where it
    is not the usual one.
    """

    name: str
    title: str
    about: str
    lines: tuple[tuple[Row, tuple[Variant, ...]], ...]
    write: Callable[[Outcome], list[Path]]
    borrows: str = ""
    attacks: Mapping[str, AttackPlan] = field(default_factory=dict)
    write_csv: Callable[[Outcome], Path] | None = None

    @property
    def home(self) -> str:
        """The table under whose name its logs are kept."""
        return self.borrows or self.name

    def at(self, scale: str) -> list[tuple[Row, tuple[Variant, ...]]]:
        """The lines that this scale has."""
        return [(row, variants) for row, variants in self.lines if scale in row.scales]


def cells(table: Table, scale: str, seeds: int, only: Sequence[str] = ()) -> list[Planned]:
    """The cells of a table, seeds last; raises UsageError where a pattern of `only` matches none."""
    found = [
        Planned(row, variant, scale, seed)
        for row, variants in table.at(scale)
        for variant in variants
        for seed in range(seeds)
    ]
    if not only:
        return found
    patterns = [_whole(p) for p in only]
    for pattern in patterns:
        if not any(fnmatchcase(c.address, pattern) for c in found):
            hint = _hint(table, scale, pattern)
            raise UsageError(f"--only {pattern}: no such cell of {table.name} at scale {scale}; {hint}")
    return [c for c in found if any(fnmatchcase(c.address, p) for p in patterns)]


def _hint(table: Table, scale: str, pattern: str) -> str:
    """What somebody may have meant: a cell of another scale, a row or a method whose name is close."""
    others = scales_with(table, pattern)
    if others:
        return f"it has one at {' and '.join(others)}: --scale {others[0]}"
    methods = {row.name: [v.name for v in variants] for row, variants in table.at(scale)}
    row, _, method = pattern.partition("/")
    return nearest(method, methods[row]) if row in methods else nearest(row, methods)


def scales_with(table: Table, pattern: str) -> list[str]:
    """The scales at which a table has a cell of this name."""

    def has(scale: str) -> bool:
        return any(fnmatchcase(f"{r.name}/{v.name}", _whole(pattern)) for r, vs in table.at(scale) for v in vs)

    return [scale for scale in SCALES if has(scale)]


def _whole(pattern: str) -> str:
    """A row's name alone means all of its cells."""
    return pattern if "/" in pattern else f"{pattern}/*"


def unavailable(row: Row, data: Path) -> str | None:
    """Why a row cannot be played here: a recipe that does not come with this version, or data that is not there.

    Names no folder of this machine: tables say it, too.
    """
    if row.recipe not in shipped():
        return f"{row.name}: the recipe {row.recipe!r} does not come with this version of pmsfl"
    if row.data is None or row.data.find(data) is not None:
        return None
    return f"{row.name}: no {' or '.join(p.path for p in row.data.places)}; bring {row.data.bring}"


def missing_rows(chosen: Sequence[Planned], data: Path) -> Iterator[tuple[str, str]]:
    """Names of these cells' rows that cannot be played, with the reason."""
    for name, row in {c.row.name: c.row for c in chosen}.items():
        if why := unavailable(row, data):
            yield name, why
