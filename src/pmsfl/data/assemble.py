"""From a source of rows to a federation: partition, cap, split off tests, collect what a user should know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pmsfl.data import partition as deal
from pmsfl.data.arrays import load_npz
from pmsfl.data.by_time import load_radar, split_by_time
from pmsfl.data.cifar import load_cifar10, load_cifar100
from pmsfl.data.federation import Federation, channel_stats
from pmsfl.data.leaf import load_leaf
from pmsfl.data.sensors import load_mmhar, load_sonichar
from pmsfl.data.source import Array, Ints, Source
from pmsfl.data.split import cap_rows, draw_matched, split_matched
from pmsfl.data.writers import load_digits
from pmsfl.errors import PmsflError

Parts = tuple[Ints, ...]

_FILE_LOADERS: dict[str, Callable[[str | Path], Source]] = {
    "cifar100": load_cifar100,
    "cifar10": load_cifar10,
    "leaf": load_leaf,
    "npz": load_npz,
    "mmhar": load_mmhar,
    "sonichar": load_sonichar,
    "radar": load_radar,
}
DATA_NAMES = ("digits", *_FILE_LOADERS)
PARTITIONS = ("iid", "dirichlet", "dirichlet-client", "pathological", "shards", "owner")
TEST_SPLITS = ("matched", "independent")

# an independent test partition must not repeat the training partition of this or a neighbouring seed
_TEST_SEED_STEP = 1_000_003


@dataclass(frozen=True)
class Plan:
    """The choices of one `load_federation` call."""

    partition: str
    clients: int
    alpha: float
    classes_per_client: int
    shards_per_client: int
    test_split: str
    test_fraction: float
    min_samples: int
    max_samples: int | None
    seed: int
    test_gap: int = 0


@dataclass(frozen=True)
class _Shares:
    """Who trains and tests on which rows."""

    train: Parts
    test: Parts
    owners: tuple[str, ...]
    official: Ints | None = None
    notes: tuple[str, ...] = ()


def load_source(data: str, data_path: str | None) -> Source:
    """Return the rows of the named data: the embedded digits, or files at `data_path`."""
    check_choice("data", data, DATA_NAMES)
    if data == "digits":
        if data_path:
            raise PmsflError(
                f"data_path = {data_path!r} is not used by data = 'digits', which is built in; leave "
                f"data_path out, or choose data from {', '.join(_FILE_LOADERS)}."
            )
        return load_digits()
    if not data_path:
        raise PmsflError(f"data = {data!r} needs data_path, the place of its files; set data_path.")
    return _FILE_LOADERS[data](data_path)


def check_choice(key: str, value: str, allowed: Sequence[str]) -> None:
    """Raise a PmsflError that lists `allowed` unless `value` is one of them."""
    if value not in allowed:
        raise PmsflError(f"{key} = {value!r} is not known; choose one of {', '.join(allowed)}.")


def check_plan(plan: Plan) -> None:
    """Refuse choices outside their range, before any file is read."""
    check_choice("partition", plan.partition, PARTITIONS)
    check_choice("test_split", plan.test_split, TEST_SPLITS)
    if not 0 < plan.test_fraction < 1:
        raise PmsflError(f"test_fraction = {plan.test_fraction}; use a number between 0 and 1, such as 0.2.")
    if plan.test_gap < 0:
        raise PmsflError(f"test_gap = {plan.test_gap}; use 0 or a positive whole number of windows.")
    if plan.seed < 0:
        raise PmsflError(f"seed = {plan.seed}; use 0 or a positive whole number.")
    if plan.min_samples < 1:
        raise PmsflError(f"min_samples = {plan.min_samples}; use 1 or more.")
    if plan.max_samples is not None and plan.max_samples < max(2, plan.min_samples):
        raise PmsflError(
            f"max_samples = {plan.max_samples}; use at least 2 (one row to train, one to test) and at least "
            f"min_samples = {plan.min_samples}, or leave it out for no limit."
        )
    if plan.clients < 0 or (plan.clients == 0 and plan.partition != "owner"):
        raise PmsflError(
            f"clients = {plan.clients or None} with partition = {plan.partition!r}; set clients to 1 or more "
            "(only partition = 'owner' can take as many clients as there are owners)."
        )


def assemble(source: Source, plan: Plan) -> Federation:
    """Return the federation that `plan` makes of `source`."""
    check_plan(plan)
    source = _split_in_time(source, plan)
    if plan.partition == "owner":
        shares = _share_by_owner(source, plan)
    elif source.is_test is not None:
        shares = _share_with_official_test(source, plan)
    else:
        shares = _share_without_test(source, plan)
    mean, std = channel_stats(source.x, np.concatenate(shares.train))
    official = shares.official is not None
    return Federation(
        name=source.name,
        x=source.x,
        y=source.y,
        train=shares.train,
        test=shares.test,
        global_test=np.unique(np.concatenate(shares.test)) if shares.official is None else shares.official,
        classes=source.classes,
        mean=mean,
        std=std,
        owners=shares.owners,
        global_test_is_official=official,
        notes=source.notes + shares.notes + _notes(source, shares),
        class_names=source.class_names,
    )


def _split_in_time(source: Source, plan: Plan) -> Source:
    """The source with its test rows marked, where it knows its recordings; a gap without them is an error."""
    if source.recording is not None:
        return split_by_time(source, plan.test_fraction, plan.test_gap)
    if plan.test_gap:
        raise PmsflError(
            f"test_gap = {plan.test_gap} is for windows of recordings (data = 'radar'), which {source.name!r} does not "
            "have; leave it at 0."
        )
    return source


def partition_rows(rows: Ints, source: Source, plan: Plan) -> Parts:
    """Return `rows` dealt to plan.clients clients by the plan's label partitioner."""
    labels, n, seed, least = source.y[rows], plan.clients, plan.seed, plan.min_samples
    if plan.partition == "iid":
        parts = deal.iid(labels, n, seed, min_samples=least)
    elif plan.partition == "dirichlet":
        parts = deal.dirichlet_by_class(labels, n, seed, alpha=plan.alpha, min_samples=least)
    elif plan.partition == "dirichlet-client":
        parts = deal.dirichlet_by_client(labels, n, seed, alpha=plan.alpha, min_samples=least)
    elif plan.partition == "pathological":
        k = plan.classes_per_client
        parts = deal.pathological(labels, n, seed, classes_per_client=k, min_samples=least)
    else:
        parts = deal.shards(labels, n, seed, shards_per_client=plan.shards_per_client, min_samples=least)
    return tuple(rows[part] for part in parts)


