"""A client's side of a secure sum: four messages, each made once."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pmsfl.deploy.secure import primitives, shamir
from pmsfl.deploy.secure.identity import Identity
from pmsfl.deploy.secure.lanes import Lanes, lane_dtype, pack, reduced
from pmsfl.deploy.secure.primitives import KEY_BYTES, TAG_BYTES
from pmsfl.deploy.secure.session import PUBLIC_BYTES, Kind, SecureError, Session

SEALED_BYTES = 2 * shamir.SHARE_BYTES + TAG_BYTES
OWN_SEED, MASKING_KEY = b"\0", b"\1"


class SecureClient:
    """keys → shares → upload → answer, in this order. What the server sends is checked, never trusted: a client
    answers one request, and never gives away both of a peer's secrets."""

    def __init__(
        self,
        session: Session,
        client: int,
        draw: Callable[[int], bytes] = os.urandom,
        identity: Identity | None = None,
    ) -> None:
        """identity: proves whose keys these are and checks the others' proofs, in a session with signed keys."""
        if client not in session.clients:
            raise SecureError(f"client {client} is not in this session")
        if session.signed != (identity is not None):
            raise SecureError("an identity goes with a session whose keys are signed, and with no other")
        self.session, self.client, self.draw, self.identity = session, client, draw, identity
        self._sealing, self._masking, self._seed = draw(KEY_BYTES), draw(KEY_BYTES), draw(KEY_BYTES)
        self._announced = b""
        self._roster: dict[int, bytes] = {}
        self._own_shares = b""
        self._sealed: dict[int, bytes] = {}
        self._stage = 0

    def keys(self) -> bytes:
        """The first message: public keys."""
        self._check_turn(1)
        self._stage = 1
        public = self._public()
        proof = b"" if self.identity is None else self.identity.prove(self.session.statement(self.client, public))
        self._announced = public + proof
        return self.session.write(Kind.KEYS, self.client, self._announced)

    def _public(self) -> bytes:
        commitment = primitives.commitment(self._seed, self.session.id, self.client)
        return primitives.public_key(self._sealing) + primitives.public_key(self._masking) + commitment

    def shares(self, roster: bytes) -> bytes:
        """The second: for every other client on the server's roster, a share of both secrets that it alone can read."""
        self._check_turn(2)
        s = self.session
        found = s.read_list(s.read(roster, Kind.ROSTER, self.client), s.keys_bytes)
        self._enough(found, "the roster")
        if found.get(self.client) != self._announced:
            raise SecureError(f"the roster has other keys of client {self.client} than its own")
        if len({k[: 2 * KEY_BYTES] for k in found.values()}) != len(found):
            raise SecureError("two clients on the roster have the same keys")
        if self.identity is not None:
            for c, keys in found.items():
                self.identity.check(c, s.statement(c, keys), keys[PUBLIC_BYTES:])
        self._stage = 2
        self._roster = found
        places = {c: s.place(c) for c in found}
        masking = shamir.split(self._masking, list(places.values()), s.threshold, self.draw)
        seed = shamir.split(self._seed, list(places.values()), s.threshold, self.draw)
        both = {c: masking[x] + seed[x] for c, x in places.items()}
        self._own_shares = both.pop(self.client)
        sealed = {c: primitives.seal(self._sealing_key(c, self.client, c), b, b"") for c, b in both.items()}
        return s.write(Kind.SHARES, self.client, s.write_list(sealed))

    def _sealing_key(self, other: int, sender: int, receiver: int) -> bytes:
        """Session and both ends are in the key, so what was sealed opens nowhere else."""
        public = self._roster[other][:KEY_BYTES]
        return primitives.agree(self._sealing, public, self.session.info(b"seal", sender, receiver))

    def upload(self, sealed: bytes, bits: npt.NDArray[np.bool_], contributes: npt.NDArray[np.bool_]) -> bytes:
        """The third: the mask bits [n] of the coordinates that contribute [n], hidden under random numbers.

        sealed: what the others sealed for this client; they are the ones whose random numbers must cancel.
        """
        self._check_turn(3)
        s = self.session
        found = s.read_list(s.read(sealed, Kind.SEALED, self.client), SEALED_BYTES)
        if self.client in found or not found.keys() <= self._roster.keys():
            raise SecureError("shares came from somebody who is not on the roster")
        self._enough(found | {self.client: b""}, "those who sent shares")
        values = self._values(bits, contributes)
        self._stage = 3
        self._sealed = found
        values += primitives.stream(self._seed, s.lanes, s.bits)
        for other in found:
            pad = primitives.stream(
                pair_key(s, self._masking, self._roster[other], self.client, other), s.lanes, s.bits
            )
            values = values + pad if self.client < other else values - pad
        return s.write(Kind.UPLOAD, self.client, pack(reduced(values, s.bits), s.bits))

    def _values(self, bits: npt.NDArray[np.bool_], contributes: npt.NDArray[np.bool_]) -> Lanes:
        s = self.session
        for name, array in (("bits", bits), ("contributes", contributes)):
            if array.dtype != np.bool_ or array.shape != (s.coordinates,):
                raise SecureError(f"{name} must be bool [{s.coordinates}], got {array.dtype} {list(array.shape)}")
        if not s.counts and not bool(contributes.all()):
            raise SecureError("some coordinates do not contribute, but this session counts no contributors")
        parts = (bits & contributes, contributes)[: 1 + s.counts]
        return np.concatenate(parts).astype(lane_dtype(s.bits))

    def answer(self, request: bytes) -> bytes:
        """The last: for each peer one share, of its own seed if its upload came, of its masking key if it dropped out.

        Never both: with both the server could unmask one client's upload.
        """
        self._check_turn(4)
        s = self.session
        came = s.read_list(s.read(request, Kind.REQUEST, self.client), 0)
        peers = self._sealed.keys() | {self.client}
        if self.client not in came or not came.keys() <= peers:
            raise SecureError("the request leaves this client out, or names somebody who never sent shares")
        self._enough(came, "those whose uploads came")
        self._stage = 4
        given = {}
        for peer in sorted(peers):
            masking, seed = self._shares_of(peer)
            given[peer] = OWN_SEED + seed if peer in came else MASKING_KEY + masking
        return s.write(Kind.ANSWER, self.client, s.write_list(given))

    def _shares_of(self, peer: int) -> tuple[bytes, bytes]:
        both: bytes | None = self._own_shares
        if peer != self.client:
            both = primitives.unseal(self._sealing_key(peer, peer, self.client), self._sealed[peer], b"")
        if both is None:
            raise SecureError(f"the shares that client {peer} sealed were changed on their way")
        return both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES :]

    def _enough(self, clients: dict[int, bytes], what: str) -> None:
        if len(clients) < self.session.threshold:
            raise SecureError(f"{what}: {len(clients)} clients, at least {self.session.threshold} are needed")

    def _check_turn(self, stage: int) -> None:
        if self._stage != stage - 1:
            raise SecureError(f"client {self.client} has answered this before, or is asked out of order")


def pair_key(session: Session, private: bytes, other_keys: bytes, one: int, other: int) -> bytes:
    """The seed of the random numbers that two clients share."""
    public = other_keys[KEY_BYTES : 2 * KEY_BYTES]
    return primitives.agree(private, public, session.info(b"mask", min(one, other), max(one, other)))
