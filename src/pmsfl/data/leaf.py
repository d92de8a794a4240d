"""LEAF json by writer, such as FEMNIST: train/*.json and, optionally, test/*.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pmsfl.data.source import Array, Source
from pmsfl.errors import PmsflError

SIDE = 28
MAX_LABEL = 9999  # a stray number must not become a million classes


def load_leaf(path: str | Path) -> Source:
    """Return a LEAF folder's rows: x uint8 [n, 1, 28, 28], owner = user name, is_test by folder.

    Pixels are stored as round(value * 255), so white paper (1.0) is 255. Without a test folder, is_test is
    None. Classes are counted up to the largest label found.
    """
    root = Path(path)
    if not (root / "train").is_dir() and (root / "data" / "train").is_dir():
        root = root / "data"
    if not (root / "train").is_dir():
        raise PmsflError(
            f"data_path = {path} has no folder 'train'; give the folder that holds train/*.json (and test/*.json)."
        )
    has_test = (root / "test").is_dir()
    xs: list[Array] = []
    ys: list[Array] = []
    owners: list[str] = []
    is_test: list[bool] = []
    for folder in ("train", "test") if has_test else ("train",):
        for file in _json_files(root / folder):
            for user, x, y in _users(file):
                xs.append(x)
                ys.append(y)
                owners += [user] * len(y)
                is_test += [folder == "test"] * len(y)
    if not owners:
        raise PmsflError(f"data_path = {path} holds no samples; the json files list no user with data.")
    y = np.concatenate(ys)
    return Source(
        name="leaf",
        x=np.concatenate(xs),
        y=y,
        classes=int(y.max()) + 1,
        owner=np.array(owners),
        is_test=np.array(is_test) if has_test else None,
    )


def _json_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise PmsflError(f"{folder} holds no .json file; run LEAF's preprocessing, or correct data_path.")
    return files


def _users(path: Path) -> list[tuple[str, Array, Array]]:
    """Return (user, x uint8 [m, 1, 28, 28], y int64 [m]) for every user in one file."""
    content = _read(path)
    users, counts, data = content["users"], content["num_samples"], content["user_data"]
    if len(users) != len(counts):
        raise PmsflError(f"{path}: {len(users)} users but {len(counts)} num_samples; the two must agree.")
    found = []
    for user, count in zip(users, counts, strict=True):
        entry = data.get(str(user))
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), list) for key in "xy"):
            raise PmsflError(f"{path}: user {user!r} has no user_data with lists 'x' and 'y'; the file is incomplete.")
        where = f"{path}: user {user!r}"
        if not len(entry["x"]) == len(entry["y"]) == count:
            raise PmsflError(
                f"{where} has {len(entry['x'])} x, {len(entry['y'])} y and num_samples {count}; the three must agree."
            )
        if count:
            found.append((str(user), _pixels(entry["x"], where), _labels(entry["y"], where)))
    return found


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a LEAF file with its three keys checked."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PmsflError(f"{path} is not valid json ({error}); the file is damaged or cut short.") from None
    except OSError as error:
        raise PmsflError(f"{path} cannot be read ({error.strerror}); check the file and its rights.") from None
    for key, kind in (("users", list), ("num_samples", list), ("user_data", dict)):
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise PmsflError(f"{path} has no {kind.__name__} {key!r}; LEAF files have users, num_samples, user_data.")
    assert isinstance(content, dict)
    return content


def _pixels(rows: Any, where: str) -> Array:
    try:
        x = np.asarray(rows, np.float64)
    except (ValueError, TypeError):
        raise PmsflError(f"{where}: x has rows of different lengths or values that are no numbers.") from None
    if x.ndim != 2 or x.shape[1] != SIDE * SIDE:
        raise PmsflError(f"{where}: x has shape {x.shape}; expected rows of {SIDE * SIDE} pixels.")
    if not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
        raise PmsflError(f"{where}: pixels run from {x.min()} to {x.max()}; they must lie in 0..1.")
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)


def _labels(values: Any, where: str) -> Array:
    wrong = [value for value in values if not _is_label(value)]
    if wrong:
        raise PmsflError(f"{where}: label {wrong[0]!r}; labels are whole numbers 0..{MAX_LABEL}.")
    return np.array(values, np.int64)


def _is_label(value: Any) -> bool:
    """Return whether a json value is a whole number that can be a class (1.0 is, true is not)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= MAX_LABEL and float(value).is_integer()
