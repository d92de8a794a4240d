"""A federation: one array of rows, and which client trains and tests on which of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pmsfl.data.source import Array, Ints
from pmsfl.errors import PmsflError


def _digest(about: str, arrays: Iterable[Array]) -> str:
    digest = hashlib.sha256(about.encode())
    for array in arrays:
        # dtype and shape first: otherwise rows could move from one array to the next unnoticed
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        # through a flat byte view: an empty array has no buffer that hashlib accepts
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Federation:
    """Rows, labels and the index arrays that give them to clients.

    Channels are axis 1 of images [n, C, H, W] and the last axis of sequences [n, T, F];
    `mean` and `std` have one entry per channel (x/255 scale for uint8, raw scale for floats).
    """

    name: str
    x: Array
    y: Ints
    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    global_test: Ints
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    owners: tuple[str, ...]
    global_test_is_official: bool
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None  # the label each class had in the file

    def __post_init__(self) -> None:
        _check_rows(self)
        _check_clients(self)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.train)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of training rows of each client."""
        return tuple(len(rows) for rows in self.train)

    def label_counts(self) -> Ints:
        """Return [clients, classes] int64: how many training rows of each class each client holds."""
        counts = [np.bincount(self.y[rows], minlength=self.classes) for rows in self.train]
        return np.stack(counts).astype(np.int64)

    def fingerprint(self) -> str:
        """Return a sha256 hex digest of x, y and every index array (to notice changed data on resume)."""
        return _digest(f"{self.clients} {self.classes}", (self.x, self.y, *self.train, *self.test, self.global_test))

    def samples_fingerprint(self) -> str:
        """Return a sha256 hex digest of x and y alone, whoever holds them: the same for every seed."""
        return _digest(f"{self.classes}", (self.x, self.y))

    def summary(self) -> dict[str, object]:
        """Return plain numbers and strings for display: sizes, classes per client, test rows, shape."""
        sizes = np.array(self.sizes)
        tests = np.array([len(rows) for rows in self.test])
        held = (self.label_counts() > 0).sum(axis=1)
        return {
            "name": self.name,
            "clients": self.clients,
            "classes": self.classes,
            "shape": "x".join(str(length) for length in self.x.shape[1:]),
            "train_rows": int(sizes.sum()),
            "test_rows": int(tests.sum()),
            "train_min": int(sizes.min()),
            "train_median": float(np.median(sizes)),
            "train_max": int(sizes.max()),
            "classes_per_client_min": int(held.min()),
            "classes_per_client_mean": float(held.mean()),
            "classes_per_client_max": int(held.max()),
            "clients_without_test": int((tests == 0).sum()),
            "global_test_rows": len(self.global_test),
            "global_test_is_official": self.global_test_is_official,
        }


def channels_of(x: Array) -> int:
    """Return the number of channels of images [n, C, H, W] or sequences [n, T, F]."""
    return int(x.shape[1] if x.ndim == 4 else x.shape[-1])


def channel_stats(x: Array, rows: Ints) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (mean, std) per channel over `rows`; x/255 scale for uint8. A constant channel has std 1."""
    axes = (0, 2, 3) if x.ndim == 4 else (0, 1)
    shape = (1, -1, 1, 1) if x.ndim == 4 else (1, 1, -1)
    chunks = [rows[i : i + 4096] for i in range(0, len(rows), 4096)]  # bounds the memory of float copies
    count = len(rows) * x[0].size / x.shape[1 if x.ndim == 4 else 2]
    mean = np.sum([x[chunk].sum(axis=axes, dtype=np.float64) for chunk in chunks], axis=0) / count
    # a second pass over deviations: the sum of squares would lose small spreads around a large mean
    centre = mean.reshape(shape)
    variance = np.sum([np.square(x[chunk] - centre).sum(axis=axes) for chunk in chunks], axis=0) / count
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    std = np.sqrt(variance) / scale
    std = np.where(std > 1e-12, std, 1.0)
    return tuple(float(m) for m in mean / scale), tuple(float(s) for s in std)


def _check_rows(fed: Federation) -> None:
    """Refuse rows and labels of a wrong shape, type or range."""
    x, y = fed.x, fed.y
    images = x.ndim == 4 and x.dtype in (np.uint8, np.float32)
    sequences = x.ndim == 3 and x.dtype == np.float32
    if not (images or sequences):
        raise PmsflError(
            f"x has shape {x.shape} and type {x.dtype}; allowed are images [n, C, H, W] of uint8 or float32 "
            "and sequences [n, T, F] of float32. Convert x first."
        )
    if y.shape != (len(x),) or y.dtype != np.int64:
        raise PmsflError(f"y has shape {y.shape} and type {y.dtype}; it must be int64 of shape ({len(x)},).")
    if len(y) and (y.min() < 0 or y.max() >= fed.classes):
        raise PmsflError(
            f"labels run from {y.min()} to {y.max()}; with classes = {fed.classes} they must lie in "
            f"0..{fed.classes - 1}. Renumber the labels or correct classes."
        )
    if x.dtype == np.float32 and not np.isfinite(x).all():
        raise PmsflError("x holds NaN or infinite values; every value must be finite. Clean the data first.")
    channels = channels_of(x)
    if len(fed.mean) != channels or len(fed.std) != channels:
        raise PmsflError(f"mean and std have {len(fed.mean)} and {len(fed.std)} entries; x has {channels} channels.")
    if not (np.isfinite(fed.mean).all() and np.isfinite(fed.std).all() and min(fed.std) > 0):
        raise PmsflError("mean and std must be finite, and every std above 0 (use 1.0 for a constant channel).")


def _check_clients(fed: Federation) -> None:
    """Refuse index arrays that do not fit the rows or that leak training rows into a client's own test."""
    if not fed.train:
        raise PmsflError("the federation has 0 clients; at least 1 is needed.")
    if not len(fed.train) == len(fed.test) == len(fed.owners):
        raise PmsflError(
            f"train, test and owners describe {len(fed.train)}, {len(fed.test)} and {len(fed.owners)} "
            "clients; the three must agree."
        )
    _check_indices("global_test", fed.global_test, len(fed.x))
    for k, (train, test) in enumerate(zip(fed.train, fed.test, strict=True)):
        _check_indices(f"train[{k}]", train, len(fed.x))
        _check_indices(f"test[{k}]", test, len(fed.x))
        shared = np.intersect1d(train, test)
        if len(shared):
            raise PmsflError(
                f"client {k} ({fed.owners[k]}) has {len(shared)} rows both in train and in test "
                f"(the first is row {shared[0]}); keep every row in only one of them."
            )


def _check_indices(key: str, rows: Ints, length: int) -> None:
    """Refuse index arrays of a wrong type, outside the data, or with a row named twice."""
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise PmsflError(f"{key} has shape {rows.shape} and type {rows.dtype}; it must be a flat int64 array.")
    if len(rows) and (rows.min() < 0 or rows.max() >= length):
        raise PmsflError(f"{key} names rows {rows.min()}..{rows.max()}; the data has rows 0..{length - 1}.")
    if len(np.unique(rows)) != len(rows):
        raise PmsflError(f"{key} names a row more than once; every row may appear once.")
