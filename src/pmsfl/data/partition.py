"""Ways to deal labelled rows to clients.

Every partitioner is a deterministic function of its arguments and returns a tuple of sorted, disjoint int64
index arrays, one per client. They cover all rows, except `pathological` when clients * classes_per_client is
below the number of classes (rows of classes nobody holds stay out) and `by_owner` when it leaves owners out.
"""

from __future__ import annotations

import math

import numpy as np

from pmsfl.data.source import Array, Ints
from pmsfl.data.split import split_matched
from pmsfl.errors import PmsflError

__all__ = [
    "by_owner",
    "dirichlet_by_class",
    "dirichlet_by_client",
    "iid",
    "pathological",
    "shards",
    "split_matched",
]

Parts = tuple[Ints, ...]

# one random stream per partitioner
_IID, _BY_CLASS, _BY_CLIENT, _PATHOLOGICAL, _SHARDS = 1, 2, 3, 4, 5


def iid(labels: Array, clients: int, seed: int, *, min_samples: int = 1) -> Parts:
    """Deal all rows at random; client sizes differ by at most one."""
    _check(labels, clients, seed, min_samples)
    order = np.random.default_rng([seed, _IID]).permutation(len(labels))
    return _sorted(np.array_split(order, clients))


def dirichlet_by_class(labels: Array, clients: int, seed: int, *, alpha: float, min_samples: int = 1) -> Parts:
    """For each class, share its rows among the clients in proportions drawn from Dir(alpha).

    Sizes differ between clients; clients below `min_samples` get rows of the largest clients.
    """
    _check(labels, clients, seed, min_samples)
    _check_alpha(alpha)
    rng = np.random.default_rng([seed, _BY_CLASS])
    holder = np.empty(len(labels), np.int64)
    for c in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == c))
        shares = _dirichlet(rng, alpha, 1, clients)[0]
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for k, piece in enumerate(np.split(rows, cuts)):
            holder[piece] = k
    return _repair(_groups(holder, clients), min_samples, rng)


def dirichlet_by_client(labels: Array, clients: int, seed: int, *, alpha: float, min_samples: int = 1) -> Parts:
    """Give each client its own class mixture ~ Dir(alpha); client sizes differ by at most one.

    Rows are taken in rounds, one row per client and round; a client whose preferred classes are used up
    takes from what is left, so the last rounds follow the mixtures less closely.
    """
    _check(labels, clients, seed, min_samples)
    _check_alpha(alpha)
    rng = np.random.default_rng([seed, _BY_CLIENT])
    names, numbers = np.unique(labels, return_inverse=True)
    counts = np.bincount(numbers, minlength=len(names)).astype(np.int64)
    # rows of class c, shuffled, stand at by_class[start[c] : start[c] + counts[c]]
    by_class = np.lexsort((rng.random(len(labels)), numbers))
    start, used = np.cumsum(counts) - counts, np.zeros_like(counts)
    mixtures = _dirichlet(rng, alpha, clients, len(names)) if len(names) else np.empty((clients, 0))
    holder = np.empty(len(labels), np.int64)
    left = len(labels)
    while left:
        waiting = rng.permutation(clients)[:left]
        left -= len(waiting)
        while len(waiting):
            picks = _pick(mixtures[waiting], counts - used, rng)
            rank = _rank_among_equals(picks)
            served = used[picks] + rank < counts[picks]
            holder[by_class[(start[picks] + used[picks] + rank)[served]]] = waiting[served]
            used += np.bincount(picks[served], minlength=len(names))
            waiting = waiting[~served]
    return _groups(holder, clients)


