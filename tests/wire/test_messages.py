"""Messages round trip, have the promised length, and refuse everything malformed with a WireError."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.errors import PmsflError
from pmsfl.wire.codecs import Codec, payload_bounds
from pmsfl.wire.messages import HEADER_BYTES, Direction, Kind, Message, WireError, decode, length, split

relaxed = settings(deadline=None, max_examples=150)
u32 = st.integers(0, 2**32 - 1)
VARIABLE = (Codec.INDICES, Codec.CODED_BITS, Codec.CODED_UNIT)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind, codec = draw(st.sampled_from(Kind)), draw(st.sampled_from(Codec))
    shape = draw(shapes)
    least, most = payload_bounds(shape, codec)
    size = draw(st.integers(least, most))
    payload = draw(st.binary(min_size=min(size, 16), max_size=min(size, 16))).ljust(size, b"x")
    return Message(kind, codec, shape, payload, draw(u32), draw(u32), draw(u32), draw(u32))


def header(
    kind: int = 4, codec: int = 1, ndim: int = 1, size: int = 8, version: int = 1, magic: bytes = b"PMSF"
) -> bytes:
    return struct.pack("<4sBBBBIIIIQ", magic, version, kind, codec, ndim, 1, 2, 3, 4, size)


def decode_or_refuse(data: bytes) -> None:
    """Whatever is accepted must be the one encoding of what was understood; all else is a WireError."""
    try:
        message = decode(data)
    except WireError:
        return
    assert message.encode() == data


def test_numbers_on_the_wire_never_change() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        "THETA": 1,
        "WEIGHTS": 2,
        "NORMS": 3,
        "SMASHED": 4,
        "LABELS": 5,
        "GRADIENT": 6,
        "MASK": 7,
        "PERSONAL": 8,
        "STATISTICS": 9,
        "EVALUATION": 10,
        "FEATURES": 11,
        "FEATURE_GRADIENT": 12,
        "SECURE": 13,
    }
    assert {codec.name: codec.value for codec in Codec} == {
        "FP32": 1,
        "FP64": 2,
        "BF16": 3,
        "FP16": 4,
        "INT64": 5,
        "U8": 6,
        "U16": 7,
        "PACKED_BITS": 8,
        "INDICES": 9,
        "QUANT8": 10,
        "QUANT4": 11,
        "QUANT2": 12,
        "CODED_BITS": 13,
        "UNIT8": 14,
        "UNIT16": 15,
        "CODED_UNIT": 16,
    }
    assert [direction.value for direction in Direction] == ["up", "down"]


def test_header_layout_is_fixed() -> None:
    message = Message(Kind.LABELS, Codec.U16, (2, 1), b"\x01\x00\x02\x00", run=1, round=2, client=3, step=4)
    assert message.encode() == (
        b"PMSF\x01\x05\x07\x02"
        b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0"
        b"\x04\0\0\0\0\0\0\0"
        b"\x02\0\0\0\x01\0\0\0"
        b"\x01\x00\x02\x00"
    )


@relaxed
@given(messages())
def test_decode_gives_back_what_was_encoded(message: Message) -> None:
    data = message.encode()
    assert decode(data) == message
    assert decode(memoryview(data), expect=message.kind) == message


@relaxed
@given(st.lists(messages(), max_size=5))
def test_split_gives_back_concatenated_messages(several: list[Message]) -> None:
    assert split(b"".join(message.encode() for message in several)) == several


@relaxed
@given(shapes, st.sampled_from([codec for codec in Codec if codec not in VARIABLE]))
def test_length_is_the_encoded_length(shape: tuple[int, ...], codec: Codec) -> None:
    size, _ = payload_bounds(shape, codec)
    message = Message(Kind.GRADIENT, codec, shape, bytes(size))
    assert len(message.encode()) == length(Kind.GRADIENT, shape, codec)


def test_length_of_known_shapes() -> None:
    assert length(Kind.SMASHED, (4, 3), Codec.FP32) == HEADER_BYTES + 8 + 48
    assert length(Kind.SMASHED, (4, 3), Codec.BF16) == HEADER_BYTES + 8 + 24
    assert length(Kind.MASK, (9,), Codec.PACKED_BITS) == HEADER_BYTES + 4 + 2
    assert length(Kind.STATISTICS, (), Codec.FP64) == HEADER_BYTES + 8


@pytest.mark.parametrize("codec", VARIABLE)
def test_lengths_that_depend_on_values_are_refused(codec: Codec) -> None:
    with pytest.raises(WireError, match=f"{codec.name} depends on its values"):
        length(Kind.PERSONAL, (10,), codec)


@relaxed
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    decode_or_refuse(data)
    decode_or_refuse(b"PMSF\x01" + data)


@relaxed
@given(messages(), st.data())
def test_truncation_anywhere_is_refused(message: Message, data: st.DataObject) -> None:
    encoded = message.encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(WireError, match="truncated"):
        decode(encoded[:cut])
    with pytest.raises(WireError, match="truncated"):
        split(encoded + encoded[: max(cut, 1)])


def test_every_bit_flip_of_header_and_dims_is_refused_or_understood_exactly() -> None:
    encoded = Message(Kind.MASK, Codec.PACKED_BITS, (3, 5), b"\xff\x7f", 1, 2, 3, 4).encode()
    for bit in range(8 * (HEADER_BYTES + 8)):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        decode_or_refuse(bytes(flipped))


@relaxed
@given(messages(), st.binary(min_size=1, max_size=40))
def test_trailing_bytes_are_refused(message: Message, extra: bytes) -> None:
    with pytest.raises(WireError, match="follow the end"):
        decode(message.encode() + extra)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated header"),
        (header(magic=b"PMSG"), "begins with"),
        (header(version=2), "version 2"),
        (header(kind=0), "unknown message kind 0"),
        (header(kind=99), "unknown message kind 99"),
        (header(codec=0), "unknown codec 0"),
        (header(codec=200), "unknown codec 200"),
        (header(ndim=9) + bytes(44), "9 dims"),
        (header(ndim=1), "truncated dims"),
        (header() + struct.pack("<I", 3) + bytes(8), "takes 12"),
        (header(size=2**63) + struct.pack("<I", 2), "exceeds the limit"),
        (header(size=0, ndim=8) + b"\xff" * 32, "spans more than"),
        (header(size=0, ndim=8) + bytes(4) + b"\xff" * 28, "spans more than"),
        (header(size=0, codec=9) + struct.pack("<I", 8), "takes 1 to 2"),
        (header(size=3, codec=9) + struct.pack("<I", 8) + bytes(3), "takes 1 to 2"),
    ],
)
def test_decode_says_what_is_wrong(data: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        decode(data)


def test_a_consistent_header_claiming_gigabytes_is_refused_without_them() -> None:
    data = header(codec=6, size=2**30) + struct.pack("<I", 2**30)
    with pytest.raises(WireError, match="truncated payload"):
        decode(data)


def test_limit_counts_the_whole_message() -> None:
    data = Message(Kind.THETA, Codec.FP32, (2,), bytes(8)).encode()
    assert decode(data, limit=len(data)).shape == (2,)
    with pytest.raises(WireError, match="limit"):
        decode(data, limit=len(data) - 1)
    with pytest.raises(WireError, match="limit"):
        split(data, limit=len(data) - 1)


def test_another_kind_than_expected_is_refused() -> None:
    data = Message(Kind.SMASHED, Codec.FP32, (), bytes(4)).encode()
    with pytest.raises(WireError, match="expected a GRADIENT message, got SMASHED"):
        decode(data, expect=Kind.GRADIENT)


def test_memory_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(WireError, match="contiguous"):
        decode(memoryview(bytes(80))[::2])


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.THETA, Codec.FP32, (2,), bytes(7)),
        Message(Kind.THETA, Codec.FP32, (-1,), bytes(4)),
        Message(Kind.THETA, Codec.FP32, (0, 2**32), b""),
        Message(Kind.THETA, Codec.FP32, (1,) * 9, bytes(4)),
        Message(Kind.THETA, Codec.FP32, (), bytes(4), run=-1),
        Message(Kind.THETA, Codec.FP32, (), bytes(4), step=2**32),
        Message(99, Codec.FP32, (), bytes(4)),  # type: ignore[arg-type]
        Message(Kind.THETA, 99, (), bytes(4)),  # type: ignore[arg-type]
    ],
)
def test_encode_refuses_what_decode_would_not_read(message: Message) -> None:
    with pytest.raises(WireError):
        message.encode()


def test_wire_errors_are_errors_a_user_can_act_on() -> None:
    assert issubclass(WireError, PmsflError)
