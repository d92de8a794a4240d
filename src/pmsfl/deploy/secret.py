"""A site's own secret and the keys that come from it.

Masks, noise and batches of a site are drawn from its secret, never from the run's seed: a mask the server can
recompute protects nothing. Each stream has a root of its own by HKDF, so what one stream shows says nothing about
another. Uploads that are drawn evenly over the cohort (`upload_draw = "even"`) need chance in common: it comes from a
secret that every site's kit holds and the server's does not.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path

import torch

from pmsfl.engine.plan import Keys
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream

SIZE = 32
COHORT = "cohort.secret"  # in every site's kit, the same in all of them
# What both sides must derive alike stays with the run's seed; all that hides something is the site's own.
OWN_STREAMS = (
    Stream.BATCHES,
    Stream.AUGMENT,
    Stream.FORWARD,
    Stream.UPLOAD,
    Stream.EVALUATION,
    Stream.DROPOUT,
    Stream.NOISE,
    Stream.LABELS,
)


def load_or_create(path: Path) -> bytes:
    """The site's secret: 32 bytes of the system's entropy, in a file that only its owner may read."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, os.urandom(SIZE))
    return load(path)


def write(path: Path, data: bytes) -> None:
    """A file that only its owner may read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(path: Path) -> bytes:
    """A secret that is there; PmsflError where others may read it or it is none."""
    if mode := stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise PmsflError(f"{path} can be read by others (mode bits {mode:03o}); set it to 600 or make a new secret")
    secret = path.read_bytes()
    if len(secret) != SIZE:
        raise PmsflError(f"{path} has {len(secret)} bytes, a secret has {SIZE}; delete it to have a new one made")
    return secret


def site_keys(secret: bytes, run: str, seed: int, cohort: bytes | None = None) -> Keys:
    """Keys of one site in one run: its own streams from the secret, the public ones from the run's seed.

    cohort: the sites' common secret, where uploads are to be drawn from it.
    """
    roots = Keys.of_seed(seed).roots
    for stream in OWN_STREAMS:
        source = cohort if cohort is not None and stream is Stream.UPLOAD else secret
        word = hkdf(source, f"pmsfl {run} {stream.name}".encode(), 8)
        roots[stream] = torch.tensor(int.from_bytes(word, "little", signed=True), dtype=torch.int64)
    return Keys(roots)


def hkdf(secret: bytes, info: bytes, size: int, salt: bytes = b"") -> bytes:
    """HKDF-SHA256 (RFC 5869): `size` bytes."""
    key = hmac.digest(salt or bytes(32), secret, hashlib.sha256)
    out, block = b"", b""
    for counter in range(1, -(-size // 32) + 1):
        block = hmac.digest(key, block + info + bytes([counter]), hashlib.sha256)
        out += block
    return out[:size]
