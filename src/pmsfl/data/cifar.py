"""CIFAR-100 and CIFAR-10 in their official Python layout, read without running pickled code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from pmsfl.data.source import Array, Source
from pmsfl.errors import PmsflError


def _encode_latin1(text: str, encoding: Any = "latin1") -> bytes:
    """Stand in for _codecs.encode, which old pickles use for raw bytes only."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not expected in a pickled array")
    return text.encode("latin1")


# the functions that numpy itself names in a pickled array (before and from protocol 5)
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_FROM_BUFFER = np.empty(0).__reduce_ex__(5)[0]
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("_codecs", "encode"): _encode_latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles plain containers and numpy arrays; any other name is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise PmsflError(
                f"the pickle asks for {module}.{name}; only numpy arrays and plain lists are read, so "
                "nothing was run. Use the original file from the CIFAR site."
            )
        return _ADMITTED[module, name]


def load_cifar100(path: str | Path) -> Source:
    """Return CIFAR-100 (fine labels) from `cifar-100-python` or its parent: x uint8 [n, 3, 32, 32]."""
    folder = _find_folder(Path(path), "cifar-100-python", "train")
    parts = [(_read(folder / name), folder / name) for name in ("train", "test")]
    names = _class_names(folder / "meta", b"fine_label_names")
    return _source("cifar100", parts, b"fine_labels", names)


def load_cifar10(path: str | Path) -> Source:
    """Return CIFAR-10 from `cifar-10-batches-py` or its parent: x uint8 [n, 3, 32, 32]."""
    folder = _find_folder(Path(path), "cifar-10-batches-py", "data_batch_1")
    files = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    parts = [(_read(folder / name), folder / name) for name in files]
    names = _class_names(folder / "batches.meta", b"label_names")
    return _source("cifar10", parts, b"labels", names)


def _find_folder(path: Path, official: str, first_file: str) -> Path:
    """Return the folder with the official files: `path` itself or the official folder in it."""
    for folder in (path, path / official):
        if (folder / first_file).is_file():
            return folder
    raise PmsflError(
        f"data_path = {path} has no file {first_file!r}, neither in it nor in {official}/ below it; "
        f"give the unpacked folder {official} (the 'python version' of the CIFAR archive)."
    )


def _read(path: Path) -> dict[Any, Any]:
    """Return the dictionary in an official pickle file."""
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise PmsflError(f"{path} is missing; unpack the CIFAR archive again.") from None
    except OSError as error:
        raise PmsflError(f"{path} cannot be read ({error.strerror}); check the file and its rights.") from None
    except PmsflError as error:
        raise PmsflError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise PmsflError(
            f"{path} is damaged or cut short ({type(error).__name__}: {error}); expected a pickled "
            "dictionary. Unpack or download it again."
        ) from None
    if not isinstance(content, dict):
        raise PmsflError(f"{path} holds a {type(content).__name__}; expected a dictionary as in CIFAR's files.")
    return content


def _rows(content: dict[Any, Any], label_key: bytes, classes: int, path: Path) -> tuple[Array, Array]:
    """Return (x uint8 [n, 3, 32, 32], y int64 [n]) of one file."""
    for key in (b"data", label_key):
        if key not in content:
            raise PmsflError(f"{path} has no entry {key.decode()!r}; expected 'data' and {label_key.decode()!r}.")
    x = content[b"data"]
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        found = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise PmsflError(f"{path}: 'data' is {found}; expected uint8 [n, 3072].")
    labels = content[label_key]
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise PmsflError(f"{path}: {label_key.decode()!r} must be a list of whole numbers.")
    if len(labels) != len(x):
        raise PmsflError(f"{path}: {len(x)} images but {len(labels)} labels; the two must agree.")
    wrong = [label for label in labels if not 0 <= label < classes]
    if wrong:
        raise PmsflError(f"{path}: label {wrong[0]}; with {classes} class names labels are 0..{classes - 1}.")
    return x.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def _class_names(path: Path, key: bytes) -> tuple[str, ...]:
    names = _read(path).get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, bytes | str) for name in names):
        raise PmsflError(f"{path} has no list {key.decode()!r} of class names; unpack the archive again.")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names)


def _source(name: str, parts: list[tuple[dict[Any, Any], Path]], label_key: bytes, names: tuple[str, ...]) -> Source:
    """Return all parts as one source; the last part is the official test set."""
    rows = [_rows(content, label_key, len(names), path) for content, path in parts]
    is_test = [np.full(len(y), i == len(rows) - 1) for i, (_, y) in enumerate(rows)]
    return Source(
        name=name,
        x=np.concatenate([x for x, _ in rows]),
        y=np.concatenate([y for _, y in rows]),
        classes=len(names),
        is_test=np.concatenate(is_test),
        class_names=names,
    )