def pathological(labels: Array, clients: int, seed: int, *, classes_per_client: int, min_samples: int = 1) -> Parts:
    """Give each client rows of exactly `classes_per_client` classes; classes have about as many holders.

    The rows of a class are shared evenly by its holders. With clients * classes_per_client below the number
    of classes, the rows of the classes nobody holds are in no array.
    """
    _check(labels, clients, seed, min_samples)
    rng = np.random.default_rng([seed, _PATHOLOGICAL])
    names, counts = np.unique(labels, return_counts=True)
    if not 1 <= classes_per_client <= len(names):
        raise PmsflError(
            f"classes_per_client = {classes_per_client}, but the data has {len(names)} classes; "
            f"choose 1 to {len(names)}."
        )
    holders = _holders_per_class(np.minimum(counts, clients), clients * classes_per_client, rng)
    holder = np.full(len(labels), -1, np.int64)
    members: list[list[int]] = [[] for _ in names]
    for k in range(clients):
        # taking the classes with most holders still to find always leaves enough for the clients after
        for c in np.lexsort((rng.random(len(names)), -holders))[:classes_per_client]:
            holders[c] -= 1
            members[c].append(k)
    for c, ks in enumerate(members):
        rows = rng.permutation(np.flatnonzero(labels == names[c]))
        for k, piece in zip(ks, np.array_split(rows, max(1, len(ks))), strict=False):
            holder[piece] = k
    return _repair_within_classes(_groups(holder, clients), labels, min_samples)


def shards(labels: Array, clients: int, seed: int, *, shards_per_client: int, min_samples: int = 1) -> Parts:
    """Sort rows by label, cut them into clients * shards_per_client equal shards, deal these at random."""
    _check(labels, clients, seed, min_samples)
    total = clients * shards_per_client
    if shards_per_client < 1 or total > len(labels):
        raise PmsflError(
            f"shards_per_client = {shards_per_client} with {clients} clients makes {total} shards of "
            f"{len(labels)} rows; allowed are 1 to {len(labels) // clients} shards per client."
        )
    rng = np.random.default_rng([seed, _SHARDS])
    cut = np.array_split(np.lexsort((rng.random(len(labels)), labels)), total)
    dealt = rng.permutation(total).reshape(clients, shards_per_client)
    parts = _sorted([np.concatenate([cut[s] for s in hand]) for hand in dealt])
    return _repair(parts, min_samples, rng)


def by_owner(owner: Array, *, clients: int | None = None, min_samples: int = 1) -> Parts:
    """Return the rows of each owner, ordered by owner id.

    Owners with fewer than `min_samples` rows are left out; `clients` keeps the that many largest
    (ties: the smaller id), None or 0 keeps all.
    """
    ids, numbers, counts = np.unique(owner, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(counts >= max(1, min_samples))
    if not len(enough) or (clients or 0) > len(enough):
        raise PmsflError(
            f"clients = {clients or 'all'}, but {len(enough)} of {len(ids)} owners have at least "
            f"{max(1, min_samples)} samples; ask for fewer clients or lower min_samples."
        )
    largest = enough[np.argsort(-counts[enough], kind="stable")]
    kept = np.sort(largest[:clients] if clients else largest)
    rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])
    return tuple(rows[i].astype(np.int64) for i in kept)


def _check(labels: Array, clients: int, seed: int, min_samples: int) -> None:
    """Refuse numbers that no partition can meet."""
    if clients < 1:
        raise PmsflError(f"clients = {clients}; at least 1 is needed.")
    if seed < 0:
        raise PmsflError(f"seed = {seed}; use 0 or a positive whole number.")
    if min_samples < 0:
        raise PmsflError(f"min_samples = {min_samples}; use 0 or a positive whole number.")
    if len(labels) < clients * min_samples:
        raise PmsflError(
            f"min_samples = {min_samples} for {clients} clients needs {clients * min_samples} rows, but "
            f"there are {len(labels)}; lower clients or min_samples."
        )


def _check_alpha(alpha: float) -> None:
    if not (math.isfinite(alpha) and alpha > 0):
        raise PmsflError(f"alpha = {alpha}; use a positive number, such as 0.1 (skewed) or 100 (even).")


def _dirichlet(rng: np.random.Generator, alpha: float, rows: int, columns: int) -> Array:
    """Return [rows, columns] draws of Dir(alpha); a draw that underflows is its limit, one single class."""
    # above 1e6 the shares are equal for every purpose, while the generator overflows
    draws = rng.dirichlet(np.full(columns, min(alpha, 1e6)), size=rows)
    broken = ~np.isclose(draws.sum(axis=1), 1.0)
    draws[broken] = np.eye(columns)[rng.integers(columns, size=int(broken.sum()))]
    return draws


