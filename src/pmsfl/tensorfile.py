"""Named tensors in one file, in the safetensors layout, written and read by hand: eight bytes of header length,
a JSON header, raw little-endian data. Nothing in it can execute, and GPU machines often lack the library.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmsfl.errors import PmsflError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_MAX_HEADER = 100_000_000
# What damaged bytes can raise.
_BAD = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, RuntimeError)


class TensorFileError(PmsflError):
    """A tensor file that is missing, damaged, or of another layout."""


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], checksum: bool = True) -> list[memoryview]:
    """The bytes of a file: the header, then tensor by tensor. What lies whole in CPU memory is not copied."""
    header: dict[str, object] = {}
    crc = 0
    offset = 0
    pieces = []
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        size = t.numel() * t.element_size()
        header[name] = {
            "dtype": _NAMES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
        pieces.append(t.reshape(-1).view(torch.uint8).numpy().data)
        crc = zlib.crc32(pieces[-1], crc) if checksum else 0
    header["__metadata__"] = dict(metadata) | ({"crc32": str(crc)} if checksum else {})
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return [memoryview(struct.pack("<Q", len(head)) + head), *pieces]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write atomically: a temporary file beside it, flushed to the disk, then renamed over it."""
    pieces = encode(tensors, metadata)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as f:
            for piece in pieces:
                f.write(piece)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_directory(folder: Path) -> None:
    """The rename itself must reach the disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file; TensorFileError names what is wrong with a bad one."""
    try:
        with path.open("rb") as f:  # mapped: the file is not in memory a second time beside its tensors
            data = (
                memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
                if path.stat().st_size
                else memoryview(b"")
            )
    except OSError as e:
        raise TensorFileError(f"cannot read {path}: {e.strerror or e}") from None
    try:
        return decode(data)
    except _BAD as e:
        raise TensorFileError(f"{path}: damaged safetensors file ({e})") from None


def decode(data: memoryview) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, copied, and the metadata in a file's bytes; one of many errors where they are damaged."""
    header, body = split_header(data)
    metadata = header.pop("__metadata__", {})
    tensors = {name: _tensor(entry, body) for name, entry in header.items()}
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is no mapping")
    if "crc32" in metadata and int(metadata.pop("crc32")) != zlib.crc32(body):
        raise ValueError("its bytes have changed since they were written")
    return tensors, metadata


def split_header(data: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The header, read, and the bytes after it."""
    if len(data) < 8 or (size := struct.unpack("<Q", data[:8])[0]) > min(_MAX_HEADER, len(data) - 8):
        raise ValueError("not a safetensors file, or cut short")
    header: dict[str, Any] = json.loads(bytes(data[8 : 8 + size]))
    return header, data[8 + size :]


def _tensor(entry: dict[str, object], body: memoryview) -> Tensor:
    dtype = _DTYPES[str(entry["dtype"])]
    shape = [int(n) for n in entry["shape"]]  # type: ignore[attr-defined]
    start, stop = (int(n) for n in entry["data_offsets"])  # type: ignore[attr-defined]
    width = torch.empty((), dtype=dtype).element_size()
    expected = width * math.prod(shape) if all(n >= 0 for n in shape) else -1
    if not 0 <= start <= stop <= len(body) or stop - start != expected:
        raise ValueError("a tensor's bytes are missing or do not fit its shape")
    raw = torch.frombuffer(bytearray(body[start:stop]), dtype=torch.uint8) if stop > start else None
    if raw is None:
        return torch.empty(shape, dtype=dtype)
    return raw.view(dtype).reshape(shape)
