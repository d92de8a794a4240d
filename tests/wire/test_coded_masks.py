"""Mask bits coded against θ come near their entropy, survive, and nothing malformed is read."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.errors import PmsflError
from pmsfl.wire import ans
from pmsfl.wire.codecs import WireError
from pmsfl.wire.coded_masks import cross_entropy_bits, decode_bits, encode_bits

relaxed = settings(deadline=None, max_examples=80)
probabilities = st.lists(st.floats(0, 1), max_size=80)


def drawn(n: int, seed: int = 0, moved: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Bits and θ like those of a run: θ polarised and clipped, the client's own a little away from it."""
    rng = np.random.default_rng(seed)
    theta = np.clip(rng.beta(0.4, 0.4, n), 0.01, 0.99).astype(np.float32)
    own = np.clip(theta + moved * rng.standard_normal(n), 0.01, 0.99)
    return torch.from_numpy(rng.random(n) < own), torch.from_numpy(theta)


@relaxed
@given(probabilities, st.data())
def test_bits_round_trip_whatever_theta_is(theta: list[float], data: st.DataObject) -> None:
    bits = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(theta), max_size=len(theta))), dtype=torch.bool)
    for dtype in (torch.float32, torch.float64):
        known = torch.tensor(theta, dtype=dtype)
        payload = encode_bits(bits, known)
        assert 1 <= len(payload) <= 1 + (len(theta) + 7) // 8
        received = decode_bits(payload, known)
        assert received.dtype == torch.bool
        assert torch.equal(received, bits)


@pytest.mark.parametrize("moved", [0.0, 0.1])
def test_the_length_is_within_two_percent_of_the_cross_entropy(moved: float) -> None:
    bits, theta = drawn(200_000, moved=moved)
    coded, least = 8 * len(encode_bits(bits, theta)), cross_entropy_bits(bits, theta)
    assert least < 0.75 * len(bits)
    assert coded <= 1.02 * least


def test_cross_entropy_is_the_sum_over_coordinates() -> None:
    bits, theta = torch.tensor([True, False, True]), torch.tensor([0.5, 0.75, 0.25])
    assert cross_entropy_bits(bits, theta) == pytest.approx(1 + 2 + 2)


def test_masks_that_theta_says_nothing_about_travel_packed() -> None:
    bits = torch.arange(800) % 3 == 0
    surprised = torch.where(bits, 0.01, 0.99)
    payload = encode_bits(bits, surprised)
    assert len(payload) == 1 + 100
    assert payload[0] == 0
    assert torch.equal(decode_bits(payload, surprised), bits)


def test_bytes_are_the_same_everywhere() -> None:
    """Golden: a library, a machine or a release that codes otherwise could not talk to the others."""
    i = torch.arange(200)
    theta = ((i * 37) % 101) / 100
    assert encode_bits(((i * 29) % 97) < theta * 97, theta).hex() == ("01000057502a54792d2009872ee15f1bbd7fe0023023")
    i = torch.arange(100_000)
    theta = ((i * 7919) % 10007) / 10006
    digest = hashlib.sha256(encode_bits(((i * 104729) % 99991) < theta * 99991, theta)).hexdigest()
    assert digest == "443b5f5405a2f71c7f51cf256c8c9843e9980bc6da8e65891a4bd1f70f1a220b"


def test_another_theta_is_noticed_or_gives_other_bits() -> None:
    bits, theta = drawn(5000)
    other = torch.where(torch.arange(5000) == 17, 1.0 - theta, theta)
    try:
        assert not torch.equal(decode_bits(encode_bits(bits, theta), other), bits)
    except WireError as e:
        assert "left over" in str(e)  # noqa: PT017


def test_theta_that_is_not_finite_is_refused() -> None:
    with pytest.raises(WireError, match="not finite"):
        encode_bits(torch.tensor([True]), torch.tensor([float("nan")]))


@pytest.mark.parametrize(
    ("bits", "theta"),
    [
        (torch.zeros(2), torch.zeros(2)),
        (torch.ones(2).bool(), torch.zeros(3)),
        (torch.ones(1, 1).bool(), torch.zeros(1, 1)),
    ],
)
def test_only_flat_bool_tensors_like_theta_are_coded(bits: torch.Tensor, theta: torch.Tensor) -> None:
    with pytest.raises(WireError, match="bool"):
        encode_bits(bits, theta)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "1 to 26 bytes, got 0"),
        (bytes(27), "1 to 26 bytes, got 27"),
        (b"\x02\0\0\0\1", "unknown layout 2"),
        (b"\x00\0", "take 25 bytes"),
        (b"\x01\1\0", "end in a zero byte"),
        (b"\x01" + b"\xff" * 24, "left over"),
    ],
)
def test_malformed_payloads_are_refused(payload: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        decode_bits(payload, torch.full((200,), 0.5))


@relaxed
@given(st.data())
def test_what_is_accepted_is_the_only_encoding_of_its_bits(data: st.DataObject) -> None:
    """Random words, bit flips and truncations: a WireError, or bits that would be written just so."""
    n = data.draw(st.integers(0, 300))
    bits, theta = drawn(n, data.draw(st.integers(0, 9)))
    payload = bytearray(encode_bits(bits, theta))
    change = data.draw(st.sampled_from(["flip", "cut", "random"]))
    if change == "flip":
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif change == "cut":
        del payload[data.draw(st.integers(0, len(payload) - 1)) :]
    else:
        payload[1:] = data.draw(st.binary(max_size=40))
    try:
        received = decode_bits(bytes(payload), theta)
    except WireError:
        return
    if payload[0] == 1:
        assert b"\x01" + ans_words(received, theta) == bytes(payload)


def ans_words(bits: torch.Tensor, theta: torch.Tensor) -> bytes:
    """The words alone, where the encoder itself may have found packed bits to be shorter."""
    levels = np.clip(np.rint(theta.numpy() * np.float32(256)), 1, 255).astype(np.int64)
    sort = np.argsort(levels, kind="stable")
    models = [(1, ans.bernoulli(int(levels[i]), 256)) for i in sort]
    return ans.encode(bits.numpy()[sort].astype(np.int32), models)


def test_a_missing_library_is_an_error_and_not_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(PmsflError, match=r"pip install 'pmsfl\[wire\]'"):
        encode_bits(torch.tensor([True]), torch.tensor([0.5]))
