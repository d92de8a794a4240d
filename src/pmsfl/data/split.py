"""Drawing rows so that label proportions are kept: local tests, caps, and official tests matched to clients.

Every function is deterministic in its seed; each client has its own random stream, so that changing one
client's rows does not change another's draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pmsfl.data.source import Array, Ints

# one stream per purpose, so that the same seed never gives correlated draws
_SPLIT, _CAP, _OFFICIAL = 101, 102, 103


def apportion(counts: Ints, total: int, rng: np.random.Generator) -> Ints:
    """Return [len(counts)] int64 summing to `total`, proportional to `counts` (largest remainders).

    Equal remainders are settled at random: a fixed order would favour the first classes in every client.
    With total <= counts.sum() no entry exceeds its count.
    """
    whole = int(counts.sum())
    if whole == 0 or total <= 0:
        return np.zeros_like(counts)
    quotas, remainders = np.divmod(counts * total, whole)
    order = np.lexsort((rng.random(len(counts)), -remainders))
    quotas[order[: total - int(quotas.sum())]] += 1
    return quotas.astype(np.int64)


def _take(rows: Ints, labels: Array, quotas: Ints, rng: np.random.Generator, order: Array | None) -> Ints:
    """Return quotas[c] of the rows of each class c: at random, or the last ones by `order`. Sorted."""
    keys = rng.random(len(rows)) if order is None else -order[rows]
    ranked = rows[np.lexsort((rng.random(len(rows)), keys))]
    taken = [ranked[labels[ranked] == c][: quotas[c]] for c in np.flatnonzero(quotas)]
    return np.sort(np.concatenate(taken)) if taken else np.empty(0, np.int64)


def _counts(rows: Ints, labels: Array, classes: int) -> Ints:
    return np.bincount(labels[rows], minlength=classes).astype(np.int64)


def _class_count(labels: Array) -> int:
    return int(labels.max()) + 1 if len(labels) else 0


def _test_quotas(counts: Ints, test_fraction: float, rng: np.random.Generator) -> Ints:
    """Return how many test rows each class gives; a class keeps a training row wherever that is possible."""
    total = int(counts.sum())
    if total < 2:
        return np.zeros_like(counts)
    wanted = min(max(1, round(test_fraction * total)), total - 1)
    spare = np.maximum(counts - 1, 0)
    quotas = np.minimum(apportion(counts, wanted, rng), spare)
    # what single-row classes could not give comes from classes with rows to spare, and only then from them
    room = spare - quotas
    quotas = quotas + apportion(room, min(wanted - int(quotas.sum()), int(room.sum())), rng)
    return quotas + apportion(counts - quotas, wanted - int(quotas.sum()), rng)


def split_matched(
    parts: Sequence[Ints],
    labels: Array,
    test_fraction: float,
    seed: int,
    *,
    order: Array | None = None,
) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
    """Split each client's rows into (train, test), two tuples of sorted index arrays, one per client.

    Stratified by class as far as possible, so that local test labels match local training labels.
    A client with fewer than two rows gets no test data; others get at least one row of each kind.
    With `order` ([n], e.g. time) the test rows of a class are its last ones instead of random ones.
    """
    classes = _class_count(labels)
    train, test = [], []
    for k, part in enumerate(parts):
        rng = np.random.default_rng([seed, _SPLIT, k])
        rows = np.asarray(part, np.int64)
        quotas = _test_quotas(_counts(rows, labels, classes), test_fraction, rng)
        held_out = _take(rows, labels, quotas, rng, order)
        train.append(np.setdiff1d(rows, held_out))
        test.append(held_out)
    return tuple(train), tuple(test)


def draw_matched(parts: Sequence[Ints], labels: Array, pool: Ints, ratio: float, seed: int) -> tuple[Ints, ...]:
    """Return per client about ratio * n_k rows of the test rows `pool`, in the client's label proportions.

    Drawn without replacement within a client; two clients may share rows, because an official test set has
    too few rows of a class to give every client its own. A client with training rows gets at least one row;
    a class of which `pool` has too few rows gives all it has.
    """
    classes = _class_count(labels)
    available = _counts(pool, labels, classes)
    drawn = []
    for k, part in enumerate(parts):
        rng = np.random.default_rng([seed, _OFFICIAL, k])
        counts = _counts(part, labels, classes)
        wanted = max(1, round(ratio * len(part))) if len(part) else 0
        quotas = np.minimum(apportion(counts, wanted, rng), available)
        drawn.append(_take(pool, labels, quotas, rng, None))
    return tuple(drawn)


def cap_rows(parts: Sequence[Ints], labels: Array, limits: Sequence[int], seed: int) -> tuple[Ints, ...]:
    """Return each client's rows, cut to at most limits[k] of them with label proportions kept. Sorted."""
    classes = _class_count(labels)
    kept = []
    for k, (part, limit) in enumerate(zip(parts, limits, strict=True)):
        if len(part) <= limit:
            kept.append(np.sort(part))
            continue
        rng = np.random.default_rng([seed, _CAP, k])
        quotas = apportion(_counts(part, labels, classes), limit, rng)
        kept.append(_take(part, labels, quotas, rng, None))
    return tuple(kept)
