"""The safetensors layout by hand, against the library, and files that are not what they should be."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from pmsfl.tensorfile import TensorFileError, read_tensors, write_tensors

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool]


def some() -> dict[str, Tensor]:
    base = torch.arange(6).reshape(2, 3) - 2
    out = {str(d): base.to(d) if d != torch.uint8 else base.abs().to(d) for d in DTYPES}
    out |= {"scalar": torch.tensor(7), "empty": torch.zeros(0, 4), "strided": torch.arange(6.0).reshape(2, 3).T}
    out["special"] = torch.tensor([float("nan"), float("inf"), -0.0])
    return out


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_tensors(file, some(), {"note": "ü"})
    assert_equal(load_file(file), some())
    with safe_open(file, "pt") as f:
        metadata = f.metadata()
    assert int(metadata.pop("crc32")) > 0
    assert metadata == {"note": "ü"}


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    tensors = {n: t.contiguous() for n, t in some().items()}
    save_file(tensors, file, {"note": "ü"})
    found, metadata = read_tensors(file)
    assert_equal(found, tensors)
    assert metadata == {"note": "ü"}


def test_a_file_without_metadata_or_tensors_is_fine(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"x": torch.ones(1)}, file)
    assert read_tensors(file)[1] == {}
    write_tensors(file, {}, {})
    assert read_tensors(file) == ({}, {})


def test_what_is_read_can_be_written_to(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_tensors(file, {"x": torch.ones(3)}, {})
    found, _ = read_tensors(file)
    found["x"] += 1
    assert found["x"].tolist() == [2.0, 2.0, 2.0]


# --- files that are not what they should be


def with_header(header: object, body: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + body


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BAD = {
    "nothing": b"",
    "seven bytes": b"\0" * 7,
    "a header longer than the file": struct.pack("<Q", 50) + b"{}",
    "a header longer than the world": struct.pack("<Q", 2**63) + b"{}",
    "no json": with_header(b"{not json}"),
    "no text": with_header(b"\xff\xfe\xfd"),
    "a list": with_header([1, 2]),
    "a number": with_header(3),
    "deep nesting": with_header(b"[" * 100_000),
    "an entry that is no entry": with_header({"x": [1, 2]}),
    "no dtype": with_header({"x": {"shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8),
    "an unknown dtype": with_header(entry(dtype="F12"), b"\0" * 8),
    "missing bytes": with_header(entry(), b"\0" * 7),
    "too few bytes for the shape": with_header(entry(shape=[3]), b"\0" * 8),
    "a negative size": with_header(entry(shape=[-2]), b"\0" * 8),
    "offsets backwards": with_header(entry(offsets=[8, 0]), b"\0" * 8),
    "three offsets": with_header(entry(offsets=[0, 8, 9]), b"\0" * 9),
    "a shape that is no list": with_header(entry(shape=2), b"\0" * 8),
    "a shape of words": with_header(entry(shape=["two"]), b"\0" * 8),
    "a shape beyond 64 bits": with_header(entry(shape=[2**70], offsets=[0, 0])),
    "a shape whose size wraps to nothing": with_header(entry(shape=[2**32, 2**32], offsets=[0, 0])),
    "an endless shape": with_header(b'{"x":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,0]}}'),
    "metadata that is no mapping": with_header({"__metadata__": [1]}),
}


@pytest.mark.parametrize("what", BAD)
def test_a_damaged_file_is_named_and_refused(what: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.safetensors"
    file.write_bytes(BAD[what])
    with pytest.raises(TensorFileError, match=r"bad\.safetensors"):
        read_tensors(file)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_tensors(file, {"x": torch.arange(4.0), "y": torch.ones(2, dtype=torch.bool)}, {"k": "v"})
    whole = file.read_bytes()
    for n in range(len(whole)):
        file.write_bytes(whole[:n])
        with pytest.raises(TensorFileError):
            read_tensors(file)


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=150)
def test_garbage_is_refused_or_read_but_never_crashes(garbage: bytes) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "g.safetensors"
        file.write_bytes(with_header(garbage))
        try:
            tensors, _ = read_tensors(file)
        except TensorFileError:
            return
        assert tensors == {}  # b"{}" is a file without tensors
        assert isinstance(json.loads(garbage), dict)


def test_an_empty_file_is_one(tmp_path: Path) -> None:
    file = tmp_path / "e.safetensors"
    file.write_bytes(with_header(b"{}"))
    assert read_tensors(file) == ({}, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match=r"nothing\.safetensors: No such file"):
        read_tensors(tmp_path / "nothing.safetensors")


# --- atomic


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_the_old_file_and_no_litter(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.safetensors"
    write_tensors(file, {"x": torch.ones(3)}, {})
    before = file.read_bytes()

    def fail(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write_tensors(file, {"x": torch.zeros(1000)}, {})
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_the_data_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.safetensors"
    seen = []
    original = os.fsync

    def note(descriptor: int) -> None:
        seen.append(file.exists())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_tensors(file, {"x": torch.ones(3)}, {})
    assert seen == [False, True]  # the file's bytes, then its directory entry


def test_changed_bytes_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_tensors(file, {"x": torch.arange(8.0)}, {})
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(TensorFileError, match="changed since they were written"):
        read_tensors(file)
