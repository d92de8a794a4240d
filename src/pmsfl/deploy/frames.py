"""Requests and answers between a site and the server: a fixed header, a small JSON part, then wire messages.

    request  magic "PMSR" | version u8 | op u8 | 2 zero bytes | round u32 | step u32 | crc u32 | json u32 | json | wire
    answer   magic "PMSA" | version u8 | status u8 | 2 zero bytes | crc u32 | json u32 | json | wire

Who sent a request is never read from it: the transport knows from the certificate. The checksum is against accidents;
against forgery there is TLS.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from pmsfl.wire.messages import WireError

VERSION = 1
MAX_JSON = 1 << 16
MAX_FRAME = 1 << 30
_REQUEST = struct.Struct("<4sBBHIIII")
_ANSWER = struct.Struct("<4sBBHII")
_MAGIC_REQUEST, _MAGIC_ANSWER = b"PMSR", b"PMSA"


class Op(IntEnum):
    """What a site asks for. The numbers are part of the format."""

    HELLO = 1  # here I am, with so much data -> the manifest
    NEXT = 2  # what now? -> a round, an evaluation, the end
    STEP = 3  # smashed data and labels -> their gradient
    FINISH = 4  # the upload of a round
    SUMS = 5  # smashed training data and the bottom's sums, for statistics
    STATISTICS = 6  # -> what norms take instead of a batch's own
    TEST = 7  # smashed test data -> logits
    REPORT = 8  # how many were right
    SKIP = 9  # something is wrong here: leave me out of this round
    SECURE = 10  # keys, shares and answers of a secure sum; the step is the message's kind


class Status(IntEnum):
    """How a request was met."""

    OK = 0
    REFUSED = 1  # never to be repeated; the JSON says why
    WAIT = 2  # ask again with the same bytes
    OUT = 3  # left out until the next round; the JSON says why
    OVER = 4  # the job is over


@dataclass(frozen=True)
class Request:
    """One call of a site."""

    op: Op
    round: int = 0
    step: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    wire: bytes = b""
    digest: str = ""  # of the bytes it was read from

    def encode(self) -> bytes:
        """The bytes to send."""
        text = _dump(self.info)
        places = struct.pack("<BII", self.op, self.round, self.step)
        crc = _crc(places, text, self.wire)
        head = _REQUEST.pack(_MAGIC_REQUEST, VERSION, self.op, 0, self.round, self.step, crc, len(text))
        return b"".join((head, text, self.wire))

    @staticmethod
    def decode(data: bytes, limit: int = MAX_FRAME) -> Request:
        """What `encode` wrote; WireError saying what is wrong otherwise."""
        magic, version, op, zero, round_, step, crc, size = _head(data, _REQUEST, limit)
        _check_head(magic, _MAGIC_REQUEST, version, zero)
        text, wire = _body(data, _REQUEST.size, size)
        if crc != _crc(struct.pack("<BII", op, round_, step), text, wire):
            raise WireError("the request's checksum is wrong: it was damaged on the way")
        try:
            known = Op(op)
        except ValueError:
            raise WireError(f"unknown operation {op}") from None
        return Request(known, round_, step, _load(text), wire, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Answer:
    """What the server says to it."""

    status: Status
    info: dict[str, Any] = field(default_factory=dict)
    wire: bytes = b""

    @property
    def reason(self) -> str:
        """Why it was not OK."""
        return str(self.info.get("reason", ""))

    def encode(self) -> bytes:
        """The bytes to send."""
        text = _dump(self.info)
        crc = _crc(bytes([self.status]), text, self.wire)
        return b"".join((_ANSWER.pack(_MAGIC_ANSWER, VERSION, self.status, 0, crc, len(text)), text, self.wire))

    @staticmethod
    def decode(data: bytes, limit: int = MAX_FRAME) -> Answer:
        """What `encode` wrote; WireError saying what is wrong otherwise."""
        magic, version, status, zero, crc, size = _head(data, _ANSWER, limit)
        _check_head(magic, _MAGIC_ANSWER, version, zero)
        text, wire = _body(data, _ANSWER.size, size)
        if crc != _crc(bytes([status]), text, wire):
            raise WireError("the answer's checksum is wrong: it was damaged on the way")
        try:
            known = Status(status)
        except ValueError:
            raise WireError(f"unknown status {status}") from None
        return Answer(known, _load(text), wire)


def refused(reason: str) -> Answer:
    """No, and why."""
    return Answer(Status.REFUSED, {"reason": reason[:2000]})


def _head(data: bytes, layout: struct.Struct, limit: int) -> tuple[Any, ...]:
    if not isinstance(data, bytes):
        raise WireError(f"a frame is bytes, not {type(data).__name__}")
    if len(data) > limit:
        raise WireError(f"frame of {len(data)} bytes exceeds the limit of {limit}")
    if len(data) < layout.size:
        raise WireError(f"truncated frame: {len(data)} bytes of {layout.size}")
    return layout.unpack_from(data)


def _check_head(magic: bytes, wanted: bytes, version: int, zero: int) -> None:
    if magic != wanted:
        raise WireError(f"not a frame: it begins with {magic!r}, not {wanted!r}")
    if version != VERSION:
        raise WireError(f"frame version {version}, this release speaks version {VERSION}")
    if zero:
        raise WireError("reserved bytes of a frame are set")


def _body(data: bytes, start: int, size: int) -> tuple[bytes, bytes]:
    if size > MAX_JSON:
        raise WireError(f"the JSON part has {size} bytes, at most {MAX_JSON} are allowed")
    if len(data) < start + size:
        raise WireError(f"truncated frame: {len(data) - start} bytes of JSON, {size} declared")
    return data[start : start + size], data[start + size :]


def _crc(*parts: bytes) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def _dump(info: dict[str, Any]) -> bytes:
    text = json.dumps(info, separators=(",", ":"), allow_nan=False).encode() if info else b""
    if len(text) > MAX_JSON:
        raise WireError(f"the JSON part has {len(text)} bytes, at most {MAX_JSON} are allowed")
    return text


def _load(text: bytes) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise WireError("the JSON part cannot be read") from None
    if not isinstance(found, dict):
        raise WireError("the JSON part is no object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(name)
