"""Named tensors in one file, in the safetensors layout, written and read by hand: eight bytes of header length,
a JSON header, raw little-endian data. Nothing in it can execute, and GPU machines often lack the library.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

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


class TensorFileError(PmsflError):
    """A tensor file that is missing, damaged, or of another layout."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write atomically: a temporary file beside it, flushed to the disk, then renamed over it."""
    header: dict[str, object] = {}
    checksum = 0
    offset = 0
    blobs = []
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        size = t.numel() * t.element_size()
        header[name] = {
            "dtype": _NAMES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
        blobs.append(t.reshape(-1).view(torch.uint8).numpy())
        checksum = zlib.crc32(blobs[-1].data, checksum)
    header["__metadata__"] = dict(metadata) | {"crc32": str(checksum)}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as f:
            f.write(struct.pack("<Q", len(head)) + head)
            for blob in blobs:
                f.write(blob.data)
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
        data = path.read_bytes()
    except OSError as e:
        raise TensorFileError(f"cannot read {path}: {e.strerror or e}") from None
    if len(data) < 8 or (size := struct.unpack("<Q", data[:8])[0]) > min(_MAX_HEADER, len(data) - 8):
        raise TensorFileError(f"{path}: not a safetensors file, or cut short")
    body = memoryview(data)[8 + size :]
    try:
        header = json.loads(data[8 : 8 + size])
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(entry, body) for name, entry in header.items()}
        if not isinstance(metadata, dict):
            raise ValueError("its metadata is no mapping")
        if "crc32" in metadata and int(metadata.pop("crc32")) != zlib.crc32(body):
            raise ValueError("its bytes have changed since they were written")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, RuntimeError) as e:
        raise TensorFileError(f"{path}: damaged safetensors file ({e})") from None
    return tensors, metadata


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