def _share_by_owner(source: Source, plan: Plan) -> _Shares:
    """Give each owner's rows to one client; the file's own test rows, where marked, are its tests."""
    if source.owner is None:
        raise PmsflError(
            f"partition = 'owner' needs rows with owners, which {source.name!r} does not have; "
            f"choose one of {', '.join(PARTITIONS[:-1])}."
        )
    if source.is_test is None:
        if plan.test_split == "independent":
            raise PmsflError(
                "test_split = 'independent' is not possible with partition = 'owner' for data without its "
                "own test rows: an owner's tests come from the owner. Use test_split = 'matched'."
            )
        parts = deal.by_owner(source.owner, clients=plan.clients, min_samples=plan.min_samples)
        names = tuple(str(source.owner[part[0]]) for part in parts)
        train, test = _cap_and_split(parts, source, plan)
    else:
        parts, train_only = _owners_with_training(source.owner, source.is_test, plan)
        names = tuple(str(source.owner[part[0]]) for part in parts)
        test_only = tuple(part[source.is_test[part]] for part in parts)
        train, test = _cap_together(train_only, test_only, source, plan)
    left_out = len(np.unique(source.owner)) - len(parts)
    notes = (f"{left_out} of {left_out + len(parts)} owners are left out.",) if left_out else ()
    return _Shares(train, test, names, notes=notes)


def _owners_with_training(owner: Array, is_test: Array, plan: Plan) -> tuple[Parts, Parts]:
    """Return (all rows, training rows) per kept owner; owners short of training rows cannot be clients."""
    ids, numbers = np.unique(owner, return_inverse=True)
    training = np.bincount(numbers, weights=~is_test, minlength=len(ids))
    able = np.flatnonzero((training >= plan.min_samples)[numbers])
    parts = deal.by_owner(owner[able], clients=plan.clients, min_samples=plan.min_samples)
    rows = tuple(able[part] for part in parts)
    return rows, tuple(part[~is_test[part]] for part in rows)


