"""Official CIFAR files are read; files that would run code, or are damaged, are refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmsfl.data.cifar import load_cifar10, load_cifar100
from pmsfl.errors import PmsflError

from .helpers import write_cifar


def test_the_folder_and_its_parent_are_both_accepted(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path)
    for path in (folder, tmp_path):
        source = load_cifar100(path)
        assert source.x.shape == (240, 3, 32, 32)
        assert source.x.dtype == np.uint8
        assert source.is_test is not None
        assert source.is_test.sum() == 40
        assert source.class_names == ("class 0", "class 1", "class 2", "class 3")
        assert source.owner is None


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pixels_survive_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    folder = write_cifar(tmp_path)
    data = np.random.default_rng(5).integers(0, 256, (8, 3072), dtype=np.uint8)
    content = {b"data": data, b"fine_labels": [0, 1, 2, 3] * 2}
    (folder / "train").write_bytes(pickle.dumps(content, protocol=protocol))
    source = load_cifar100(folder)
    assert np.array_equal(source.x[:8].reshape(8, -1), data)
    assert source.y[:8].tolist() == [0, 1, 2, 3] * 2


def test_files_written_by_old_numpy_are_read(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path)
    content = (folder / "train").read_bytes()
    assert b"numpy._core.multiarray" in content
    (folder / "train").write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert len(load_cifar100(folder).y) == 240


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


class MaliciousCall:
    """Runs open(..., "w") when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> Any:
        return (open, (self.target, "w"))


@pytest.mark.parametrize("attack", [Malicious, MaliciousCall])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_pickled_code_is_refused_and_never_runs(tmp_path: Path, attack: Any) -> None:
    folder = write_cifar(tmp_path)
    target = tmp_path / "created-by-pickle"
    content = pickle.dumps({b"data": attack(target), b"fine_labels": []})
    pickle.loads(content)
    assert target.exists(), "the attack must work on a plain unpickler, or this test shows nothing"
    target.unlink()
    (folder / "train").write_bytes(content)
    with pytest.raises(PmsflError, match=r"train: the pickle asks for .*nothing was run"):
        load_cifar100(folder)
    assert not target.exists()


def test_other_codecs_than_latin1_are_refused(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path)
    (folder / "train").write_bytes(b"c_codecs\nencode\n(Vabc\nVrot13\ntR.")
    with pytest.raises(PmsflError, match="rot13"):
        load_cifar100(folder)


@pytest.mark.parametrize("keep", [0, 1, 100, 5000])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    folder = write_cifar(tmp_path)
    content = (folder / "test").read_bytes()
    (folder / "test").write_bytes(content[:keep])
    with pytest.raises(PmsflError, match=r"cifar-100-python/test is damaged or cut short"):
        load_cifar100(folder)


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_cifar(tmp_path)
    (folder / name).unlink()
    with pytest.raises(PmsflError, match=name):
        load_cifar100(folder)


DATA = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list"),
        ({b"data": DATA}, "no entry 'fine_labels'"),
        ({b"fine_labels": [0, 1]}, "no entry 'data'"),
        ({b"data": DATA[:, :9], b"fine_labels": [0, 1]}, r"uint8 \(2, 9\); expected uint8 \[n, 3072\]"),
        ({b"data": [1], b"fine_labels": [0]}, "'data' is list"),
        ({b"data": DATA, b"fine_labels": [0]}, "2 images but 1 labels"),
        ({b"data": DATA, b"fine_labels": [0, 4]}, "label 4"),
        ({b"data": DATA, b"fine_labels": [0, "1"]}, "whole numbers"),
    ],
)
def test_unexpected_content_is_explained(tmp_path: Path, content: Any, message: str) -> None:
    folder = write_cifar(tmp_path)
    (folder / "train").write_bytes(pickle.dumps(content))
    with pytest.raises(PmsflError, match=message):
        load_cifar100(folder)


def test_the_cifar10_layout_is_read(tmp_path: Path) -> None:
    for i, name in enumerate([*(f"data_batch_{j}" for j in range(1, 6)), "test_batch"]):
        content = {b"data": np.full((4, 3072), i, np.uint8), b"labels": [0, 1, 0, 1]}
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"cat", b"dog"]}))
    source = load_cifar10(tmp_path)
    assert source.x[:, 0, 0, 0].tolist() == np.repeat(np.arange(6), 4).tolist()
    assert source.is_test is not None
    assert np.flatnonzero(source.is_test).tolist() == [20, 21, 22, 23]
    assert source.classes == 2