def _pick(mixtures: Array, remaining: Ints, rng: np.random.Generator) -> Ints:
    """Return a class with rows remaining for each row of `mixtures`, drawn by that row's weights."""
    # the tiny second term decides only for a client whose own classes are all used up
    weights = mixtures * (remaining > 0) + 1e-12 * remaining / remaining.sum()
    bounds = np.cumsum(weights, axis=1)
    points = rng.random(len(mixtures)) * bounds[:, -1]
    picks: Ints = np.argmax(bounds > points[:, None], axis=1).astype(np.int64)
    return picks


def _rank_among_equals(picks: Ints) -> Ints:
    """Return for each entry how many equal entries stand before it."""
    order = np.argsort(picks, kind="stable")
    _, first, counts = np.unique(picks[order], return_index=True, return_counts=True)
    rank = np.empty_like(picks)
    rank[order] = np.arange(len(picks)) - np.repeat(first, counts)
    return rank


def _holders_per_class(most: Ints, total: int, rng: np.random.Generator) -> Ints:
    """Return how many clients hold each class: as equal as `most` (per class) allows, summing to `total`."""
    if most.sum() < total:
        raise PmsflError(
            f"classes_per_client asks for {total} (client, class) pairs with at least one row each, but the "
            f"data has rows for {most.sum()}; lower classes_per_client or clients."
        )
    holders = np.zeros(len(most), np.int64)
    while (missing := total - int(holders.sum())) > 0:
        open_classes = rng.permutation(np.flatnonzero(holders < most))
        holders[open_classes[:missing]] += 1
    return holders


def _groups(holder: Ints, clients: int) -> Parts:
    """Return each client's rows, from the client number of each row (-1: nobody's)."""
    order = np.argsort(holder, kind="stable").astype(np.int64)
    bounds = np.searchsorted(holder[order], np.arange(clients + 1))
    return tuple(order[bounds[k] : bounds[k + 1]] for k in range(clients))


def _sorted(parts: list[Array]) -> Parts:
    return tuple(np.sort(part).astype(np.int64) for part in parts)


def _repair(parts: Parts, min_samples: int, rng: np.random.Generator) -> Parts:
    """Move rows, one by one, from the largest client to the smallest until all have `min_samples`."""
    held = [list(rng.permutation(part)) for part in parts]
    sizes = np.array([len(rows) for rows in held])
    while sizes.min() < min_samples:
        giver, taker = int(sizes.argmax()), int(sizes.argmin())
        held[taker].append(held[giver].pop())
        sizes[giver] -= 1
        sizes[taker] += 1
    return _sorted([np.array(rows, np.int64) for rows in held])


def _repair_within_classes(parts: Parts, labels: Array, min_samples: int) -> Parts:
    """Meet `min_samples` by moving rows only between clients that hold the same class (k stays exact)."""
    held = [part.copy() for part in parts]
    for k in range(len(held)):
        while len(held[k]) < min_samples:
            giver, row = _spare_row(held, labels, k, min_samples)
            held[giver] = held[giver][held[giver] != row]
            held[k] = np.append(held[k], row)
    return _sorted(list(held))


def _spare_row(held: list[Ints], labels: Array, taker: int, min_samples: int) -> tuple[int, int]:
    """Return (client, row) of a row the largest possible client can spare for `taker`."""
    wanted = np.unique(labels[held[taker]])
    for giver in sorted(range(len(held)), key=lambda k: (-len(held[k]), k)):
        if giver == taker or len(held[giver]) <= min_samples:
            continue
        names, first, counts = np.unique(labels[held[giver]], return_index=True, return_counts=True)
        usable = np.isin(names, wanted) & (counts > 1)
        if usable.any():
            return giver, int(held[giver][first[np.argmax(np.where(usable, counts, 0))]])
    raise PmsflError(
        f"min_samples = {min_samples} cannot be met: client {taker} has {len(held[taker])} rows and no other "
        "holder of its classes can spare any; lower min_samples or clients, or raise classes_per_client."
    )
