"""θ on its way down: on a grid or coded, exact where it has few values, and nothing malformed is read."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.wire.codecs import Codec, WireError, payload_bounds
from pmsfl.wire.units import decode_unit, encode_unit, unit_round_trip

relaxed = settings(deadline=None, max_examples=80)
UNITS = (Codec.UNIT8, Codec.UNIT16, Codec.CODED_UNIT)
ERRORS = {Codec.UNIT8: 0.5 / 255, Codec.UNIT16: 0.5 / 65535, Codec.CODED_UNIT: 0.5 / 255}


@relaxed
@given(st.lists(st.floats(0, 1), max_size=60), st.sampled_from(UNITS), st.sampled_from([torch.float32, torch.float64]))
def test_numbers_come_back_within_half_a_grid_step(values: list[float], codec: Codec, dtype: torch.dtype) -> None:
    theta = torch.tensor(values, dtype=dtype)
    payload = encode_unit(theta, codec)
    least, most = payload_bounds((len(values),), codec)
    assert least <= len(payload) <= most
    received = decode_unit(payload, len(values), codec, dtype)
    assert received.dtype == dtype
    assert bool(((received - theta).abs() <= ERRORS[codec] + 1e-7).all())
    again, size = unit_round_trip(theta, codec)
    assert torch.equal(again, received)
    assert size == len(payload)


@pytest.mark.parametrize("codec", [Codec.UNIT8, Codec.UNIT16])
def test_every_point_of_the_grid_is_exact(codec: Codec) -> None:
    top = 255 if codec == Codec.UNIT8 else 65535
    grid = torch.arange(top + 1, dtype=torch.float64) / top
    assert torch.equal(unit_round_trip(grid, codec)[0], grid)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_of_few_clients_travel_exactly_and_short(dtype: torch.dtype) -> None:
    """θ after `sampled` with ten clients, clipped: eleven values."""
    rng = np.random.default_rng(0)
    theta = torch.from_numpy(rng.integers(0, 11, 50_000) / 10).to(dtype).clamp(0.01, 0.99)
    received, size = unit_round_trip(theta, Codec.CODED_UNIT)
    assert torch.equal(received, theta)
    assert 8 * size / 50_000 < 1.01 * np.log2(11)


def test_many_values_go_to_the_grid_and_take_their_entropy() -> None:
    rng = np.random.default_rng(0)
    theta = torch.from_numpy(rng.beta(0.3, 0.3, 50_000))
    received, size = unit_round_trip(theta, Codec.CODED_UNIT)
    assert torch.equal(received, unit_round_trip(theta, Codec.UNIT8)[0])
    share = np.bincount(np.rint(theta.numpy() * 255).astype(int)) / 50_000
    entropy = -float((share[share > 0] * np.log2(share[share > 0])).sum())
    assert entropy < 8 * size / 50_000 < 1.03 * entropy


def test_values_that_are_few_only_at_the_start_are_found_to_be_many() -> None:
    theta = torch.cat((torch.full((70_000,), 0.3), torch.rand(1000, generator=torch.Generator().manual_seed(0))))
    received, _ = unit_round_trip(theta, Codec.CODED_UNIT)
    assert float((received - theta).abs().max()) <= ERRORS[Codec.CODED_UNIT] + 1e-7


def test_one_value_takes_next_to_nothing() -> None:
    received, size = unit_round_trip(torch.full((1000,), 0.3), Codec.CODED_UNIT)
    assert size == 1 + 1 + 4 + 2
    assert bool((received == torch.tensor(0.3)).all())


def test_bytes_are_the_same_everywhere() -> None:
    """Golden, as for masks."""
    i = torch.arange(200)
    assert encode_unit((i * i % 7) / 8, Codec.CODED_UNIT).hex() == (
        "0203000000000000003e0000803e0000003f1e25f548f548f548a11f774760202dc4c10b33107f1f8dd21de35eb9c193690a817c7313"
        "368d3aa59b50f50142d997d8250d4939f0901600e9a5ce0c"
    )
    i = torch.arange(100_000)
    digest = hashlib.sha256(encode_unit(((i * 7919) % 10007) / 10006, Codec.CODED_UNIT)).hexdigest()
    assert digest == "5cff707696482450b64d757b97299f826e69c84237c1088ef3fffcf5c2988465"
    assert encode_unit(torch.tensor([0.0, 0.2, 1.0]), Codec.UNIT16).hex() == "00003333ffff"


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
@pytest.mark.parametrize("codec", UNITS)
def test_numbers_outside_are_refused(codec: Codec, value: float) -> None:
    with pytest.raises(WireError, match=r"within \[0, 1\]"):
        encode_unit(torch.tensor([0.5, value]), codec)


def test_codecs_of_other_things_are_refused() -> None:
    with pytest.raises(WireError, match="does not carry"):
        encode_unit(torch.tensor([0.5]), Codec.FP32)
    with pytest.raises(WireError, match="does not carry"):
        decode_unit(bytes(4), 1, Codec.FP32, torch.float32)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "has 0 bytes"),
        (bytes(102), "has 102 bytes"),
        (b"\x04", "unknown layout 4"),
        (b"\x00\x01", "has 1 bytes, UNIT8 of 100"),
        (b"\x01" + bytes(31), "truncated list of grid points"),
        (b"\x01" + bytes(32), "no point of the grid"),
        (b"\x01\x03" + bytes(31) + b"\1\0", "truncated frequencies"),
        (b"\x01\x03" + bytes(31) + b"\1\0\0\0", "frequency is 0"),
        (b"\x01\x03" + bytes(31) + b"\1\0\1\0\0", "end in a zero byte"),
        (b"\x01\x01" + bytes(31) + b"\1\0\1", "left over"),
        (b"\x02", "truncated values"),
        (b"\x02\x01\0\0\0\0", "truncated values"),
        (b"\x02\x00\0\0\x80\xbf\1\0", "not growing numbers"),
        (b"\x02\x00\0\0\xc0\x7f\1\0", "not growing numbers"),
        (b"\x02\x01" + b"\0\0\0\x3f" * 2 + b"\1\0\1\0", "not growing numbers"),
        (b"\x03\x00\0\0\0\0\0\0\xe0?", "truncated frequencies"),
    ],
)
def test_malformed_payloads_are_refused(payload: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        decode_unit(payload, 100, Codec.CODED_UNIT, torch.float32)


@relaxed
@given(st.integers(0, 4), st.binary(max_size=80), st.integers(0, 100), st.sampled_from(UNITS))
def test_arbitrary_payloads_give_numbers_within_or_a_wire_error(layout: int, body: bytes, n: int, codec: Codec) -> None:
    try:
        received = decode_unit(bytes([layout]) + body, n, codec, torch.float64)
    except WireError:
        return
    assert received.shape == (n,)
    assert bool(((received >= 0) & (received <= 1)).all())


@relaxed
@given(st.data())
def test_flipped_and_cut_payloads_give_numbers_or_a_wire_error(data: st.DataObject) -> None:
    n = data.draw(st.integers(40, 200))
    rng = np.random.default_rng(data.draw(st.integers(0, 5)))
    few = data.draw(st.booleans())
    theta = torch.from_numpy(rng.integers(0, 3, n) / 4 if few else rng.beta(0.01, 0.01, n))
    payload = bytearray(encode_unit(theta, Codec.CODED_UNIT))
    if data.draw(st.booleans()):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del payload[data.draw(st.integers(0, len(payload) - 1)) :]
    try:
        received = decode_unit(bytes(payload), n, Codec.CODED_UNIT, torch.float64)
    except WireError:
        return
    assert received.shape == (n,)
