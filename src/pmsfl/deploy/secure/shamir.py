"""Shamir's secret sharing of 32 bytes over the field of 2^256 + 297, the first prime above 2^256."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, places: Sequence[int], threshold: int, draw: Callable[[int], bytes]) -> dict[int, bytes]:
    """A share for every place (positive, different); any `threshold` of them give the secret back, fewer say nothing.

    draw: n random bytes from a cryptographic source.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(places) or min(places) < 1:
        raise ValueError(f"cannot share {len(secret)} bytes among {len(places)} places, {threshold} needed")
    # 48 bytes modulo a 257-bit prime: as good as uniform
    coefficients = [int.from_bytes(secret, "little")]
    coefficients += [int.from_bytes(draw(48), "little") % PRIME for _ in range(threshold - 1)]
    return {x: _at(coefficients, x).to_bytes(SHARE_BYTES, "little") for x in places}


def _at(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for c in reversed(coefficients):
        value = (value * x + c) % PRIME
    return value


def weights(places: Sequence[int]) -> list[int]:
    """What the share of each place counts in the secret: Lagrange's polynomials at 0."""
    out = []
    for x in places:
        top, bottom = 1, 1
        for other in places:
            if other != x:
                top, bottom = top * other % PRIME, bottom * (other - x) % PRIME
        out.append(top * pow(bottom, -1, PRIME) % PRIME)
    return out


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret behind exactly as many shares as are needed; None where they belong to no 32 bytes."""
    values = [int.from_bytes(s, "little") for s in shares.values()]
    secret = sum(w * v for w, v in zip(weights(list(shares)), values, strict=True)) % PRIME
    return secret.to_bytes(SECRET_BYTES, "little") if secret < 2**256 else None
