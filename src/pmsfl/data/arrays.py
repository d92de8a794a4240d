"""A user's own arrays in one .npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from pmsfl.data.source import Array, Ints, Source
from pmsfl.errors import PmsflError

OWNER_KEYS = ("owner", "writer", "person")


def load_npz(path: str | Path) -> Source:
    """Return the rows of an .npz with x, y and optionally owner (or writer, person), is_test, window.

    x: uint8 [n, H, W] becomes [n, 1, H, W]; float [n, T, F] stays a sequence; [n, C, H, W] is kept;
    [n, H, W, C] with C of 1, 3 or 4 below H and W becomes channels first. Floats become float32.
    Labels other than 0..C-1 are renumbered in their order, with a note.
    """
    fields = _read(Path(path))
    for key in ("x", "y"):
        if key not in fields:
            raise PmsflError(f"{path} has no field {key!r} (it has {sorted(fields)}); save it with x= and y=.")
    x, x_notes = _rows(fields["x"])
    y, names, y_notes = _labels(fields["y"])
    owner = next((fields[key] for key in OWNER_KEYS if key in fields), None)
    for key, values in (("y", y), ("owner", owner), *((k, fields.get(k)) for k in ("is_test", "window"))):
        if values is not None and values.shape != (len(x),):
            raise PmsflError(f"{key} has shape {values.shape}, but x has {len(x)} rows; save one {key} per row.")
    if owner is not None and owner.dtype.kind not in "iuUS":
        raise PmsflError(f"owner has type {owner.dtype}; use whole numbers or strings.")
    is_test = fields.get("is_test")
    return Source(
        name=Path(path).stem,
        x=x,
        y=y,
        classes=len(names),
        owner=np.char.decode(owner, "utf-8") if owner is not None and owner.dtype.kind == "S" else owner,
        is_test=None if is_test is None else _flags(is_test),
        class_names=names,
        window=_windows(fields["window"]) if "window" in fields else None,
        notes=x_notes + y_notes,
    )


def load_samples(path: str | Path) -> tuple[Array, Array | None]:
    """Return x as `load_npz` reads it, and y as it stands in the file (None without one): for prediction."""
    fields = _read(Path(path))
    if "x" not in fields:
        raise PmsflError(f"{path} has no field 'x' (it has {sorted(fields)}); save the samples with x=.")
    x, _ = _rows(fields["x"])
    y = fields.get("y")
    if y is not None and y.shape != (len(x),):
        raise PmsflError(f"y has shape {y.shape}, but x has {len(x)} rows; save one y per row.")
    return x, y


def _read(path: Path) -> dict[str, Array]:
    """Return every field of the file; pickled objects are refused."""
    if not path.is_file():
        raise PmsflError(f"{path} is not a file; give an .npz file with the field x (and y for training).")
    try:
        # opened here, because numpy leaves a file that is a broken archive open
        with path.open("rb") as file:
            saved = np.load(file, allow_pickle=False)
            if not isinstance(saved, np.lib.npyio.NpzFile):
                raise PmsflError(f"{path} holds a single array; save x and y together with numpy.savez.")
            return {key: saved[key] for key in saved.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise PmsflError(
            f"{path} cannot be read as an .npz of plain arrays ({error}); save it with numpy.savez, "
            "without object arrays."
        ) from None


def _rows(x: Array) -> tuple[Array, tuple[str, ...]]:
    """Return x as uint8 or float32 with channels first, and notes on what was changed."""
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):  # values beyond float32 become inf and are reported below
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise PmsflError("x holds NaN or infinite values; every value must be finite. Clean the data first.")
    elif x.dtype != np.uint8:
        raise PmsflError(f"x has type {x.dtype}; allowed are uint8 (images, 0..255) and floats. Convert it first.")
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise PmsflError(
            f"x has shape {x.shape}; allowed are [n, H, W], [n, C, H, W], [n, H, W, C] and, for floats, "
            "[n, T, F], with at least one row. Reshape it first."
        )
    if x.ndim == 3:
        return (x[:, None] if x.dtype == np.uint8 else x), ()
    if x.shape[3] in (1, 3, 4) and min(x.shape[1:3]) > x.shape[3]:
        note = f"x {list(x.shape)} was read as [n, H, W, C] and turned to channels first."
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), (note,)
    return x, ()


def _labels(y: Array) -> tuple[Ints, tuple[str, ...], tuple[str, ...]]:
    """Return (y int64 0..C-1, the label found for each class, notes)."""
    if y.ndim != 1 or y.dtype.kind not in "iufUS":
        raise PmsflError(f"y has shape {y.shape} and type {y.dtype}; use a flat array of whole numbers or strings.")
    if y.dtype.kind == "f":
        if not (np.isfinite(y).all() and (y == np.rint(y)).all()):
            raise PmsflError("y holds NaN or fractions; labels must be whole numbers or strings.")
        y = y.astype(np.int64)
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8")
    found, numbers = np.unique(y, return_inverse=True)
    names = tuple(str(label) for label in found)
    if found.dtype.kind != "U" and np.array_equal(found, np.arange(len(found))):
        return y.astype(np.int64), names, ()
    last = len(names) - 1
    note = f"labels {names[0]}..{names[-1]} ({len(names)} different) were renumbered 0..{last} in order."
    return numbers.astype(np.int64), names, (note,)


def _flags(is_test: Array) -> Array:
    if is_test.dtype.kind not in "biu" or not np.isin(is_test, (0, 1)).all():
        raise PmsflError(f"is_test has type {is_test.dtype}; use booleans, or 0 and 1.")
    return is_test.astype(np.bool_)


def _windows(window: Array) -> Ints:
    if window.dtype.kind not in "iu":
        raise PmsflError(f"window has type {window.dtype}; use whole numbers that count time.")
    return window.astype(np.int64)
