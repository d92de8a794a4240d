"""Messages: flat bytes behind a fixed, versioned header.

Layout, little endian, no padding:

    magic "PMSF" | version u8 | kind u8 | codec u8 | ndim u8
    run u32 | round u32 | client u32 | step u32 | payload_bytes u64
    ndim x u32 dims | payload
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from pmsfl.wire.codecs import MAX_DIMS, Codec, WireError, payload_bounds, payload_bytes

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "MAX_BYTES",
    "VERSION",
    "Codec",
    "Direction",
    "Kind",
    "Message",
    "WireError",
    "decode",
    "header_bytes",
    "length",
    "split",
]

MAGIC = b"PMSF"
VERSION = 1
MAX_BYTES = 2**31  # of one encoded message, header included

_HEADER = struct.Struct("<4sBBBBIIIIQ")
HEADER_BYTES = _HEADER.size
_DIM_BYTES = 4
_U32 = 2**32 - 1


class Kind(IntEnum):
    """What a message is about. The numbers are part of the format: never renumber or reuse one."""

    THETA = 1
    WEIGHTS = 2
    NORMS = 3
    SMASHED = 4
    LABELS = 5
    GRADIENT = 6
    MASK = 7
    PERSONAL = 8
    STATISTICS = 9
    EVALUATION = 10
    FEATURES = 11
    FEATURE_GRADIENT = 12
    SECURE = 13  # keys and shares of a secure sum: in the ledger only, they have a header of their own


class Direction(StrEnum):
    """Which way a message travels: up from a client, or down from the server."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True)
class Message:
    """One message: what it is, how and in which shape its payload is written, and where it belongs."""

    kind: Kind
    codec: Codec
    shape: tuple[int, ...]
    payload: bytes
    run: int = 0
    round: int = 0
    client: int = 0
    step: int = 0

    @property
    def encoded_bytes(self) -> int:
        """How long `encode` is."""
        return HEADER_BYTES + _DIM_BYTES * len(self.shape) + len(self.payload)

    def encode(self) -> bytes:
        """The message as bytes; WireError where `decode` would refuse them."""
        _check_payload(self.shape, self.codec, len(self.payload))
        for name in ("run", "round", "client", "step"):
            value = getattr(self, name)
            if not 0 <= value <= _U32:
                raise WireError(f"{name} is {value}, which does not fit 0..{_U32}")
        _check_total(self.encoded_bytes, MAX_BYTES)
        tags = (_known_kind(self.kind), _known_codec(self.codec), len(self.shape))
        places = (self.run, self.round, self.client, self.step)
        header = _HEADER.pack(MAGIC, VERSION, *tags, *places, len(self.payload))
        return b"".join((header, struct.pack(f"<{len(self.shape)}I", *self.shape), self.payload))


def decode(data: bytes | bytearray | memoryview, *, expect: Kind | None = None, limit: int = MAX_BYTES) -> Message:
    """The one message that `data` holds, exactly; WireError saying what was wrong otherwise.

    `expect` refuses any other kind; `limit` refuses longer messages. The payload is copied only after its
    length was found to agree with the codec, the shape and `data`.
    """
    view = _flat(data)
    message, end = _read(view, 0, limit)
    if end != len(view):
        raise WireError(f"{len(view) - end} bytes follow the end of the message")
    if expect is not None and message.kind != expect:
        raise WireError(f"expected a {expect.name} message, got {message.kind.name}")
    return message


def split(data: bytes | bytearray | memoryview, *, limit: int = MAX_BYTES) -> list[Message]:
    """The messages that `data` holds one after another; `limit` applies to each of them."""
    view = _flat(data)
    messages: list[Message] = []
    offset = 0
    while offset < len(view):
        message, offset = _read(view, offset, limit)
        messages.append(message)
    return messages


def length(kind: Kind, shape: tuple[int, ...], codec: Codec) -> int:
    """Encoded length (header, dims and payload) for a codec whose length is a function of the shape."""
    _known_kind(kind)
    return HEADER_BYTES + _DIM_BYTES * len(shape) + payload_bytes(shape, _known_codec(codec))


def header_bytes(dims: int) -> int:
    """Bytes in front of the payload of a tensor with so many dims."""
    return HEADER_BYTES + _DIM_BYTES * dims


def _flat(data: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise WireError("a message must lie in contiguous memory")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _read(view: memoryview, start: int, limit: int) -> tuple[Message, int]:
    """The message at `start`, and where it ends. Nothing is copied before every length was checked."""
    have = len(view) - start
    if have < HEADER_BYTES:
        raise WireError(f"truncated header: {have} bytes of {HEADER_BYTES}")
    magic, version, kind, codec, ndim, run, round_, client, step, size = _HEADER.unpack_from(view, start)
    if magic != MAGIC:
        raise WireError(f"not a message: it begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise WireError(f"message version {version}, this release reads version {VERSION}")
    known_kind, known_codec = _known_kind(kind), _known_codec(codec)
    if ndim > MAX_DIMS:
        raise WireError(f"message has {ndim} dims, at most {MAX_DIMS} are allowed")
    body = HEADER_BYTES + _DIM_BYTES * ndim
    _check_total(body + size, limit)
    if have < body:
        raise WireError(f"truncated dims: {have - HEADER_BYTES} bytes of {_DIM_BYTES * ndim}")
    shape: tuple[int, ...] = struct.unpack_from(f"<{ndim}I", view, start + HEADER_BYTES)
    _check_payload(shape, known_codec, size)
    if have < body + size:
        raise WireError(f"truncated payload: {have - body} bytes of {size}")
    payload = bytes(view[start + body : start + body + size])
    return Message(known_kind, known_codec, shape, payload, run, round_, client, step), start + body + size


def _known_kind(kind: int) -> Kind:
    try:
        return Kind(kind)
    except ValueError:
        raise WireError(f"unknown message kind {kind}") from None


def _known_codec(codec: int) -> Codec:
    try:
        return Codec(codec)
    except ValueError:
        raise WireError(f"unknown codec {codec}") from None


def _check_total(total: int, limit: int) -> None:
    if total > limit:
        raise WireError(f"message of {total} bytes exceeds the limit of {limit}")


def _check_payload(shape: tuple[int, ...], codec: Codec, size: int) -> None:
    least, most = payload_bounds(shape, _known_codec(codec))
    if not least <= size <= most:
        wanted = str(most) if least == most else f"{least} to {most}"
        raise WireError(f"payload has {size} bytes, {_known_codec(codec).name} of {shape} takes {wanted}")
