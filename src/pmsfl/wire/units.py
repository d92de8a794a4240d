"""Numbers in [0, 1], as θ on its way down: on a grid of 2^8 or 2^16 points, or entropy-coded.

UNIT8 and UNIT16: round(255·θ) as u8, or round(65535·θ) as u16.
CODED_UNIT: layout u8, then
    0: n x u8 as in UNIT8, where coding would be longer
    1: 32 bytes, a bit for each point of the grid of 255 that is used | u16 frequency of each | ANS words
    2: u8 m-1 | m x f32 values, growing | m x u16 frequencies | ANS words
    3: the same with f64

Where θ has at most 256 different values (means over few clients do) layouts 2 and 3 carry them exactly; otherwise they
go to the grid of 255 first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmsfl.wire.ans import Model, categorical
from pmsfl.wire.ans import decode as ans_decode
from pmsfl.wire.ans import encode as ans_encode
from pmsfl.wire.codecs import Codec, WireError, payload_bounds

_RAW, _GRID, _VALUES32, _VALUES64 = 0, 1, 2, 3
_STEPS = {Codec.UNIT8: 2**8 - 1, Codec.UNIT16: 2**16 - 1}
_LAYOUT: dict[Codec, np.dtype[np.unsignedinteger]] = {Codec.UNIT8: np.dtype("<u1"), Codec.UNIT16: np.dtype("<u2")}
_MOST_VALUES = 256
_BITMAP = _MOST_VALUES // 8

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


def encode_unit(values: Tensor, codec: Codec) -> bytes:
    """A tensor [n] of numbers in [0, 1] as bytes; WireError where one is not."""
    array = values.detach().cpu().double().numpy()
    if array.ndim != 1 or not bool(((array >= 0.0) & (array <= 1.0)).all()):
        raise WireError("θ must be [n] within [0, 1]; if training diverged, start a new run with a lower lr_score")
    if codec in _STEPS:
        return _on_grid(array, codec).astype(_LAYOUT[codec]).tobytes()
    if codec != Codec.CODED_UNIT:
        raise WireError(f"{codec.name} does not carry numbers in [0, 1]")
    raw = _on_grid(array, Codec.UNIT8).astype(np.uint8)
    coded = _encode_values(array) or _encode_grid(raw)
    return coded if len(coded) <= 1 + len(raw) else bytes([_RAW]) + raw.tobytes()


def decode_unit(payload: bytes | memoryview, n: int, codec: Codec, dtype: torch.dtype) -> Tensor:
    """The tensor [n] that `encode_unit` wrote, as the receiver has it; WireError on anything malformed."""
    least, most = payload_bounds((n,), codec)
    if not least <= len(payload) <= most:
        raise WireError(f"payload has {len(payload)} bytes, {codec.name} of {n} takes {least} to {most}")
    if codec in _STEPS:
        points = np.frombuffer(payload, dtype=_LAYOUT[codec]) if n else np.empty(0, dtype=np.uint8)
        return _floats(points.astype(np.float64) / _STEPS[codec], dtype)
    if codec != Codec.CODED_UNIT:
        raise WireError(f"{codec.name} does not carry numbers in [0, 1]")
    layout, body = payload[0], memoryview(payload)[1:]
    if layout == _RAW:
        return decode_unit(body, n, Codec.UNIT8, dtype)
    if layout == _GRID:
        values, body = _read_grid(body)
    elif layout in (_VALUES32, _VALUES64):
        values, body = _read_values(body, np.dtype("<f4" if layout == _VALUES32 else "<f8"))
    else:
        raise WireError(f"unknown layout {layout} of coded numbers")
    return _floats(values[_read_symbols(body, len(values), n)], dtype)


def unit_round_trip(values: Tensor, codec: Codec) -> tuple[Tensor, int]:
    """What the receiver of a tensor [n] has, on its device, and the length of the payload."""
    payload = encode_unit(values, codec)
    return decode_unit(payload, len(values), codec, values.dtype).to(values.device), len(payload)


def _floats(values: _Floats, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(values).to(dtype)


def _on_grid(values: _Floats, codec: Codec) -> _Floats:
    return np.rint(values * _STEPS[codec])


def _encode_values(array: _Floats) -> bytes:
    """Layouts 2 and 3, or nothing where there are too many values."""
    found, symbols = np.unique(array[:65536], return_inverse=True)  # a part first: sorting all of it takes long
    if len(found) <= _MOST_VALUES and len(array) > 65536:
        found, symbols = np.unique(array, return_inverse=True)
    if not 0 < len(found) <= _MOST_VALUES:
        return b""
    exact = bool((found.astype(np.float32) == found).all())
    head = (
        bytes([_VALUES32 if exact else _VALUES64, len(found) - 1]) + found.astype("<f4" if exact else "<f8").tobytes()
    )
    return head + _write_symbols(symbols.reshape(-1), len(found))


def _encode_grid(raw: npt.NDArray[np.uint8]) -> bytes:
    used = np.bincount(raw, minlength=_MOST_VALUES) > 0
    symbols = (np.cumsum(used) - 1)[raw]
    return bytes([_GRID]) + np.packbits(used, bitorder="little").tobytes() + _write_symbols(symbols, int(used.sum()))


def _write_symbols(symbols: _Ints, kinds: int) -> bytes:
    counts = np.bincount(symbols, minlength=kinds)
    frequencies = np.maximum(counts * (2**16 - 1) // max(len(symbols), 1), 1)
    return frequencies.astype("<u2").tobytes() + ans_encode(
        symbols.astype(np.int32), _models(frequencies, len(symbols))
    )


def _read_symbols(body: memoryview, kinds: int, n: int) -> _Ints:
    if len(body) < 2 * kinds:
        raise WireError(f"truncated frequencies: {len(body)} bytes of {2 * kinds}")
    frequencies = np.frombuffer(body, dtype="<u2", count=kinds).astype(np.int64)
    if not bool(frequencies.all()):
        raise WireError("a frequency is 0: such a value is not listed")
    symbols = ans_decode(body[2 * kinds :], _models(frequencies, n)).astype(np.int64)
    return symbols if kinds > 1 else np.zeros(n, dtype=np.int64)


def _models(frequencies: _Ints, n: int) -> list[Model]:
    """A single value needs no code."""
    return [(n, categorical(frequencies))] if len(frequencies) > 1 else []


def _read_grid(body: memoryview) -> tuple[_Floats, memoryview]:
    if len(body) < _BITMAP:
        raise WireError(f"truncated list of grid points: {len(body)} bytes of {_BITMAP}")
    used = np.flatnonzero(np.unpackbits(np.frombuffer(body, dtype=np.uint8, count=_BITMAP), bitorder="little"))
    if not len(used):
        raise WireError("no point of the grid is used")
    return used / 255.0, body[_BITMAP:]


def _read_values(body: memoryview, kind: np.dtype[np.floating]) -> tuple[_Floats, memoryview]:
    count = body[0] + 1 if len(body) else 1
    end = 1 + count * kind.itemsize
    if len(body) < end:
        raise WireError(f"truncated values: {len(body)} bytes of {end}")
    values = np.frombuffer(body, dtype=kind, count=count, offset=1).astype(np.float64)
    if not bool(((values >= 0.0) & (values <= 1.0)).all() and (np.diff(values) > 0.0).all()):
        raise WireError("values are not growing numbers in [0, 1]")
    return values, body[end:]
