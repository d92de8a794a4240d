"""Tensors survive the wire as plain casts do, whatever their layout."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.wire.codecs import Codec, WireError
from pmsfl.wire.tensors import decode_tensor, encode_tensor, label_codec, payload_bytes, round_trip

relaxed = settings(deadline=None, max_examples=100)
FLOATS = {
    Codec.FP32: torch.float32,
    Codec.FP64: torch.float64,
    Codec.BF16: torch.bfloat16,
    Codec.FP16: torch.float16,
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Raw bits, so that NaN and signed zero compare too."""
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(width)


@st.composite
def float_tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(shapes)
    count = math.prod(shape)
    values = draw(st.lists(st.floats(), min_size=count, max_size=count))
    tensor = torch.tensor(values, dtype=torch.float64).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    return tensor.transpose(0, -1) if tensor.ndim > 1 and draw(st.booleans()) else tensor


@relaxed
@given(float_tensors(), st.sampled_from(sorted(FLOATS)))
def test_float_codecs_are_plain_casts_and_round_trip_predicts_them(tensor: torch.Tensor, codec: Codec) -> None:
    payload = encode_tensor(tensor, codec)
    assert len(payload) == payload_bytes(tuple(tensor.shape), codec)
    received = decode_tensor(payload, tuple(tensor.shape), codec)
    assert received.dtype == FLOATS[codec]
    assert torch.equal(bits(received), bits(tensor.contiguous().to(FLOATS[codec])))
    predicted = round_trip(tensor, codec)
    assert predicted.dtype == tensor.dtype
    assert torch.equal(bits(predicted), bits(received.to(tensor.dtype)))


@relaxed
@given(shapes, st.data())
def test_labels_come_back_as_int64(shape: tuple[int, ...], data: st.DataObject) -> None:
    codec, low, high = data.draw(
        st.sampled_from(
            [(Codec.U8, 0, 255), (Codec.U16, 0, 65535), (Codec.INT64, -(2**63), 2**63 - 1)],
        )
    )
    count = math.prod(shape)
    values = data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    labels = torch.tensor(values, dtype=torch.int64).reshape(shape)
    payload = encode_tensor(labels, codec)
    assert len(payload) == payload_bytes(shape, codec)
    received = decode_tensor(payload, shape, codec)
    assert received.dtype == torch.int64
    assert torch.equal(received, labels)
    assert torch.equal(round_trip(labels, codec), labels)


@pytest.mark.parametrize(
    ("values", "codec", "payload"),
    [
        (torch.tensor([1.0, -2.0]), Codec.FP32, "0000803f000000c0"),
        (torch.tensor(1.0), Codec.FP64, "000000000000f03f"),
        (torch.tensor([1.0, -2.0]), Codec.BF16, "803f00c0"),
        (torch.tensor([1.0, -2.0]), Codec.FP16, "003c00c0"),
        (torch.tensor([258]), Codec.U16, "0201"),
        (torch.tensor([-2]), Codec.INT64, "feffffffffffffff"),
        (torch.tensor([[1, 2], [3, 4]]).T, Codec.U8, "01030204"),
    ],
)
def test_bytes_are_little_endian_in_c_order(values: torch.Tensor, codec: Codec, payload: str) -> None:
    assert encode_tensor(values, codec).hex() == payload


@pytest.mark.parametrize("codec", [*FLOATS, Codec.INT64, Codec.U8, Codec.U16])
def test_decoded_tensor_is_writable_and_leaves_the_payload_alone(codec: Codec) -> None:
    payload = bytes(payload_bytes((3,), codec))
    received = decode_tensor(payload, (3,), codec)
    received += 1
    assert received.tolist() == [1, 1, 1]
    assert payload == bytes(len(payload))


@pytest.mark.parametrize("codec", list(FLOATS))
def test_round_trip_is_fresh_contiguous_and_without_history(codec: Codec) -> None:
    source = torch.ones(2, 3, 4, 4, requires_grad=True)
    seen = round_trip(source.to(memory_format=torch.channels_last), codec)
    assert seen.is_contiguous()
    assert not seen.requires_grad
    plain = source.detach()
    round_trip(plain, codec).zero_()
    assert plain.min() == 1


def test_decode_casts_to_the_dtype_asked_for() -> None:
    payload = encode_tensor(torch.tensor([1.5]), Codec.BF16)
    assert decode_tensor(payload, (1,), Codec.BF16, torch.float64).dtype == torch.float64
    assert decode_tensor(b"\x07", (), Codec.U8, torch.int32).dtype == torch.int32


@pytest.mark.parametrize("codec", list(FLOATS))
def test_bytes_do_not_depend_on_strides_not_even_for_nan(codec: Codec) -> None:
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    values[::3] = float("nan")
    for view in (values.T, values[:, ::2], values[3:, 1:7]):
        assert encode_tensor(view, codec) == encode_tensor(view.contiguous(), codec)


def test_every_half_precision_number_survives() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for codec in (Codec.BF16, Codec.FP16):
        numbers = every.view(FLOATS[codec])
        received = decode_tensor(encode_tensor(numbers, codec), (2**16,), codec)
        assert torch.equal(received.view(torch.int16), every)


@pytest.mark.parametrize(
    ("tensor", "codec"),
    [
        (torch.tensor([256]), Codec.U8),
        (torch.tensor([-1]), Codec.U8),
        (torch.tensor([65536]), Codec.U16),
        (torch.tensor([-1]), Codec.U16),
        (torch.tensor([1.0]), Codec.U8),
        (torch.tensor([1]), Codec.FP32),
        (torch.tensor([1j]), Codec.FP32),
        (torch.tensor([1], dtype=torch.uint64), Codec.INT64),
        (torch.tensor([True]), Codec.PACKED_BITS),
        (torch.tensor([1]), Codec.INDICES),
    ],
)
def test_values_a_codec_cannot_carry_are_refused(tensor: torch.Tensor, codec: Codec) -> None:
    with pytest.raises(WireError):
        encode_tensor(tensor, codec)
    with pytest.raises(WireError):
        round_trip(tensor, codec)


@pytest.mark.parametrize("size", [0, 7, 9, 12])
def test_payload_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(WireError, match=f"payload has {size} bytes, FP32 of \\(2,\\) takes 8"):
        decode_tensor(bytes(size), (2,), Codec.FP32)


@pytest.mark.parametrize("codec", [Codec.PACKED_BITS, Codec.INDICES])
def test_decoding_codecs_without_tensor_values_is_refused(codec: Codec) -> None:
    with pytest.raises(WireError, match="does not carry tensor values"):
        decode_tensor(b"\x00", (8,), codec)


def test_shapes_whose_strides_would_overflow_are_refused() -> None:
    with pytest.raises(WireError, match="spans more than"):
        decode_tensor(b"", (0, 2**32 - 1, 2**32 - 1), Codec.FP32)


def test_label_codec_is_the_smallest_that_fits() -> None:
    assert [label_codec(classes) for classes in (1, 256)] == [Codec.U8] * 2
    assert [label_codec(classes) for classes in (257, 65536)] == [Codec.U16] * 2
    for classes in (0, 65537):
        with pytest.raises(WireError, match=f"labels of {classes} classes"):
            label_codec(classes)
