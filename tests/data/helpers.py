"""Small made-up data for the tests of pmsfl.data."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from pmsfl.data import Federation, load_federation

DEFAULTS: dict[str, Any] = {
    "partition": "iid",
    "clients": 4,
    "alpha": 0.5,
    "classes_per_client": 2,
    "shards_per_client": 2,
    "test_split": "matched",
    "test_fraction": 0.2,
    "min_samples": 1,
    "max_samples": None,
    "seed": 0,
}


def load(data: str, path: Path | str | None = None, **changes: Any) -> Federation:
    """Load with plain settings, apart from `changes`."""
    return load_federation(data, None if path is None else str(path), **{**DEFAULTS, **changes})


def write_cifar(folder: Path, *, train: int = 200, test: int = 40, classes: int = 4) -> Path:
    """Write the official layout with made-up images; return the cifar-100-python folder."""
    out = folder / "cifar-100-python"
    out.mkdir()
    rng = np.random.default_rng(0)
    for name, n in (("train", train), ("test", test)):
        content = {
            b"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8),
            b"fine_labels": [i % classes for i in range(n)],
        }
        (out / name).write_bytes(pickle.dumps(content, protocol=2))
    names = [f"class {c}".encode() for c in range(classes)]
    (out / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=2))
    return out


def leaf_file(users: dict[str, list[int]]) -> dict[str, Any]:
    """Return LEAF content: for each user the labels; the pixels of a row are all label / 100."""
    return {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": {
            user: {"x": [[label / 100] * 784 for label in labels], "y": labels} for user, labels in users.items()
        },
    }


def write_leaf(folder: Path, train: dict[str, list[int]], test: dict[str, list[int]] | None = None) -> Path:
    """Write a LEAF folder and return it."""
    for name, users in (("train", train), ("test", test)):
        if users is not None:
            (folder / name).mkdir()
            (folder / name / "all_data.json").write_text(json.dumps(leaf_file(users)))
    return folder


def write_npz(path: Path, **fields: Any) -> Path:
    """Write an .npz with x and y of 40 rows of 8x8 images in 4 classes, apart from `fields`."""
    rng = np.random.default_rng(1)
    base: dict[str, Any] = {"x": rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), "y": np.arange(40) % 4}
    np.savez(path, **{key: value for key, value in {**base, **fields}.items() if value is not None})
    return path
