"""Any threshold of shares gives the secret back; fewer give anything."""

from __future__ import annotations

import os
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.deploy.secure.shamir import PRIME, SHARE_BYTES, join, split, weights


@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 7), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, places: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, places))
    shares = split(secret, range(1, places + 1), threshold, os.urandom)
    assert {len(s) for s in shares.values()} == {SHARE_BYTES}
    for chosen in combinations(shares, threshold):
        assert join({x: shares[x] for x in chosen}) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_smallest_and_the_greatest_secret_survive(secret: bytes) -> None:
    shares = split(secret, [3, 1, 9], 2, os.urandom)
    assert join({x: shares[x] for x in (9, 1)}) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """With one share less, each possible secret has exactly one polynomial: the shares alone decide nothing."""
    shares = split(b"\x07" * 32, [1, 2, 3], 3, os.urandom)
    for guess in (bytes(32), b"\x01" * 32):
        # the third share that would go with the guess: solve for it with the weights of places 1, 2, 3
        w = weights([1, 2, 3])
        known = sum(w[i] * int.from_bytes(shares[i + 1], "little") for i in range(2))
        third = (int.from_bytes(guess, "little") - known) * pow(w[2], -1, PRIME) % PRIME
        forged = {1: shares[1], 2: shares[2], 3: third.to_bytes(SHARE_BYTES, "little")}
        assert join(forged) == guess


def test_shares_of_no_secret_are_noticed() -> None:
    """Values from 2^256 up to the prime are no 32 bytes."""
    assert join({1: (2**256 + 5).to_bytes(SHARE_BYTES, "little")}) is None


@pytest.mark.parametrize(
    ("size", "places", "threshold"), [(31, [1, 2], 2), (32, [1, 2], 3), (32, [0, 1], 2), (32, [1], 0)]
)
def test_what_cannot_be_shared_is_refused(size: int, places: list[int], threshold: int) -> None:
    with pytest.raises(ValueError, match="cannot share"):
        split(bytes(size), places, threshold, os.urandom)


def test_the_modulus_is_prime() -> None:
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11))