def _share_with_official_test(source: Source, plan: Plan) -> _Shares:
    """Deal the training rows; draw local tests from the official test rows."""
    assert source.is_test is not None
    rows, pool = np.flatnonzero(~source.is_test), np.flatnonzero(source.is_test)
    if not len(rows) or not len(pool):
        raise PmsflError(
            f"is_test marks {len(pool)} of {len(source.y)} rows; mark some rows but not all, or leave it out."
        )
    parts = partition_rows(rows, source, plan)
    if plan.test_split == "independent":
        train, test = _cap_together(parts, _partition_test(pool, source, plan), source, plan)
    else:
        # never above the official proportion: then a class has rows enough for any client
        ratio = min(len(pool) / len(rows), plan.test_fraction / (1 - plan.test_fraction))
        if plan.max_samples is not None:
            limit = max(1, int(plan.max_samples / (1 + ratio)))
            parts = cap_rows(parts, source.y, [limit] * len(parts), plan.seed)
        train, test = parts, draw_matched(parts, source.y, pool, ratio, plan.seed)
    return _Shares(train, test, _client_names(plan.clients), official=pool)


def _share_without_test(source: Source, plan: Plan) -> _Shares:
    """Deal all rows and split tests off per client, or (independent) hold tests out and deal them apart."""
    rows = np.arange(len(source.y), dtype=np.int64)
    if plan.test_split == "matched":
        train, test = _cap_and_split(partition_rows(rows, source, plan), source, plan)
    else:
        (kept,), (pool,) = split_matched((rows,), source.y, plan.test_fraction, plan.seed, order=source.window)
        parts = partition_rows(kept, source, plan)
        train, test = _cap_together(parts, _partition_test(pool, source, plan), source, plan)
    return _Shares(train, test, _client_names(plan.clients))


def _partition_test(pool: Ints, source: Source, plan: Plan) -> Parts:
    """Return the test rows dealt by the same partitioner with another seed."""
    least = 1 if len(pool) >= plan.clients else 0
    try:
        return partition_rows(pool, source, replace(plan, seed=plan.seed + _TEST_SEED_STEP, min_samples=least))
    except PmsflError as error:
        raise PmsflError(f"the {len(pool)} test rows cannot be dealt (test_split = 'independent'): {error}") from None


def _cap_and_split(parts: Parts, source: Source, plan: Plan) -> tuple[Parts, Parts]:
    if plan.max_samples is not None:
        parts = cap_rows(parts, source.y, [plan.max_samples] * len(parts), plan.seed)
    return split_matched(parts, source.y, plan.test_fraction, plan.seed, order=source.window)


def _cap_together(train: Parts, test: Parts, source: Source, plan: Plan) -> tuple[Parts, Parts]:
    """Cap each client's train and test rows together, keeping the proportion of the two."""
    if plan.max_samples is None:
        return train, test
    limits = []
    for a, b in zip(train, test, strict=True):
        share = round(plan.max_samples * len(a) / max(1, len(a) + len(b)))
        # both kinds survive the cap where the client has both
        limits.append(min(max(share, 1), plan.max_samples - (1 if len(b) else 0)))
    rest = [plan.max_samples - limit for limit in limits]
    kept = cap_rows(train, source.y, limits, plan.seed)
    return kept, cap_rows(test, source.y, rest, plan.seed + _TEST_SEED_STEP)


def _client_names(clients: int) -> tuple[str, ...]:
    width = len(str(clients - 1))
    return tuple(f"client-{k:0{width}d}" for k in range(clients))


def _notes(source: Source, shares: _Shares) -> tuple[str, ...]:
    """Return lines on what a user may not expect: clients and classes that go without."""
    notes = []
    for what, parts in (("training", shares.train), ("test", shares.test)):
        without = [name for name, part in zip(shares.owners, parts, strict=True) if not len(part)]
        if without:
            notes.append(f"{len(without)} of {len(parts)} clients have no {what} data: {_some(without)}.")
    held = np.bincount(source.y[np.concatenate(shares.train)], minlength=source.classes)
    missing = [str(c) for c in np.flatnonzero(held == 0)]
    if missing:
        notes.append(f"{len(missing)} of {source.classes} classes are in nobody's training data: {_some(missing)}.")
    if source.window is not None and source.is_test is None:
        notes.append("the field window orders rows in time: the last rows of a class are tests, not random ones.")
    return tuple(notes)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
