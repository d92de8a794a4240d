"""The cryptography, all of it from the library `cryptography`: X25519, HKDF, ChaCha20, ChaCha20-Poly1305, SHA-256."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from pmsfl.deploy.secure.lanes import Lanes, lane_dtype
from pmsfl.deploy.secure.session import SecureError

KEY_BYTES = 32
TAG_BYTES = 16
HASH_BYTES = 32


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError:
        raise SecureError(
            "secure aggregation needs the library cryptography, which is not installed: pip install 'pmsfl[deploy]'"
        ) from None
    return x25519


def check_library() -> None:
    """SecureError where the library is not installed."""
    _library()


def public_key(private: bytes) -> bytes:
    """The X25519 public key of 32 random bytes."""
    key: bytes = _library().X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return key


def agree(private: bytes, public: bytes, info: bytes) -> bytes:
    """A key that both owners of two key pairs come to, for the purpose that `info` names."""
    x25519 = _library()
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        other = x25519.X25519PublicKey.from_public_bytes(public)
        secret = x25519.X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError:
        raise SecureError("a public key is no proper point of X25519") from None
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def stream(key: bytes, count: int, bits: int) -> Lanes:
    """`count` random numbers from a key that is used for nothing else; those above 2^bits are to be reduced."""
    _library()
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    dtype = np.dtype(lane_dtype(bits)).newbyteorder("<")
    generator = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    data = generator.update(bytes(count * dtype.itemsize))
    return np.frombuffer(data, dtype=dtype).astype(lane_dtype(bits)) if count else np.empty(0, dtype=lane_dtype(bits))


def seal(key: bytes, secret: bytes, about: bytes) -> bytes:
    """Encrypted and authenticated together with `about`. A key seals one message, so the nonce may be 0."""
    _library()
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), secret, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """What was sealed; None where anything was changed."""
    _library()
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        return None


def commitment(seed: bytes, session: bytes, client: int) -> bytes:
    """A hash that binds a client to a seed and, as the seed has 256 random bits, says nothing about it."""
    return hashlib.sha256(b"pmsfl seed" + session + client.to_bytes(4, "little") + seed).digest()
