"""What all sides of one secure sum agree on, and the layout of its messages.

Every message, little endian: magic "PMSA" | version u8 | kind u8 | session 16 bytes | client u32 | body. `client` is
the sender, or the receiver of what the server sends. Bodies (K clients of the session, U a list of some):

    KEYS     up    sealing key 32 | masking key 32 | commitment to the own seed 32 | where keys are signed: proof 2048
    ROSTER   down  count u16, then for each: client u32 | the body of its KEYS
    SHARES   up    count u16, then for each other client of the roster: client u32 | 82 sealed bytes
    SEALED   down  the same list: what the others sealed for this client
    UPLOAD   up    the numbers, b bits each
    REQUEST  down  count u16, then for each whose upload came: client u32
    ANSWER   up    count u16, then for each of U: client u32 | kind u8 (0 own seed, 1 masking key) | share 33

What is sealed: share of the masking key 33 | share of the own seed 33, and a tag of 16.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

from pmsfl.deploy.secure.lanes import packed_bytes
from pmsfl.errors import PmsflError

MAGIC = b"PMSA"
VERSION = 1
MOST_CLIENTS = 2**15  # sums fit 16 bits
MOST_COORDINATES = 2**31
PUBLIC_BYTES = 96  # of a client's KEYS, without the proof of whose they are
PROOF_BYTES = 2048

_HEAD = struct.Struct("<4sBB16sI")
_COUNT = struct.Struct("<H")
_CLIENT = struct.Struct("<I")
HEAD_BYTES = _HEAD.size


def fewest(clients: int) -> int:
    """The least threshold for so many clients: all but about a quarter.

    More than half is enough only where all hear the same of who is there. A server may relay to one client the shares
    of threshold - 1 others only, and tell everybody else that those dropped out: with 3 of 5 it gets all their masking
    keys and the one's own seed, which is its upload in the clear. Each client leaves out at most K - threshold others,
    so with enough of them needed there are too few such shares, even if some keys are of an earlier try at the round.
    """
    return clients - (clients + 1) // 4


class SecureError(PmsflError):
    """A message or a state in which a secure sum does not go on."""


class Kind(IntEnum):
    """What a message is. The numbers are part of the format."""

    KEYS = 1
    ROSTER = 2
    SHARES = 3
    SEALED = 4
    UPLOAD = 5
    REQUEST = 6
    ANSWER = 7


@dataclass(frozen=True)
class Session:
    """One sum: of whom, of how many coordinates, and how many must be left at the end."""

    run: int
    round: int
    clients: tuple[int, ...]  # growing
    coordinates: int
    threshold: int
    counts: bool = True  # are contributors counted, coordinate by coordinate? not needed where nobody has personal ones
    signed: bool = False  # do clients prove to each other whose keys they are?

    def __post_init__(self) -> None:
        k = len(self.clients)
        if k < 2:
            raise SecureError(f"a sum over {k} clients hides nobody: secure aggregation needs at least 2")
        if k > MOST_CLIENTS or not 0 <= self.coordinates <= MOST_COORDINATES:
            raise SecureError(f"{k} clients and {self.coordinates} coordinates are more than a secure sum takes")
        if list(self.clients) != sorted(set(self.clients)) or not 0 <= self.clients[0] <= self.clients[-1] < 2**32:
            raise SecureError("clients must be different numbers in 0..2^32-1, growing")
        if not fewest(k) <= self.threshold <= k:
            raise SecureError(
                f"threshold = {self.threshold}: take {fewest(k)} to {k} of {k} clients, or a server that tells each of "
                "them something else about the others could read an upload"
            )

    @property
    def bits(self) -> int:
        """b = ⌈log2(K + 1)⌉: a sum of K bits fits."""
        return len(self.clients).bit_length()

    @property
    def lanes(self) -> int:
        """How many numbers are summed: a bit and, where they are counted, a contribution per coordinate."""
        return self.coordinates * (2 if self.counts else 1)

    @property
    def keys_bytes(self) -> int:
        """The length of the body of a client's KEYS."""
        return PUBLIC_BYTES + PROOF_BYTES * self.signed

    def statement(self, client: int, public: bytes) -> bytes:
        """What a client signs: that in this session these are its keys."""
        return self.info(b"keys", client) + public[:PUBLIC_BYTES]

    @property
    def upload_bytes(self) -> int:
        """The length of a client's UPLOAD."""
        return HEAD_BYTES + packed_bytes(self.lanes, self.bits)

    @property
    def id(self) -> bytes:
        """16 bytes that no other session of this federation has."""
        fixed = (self.run, self.round, self.coordinates, self.threshold, int(self.counts), int(self.signed))
        numbers = (*fixed, *self.clients)
        return hashlib.sha256(b"pmsfl secure sum " + ",".join(map(str, numbers)).encode()).digest()[:16]

    def place(self, client: int) -> int:
        """Where a client's share lies: 1..K."""
        return self.clients.index(client) + 1

    def info(self, purpose: bytes, *clients: int) -> bytes:
        """What a key is for, so that no key serves twice."""
        return b"pmsfl " + purpose + self.id + b"".join(_CLIENT.pack(c) for c in clients)

    # --- messages

    def write(self, kind: Kind, client: int, body: bytes) -> bytes:
        """A message."""
        return _HEAD.pack(MAGIC, VERSION, kind, self.id, client) + body

    def read(self, data: bytes, kind: Kind, client: int) -> memoryview:
        """The body of the message that is expected of (or for) a client; SecureError for any other."""
        if len(data) < HEAD_BYTES:
            raise SecureError(f"{kind.name} of client {client}: truncated, {len(data)} bytes")
        magic, version, found, session, sender = _HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise SecureError(f"{kind.name} of client {client}: not a message of this version")
        if found != kind:
            raise SecureError(f"expected {kind.name} of client {client}, got kind {found}")
        if session != self.id:
            raise SecureError(f"{kind.name} of client {client} belongs to another run, round or cohort")
        if sender != client:
            raise SecureError(f"{kind.name} of client {client} says that it is client {sender}'s")
        return memoryview(data)[HEAD_BYTES:]

    def write_list(self, items: dict[int, bytes]) -> bytes:
        """A count, then client and entry, growing."""
        return _COUNT.pack(len(items)) + b"".join(_CLIENT.pack(c) + items[c] for c in sorted(items))

    def read_list(self, body: memoryview, size: int) -> dict[int, bytes]:
        """What `write_list` wrote, entries of one size; only clients of this session, each once, growing."""
        if len(body) < _COUNT.size:
            raise SecureError("truncated list of clients")
        (count,) = _COUNT.unpack_from(body)
        each = _CLIENT.size + size
        if count > len(self.clients) or len(body) != _COUNT.size + count * each:
            raise SecureError(f"a list of {count} clients takes {_COUNT.size + count * each} bytes, got {len(body)}")
        out: dict[int, bytes] = {}
        for i in range(count):
            at = _COUNT.size + i * each
            (client,) = _CLIENT.unpack_from(body, at)
            out[client] = bytes(body[at + _CLIENT.size : at + each])
        if list(out) != sorted(out) or len(out) != count or not out.keys() <= set(self.clients):
            raise SecureError("a list names a client twice, out of order, or one that is not in this session")
        return out
