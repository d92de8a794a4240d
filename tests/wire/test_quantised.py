"""Few-bit tensors: a scale per channel, exact numbers at the receiver, the promised length, nothing malformed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.wire.codecs import Codec, WireError, channels
from pmsfl.wire.messages import Kind, length
from pmsfl.wire.tensors import decode_tensor, encode_tensor, payload_bytes, round_trip

relaxed = settings(deadline=None, max_examples=70)
BITS = {Codec.QUANT8: 8, Codec.QUANT4: 4, Codec.QUANT2: 2}
codecs = st.sampled_from(sorted(BITS))


@st.composite
def tensors(draw: st.DrawFn, least: int = 1) -> torch.Tensor:
    shape = draw(st.lists(st.integers(least, 4), max_size=5))
    count = math.prod(shape)
    numbers = st.floats(-1e30, 1e30) | st.floats(-1, 1) | st.just(0.0)
    values = draw(st.lists(numbers, min_size=count, max_size=count))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    tensor = torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtype)
    return tensor.transpose(0, -1) if tensor.ndim > 1 and draw(st.booleans()) else tensor


def by_hand(values: list[float], bits: int) -> tuple[float, int, list[int]]:
    """Step, zero and codes of one channel, the slow and obvious way."""
    low, high, top = min(0.0, *values), max(0.0, *values), 2**bits - 1
    mantissa, exponent = math.frexp(float(torch.tensor((high - low) / top, dtype=torch.float32)))
    step = math.ldexp(math.ceil(mantissa * 256) / 256, exponent)  # up to eight significant bits
    if not step > 0:
        return 0.0, 0, [0] * len(values)
    zero = math.floor(0.5 - low / step)
    return step, zero, [min(max(math.floor(v / step + 0.5) + zero, 0), top) for v in values]


@pytest.mark.parametrize("codec", BITS)
def test_bytes_are_steps_zeros_and_codes(codec: Codec) -> None:
    bits = BITS[codec]
    x = torch.randn(3, 2, 2, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[:, 1] = x[:, 1].abs()  # as behind a ReLU: all codes are for what is positive
    (step, zero, codes), (step2, zero2, codes2) = (by_hand(x[:, c].flatten().tolist(), bits) for c in (0, 1))
    assert zero2 == 0
    order = [c for i in range(3) for c in (*codes[2 * i : 2 * i + 2], *codes2[2 * i : 2 * i + 2])]
    packed = sum(c << (bits * i) for i, c in enumerate(order)).to_bytes((12 * bits + 7) // 8, "little")
    steps = torch.tensor([step, step2]).bfloat16().view(torch.int16).numpy().astype("<i2").tobytes()
    assert encode_tensor(x, codec) == steps + bytes([zero, zero2]) + packed


@relaxed
@given(tensors(), codecs)
def test_round_trip_predicts_what_is_decoded_bit_for_bit(x: torch.Tensor, codec: Codec) -> None:
    payload = encode_tensor(x, codec)
    assert len(payload) == payload_bytes(tuple(x.shape), codec)
    assert len(payload) == 3 * channels(x.shape) + (x.numel() * BITS[codec] + 7) // 8
    received = decode_tensor(payload, tuple(x.shape), codec)
    assert received.dtype == torch.float32
    predicted = round_trip(x, codec)
    assert predicted.dtype == x.dtype
    assert predicted.is_contiguous()
    assert torch.equal(predicted, received.to(x.dtype))


@relaxed
@given(tensors(), codecs)
def test_errors_are_within_a_step_and_zero_stays_zero(x: torch.Tensor, codec: Codec) -> None:
    x = x.double()
    seen = round_trip(x, codec)
    axis = {3: 2, 4: 1, 5: 1}.get(x.ndim)
    over = [d for d in range(x.ndim) if d != axis]
    spread = x.amax(over, keepdim=True).clamp_min(0) - x.amin(over, keepdim=True).clamp_max(0)
    step = spread / (2 ** BITS[codec] - 1) * (1 + 2**-6)
    tiny = 1e-37  # below it a step is no ordinary bf16
    assert bool(((seen - x).abs() <= step + tiny).all())
    assert bool((seen[x == 0] == 0).all())


@relaxed
@given(st.data(), codecs)
def test_stacked_messages_are_quantised_one_by_one(data: st.DataObject, codec: Codec) -> None:
    x = data.draw(tensors())
    both = torch.stack((x, x * 3 + 1, -x))
    together = round_trip(both, codec, stacked=True)
    for one, alone in zip(together, both, strict=True):
        assert torch.equal(one, round_trip(alone, codec))


def test_channels_are_the_second_axis_of_maps_and_the_last_of_sequences() -> None:
    assert [channels(s) for s in ((), (9,), (2, 9), (2, 3, 9), (2, 9, 3, 4), (2, 9, 3, 4, 5))] == [1, 1, 1, 9, 9, 9]
    x = torch.tensor([1.0, 1000.0])
    for shape in ((1, 1, 2), (1, 2, 1, 1)):
        assert round_trip(x.reshape(shape), Codec.QUANT8).flatten()[0] == pytest.approx(1.0, rel=0.01)
    assert round_trip(x.reshape(1, 2), Codec.QUANT2).flatten()[0] == 0.0


def test_eight_bits_save_almost_three_quarters_scales_and_header_included() -> None:
    for shape in ((32, 16, 4, 4), (32, 128, 16, 16), (32, 20, 64)):
        whole = length(Kind.SMASHED, shape, Codec.FP32)
        assert whole / length(Kind.SMASHED, shape, Codec.QUANT8) >= 3.9


@pytest.mark.parametrize("codec", BITS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_still_not_finite_at_the_receiver(codec: Codec, bad: float) -> None:
    x = torch.ones(2, 3, 2, 2)
    x[1, 1, 0, 0] = bad
    received = decode_tensor(encode_tensor(x, codec), (2, 3, 2, 2), codec)
    assert not torch.isfinite(received[:, 1]).all()
    assert torch.isfinite(received[:, [0, 2]]).all()
    assert not torch.isfinite(round_trip(x, codec)[:, 1]).all()


@pytest.mark.parametrize("codec", BITS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4), (0, 3, 2, 2), (2, 0, 2, 2)])
def test_empty_tensors_travel(codec: Codec, shape: tuple[int, ...]) -> None:
    payload = encode_tensor(torch.zeros(shape), codec)
    assert decode_tensor(payload, shape, codec).shape == shape


def test_integers_are_refused() -> None:
    for call in (encode_tensor, round_trip):
        with pytest.raises(WireError, match="float tensors"):
            call(torch.tensor([1]), Codec.QUANT8)


@pytest.mark.parametrize(
    ("payload", "codec", "problem"),
    [
        (b"\x80\x3f\x00", Codec.QUANT8, "has 3 bytes, QUANT8 of \\(3,\\) takes 6"),
        (b"\x80\x3f\x00\x00\x00\x00\x00", Codec.QUANT8, "has 7 bytes"),
        (b"\x80\xbf\x00\x00\x00\x00", Codec.QUANT8, "step is negative"),
        (b"\x80\x3f\x10\x00\x00", Codec.QUANT4, "zero is 16, codes end at 15"),
        (b"\x80\x3f\x00\x00\x10", Codec.QUANT4, "behind the last of 3 codes"),
        (b"\x80\x3f\x00\x40", Codec.QUANT2, "behind the last of 3 codes"),
    ],
)
def test_malformed_payloads_are_refused(payload: bytes, codec: Codec, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        decode_tensor(payload, (3,), codec)


@relaxed
@given(st.binary(max_size=60), st.lists(st.integers(0, 4), max_size=5), codecs)
def test_arbitrary_payloads_give_a_tensor_or_a_wire_error(payload: bytes, shape: list[int], codec: Codec) -> None:
    size = payload_bytes(shape, codec)
    payload = payload.ljust(size, b"\x11")[:size] if len(payload) % 2 else payload
    try:
        received = decode_tensor(payload, shape, codec)
    except WireError:
        return
    assert received.shape == tuple(shape)
