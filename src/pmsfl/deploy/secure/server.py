"""The server's side of a secure sum."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt

from pmsfl.deploy.secure import primitives, shamir
from pmsfl.deploy.secure.client import MASKING_KEY, OWN_SEED, SEALED_BYTES, pair_key
from pmsfl.deploy.secure.identity import Authority
from pmsfl.deploy.secure.lanes import Lanes, lane_dtype, packed_bytes, reduced, unpack
from pmsfl.deploy.secure.primitives import KEY_BYTES
from pmsfl.deploy.secure.session import PUBLIC_BYTES, Kind, SecureError, Session

Counts = npt.NDArray[np.int64]
MOST_TRIES = 100  # sets of shares that are put together before a secret is given up


class SecureServer:
    """Takes each client's message of a stage once, goes on when the caller says so, and needs `threshold` clients in
    every stage. Who is missing in one is out. `client` is who the connection says it is."""

    def __init__(self, session: Session, authority: Authority | None = None) -> None:
        """authority: checks whose keys they are, so that nobody stops the others by keys that they have to refuse."""
        self.session, self.authority = session, authority
        self._keys: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, bytes]] = {}
        self._came: set[int] = set()
        self._total: Lanes = np.zeros(session.lanes, dtype=lane_dtype(session.bits))
        self._answers: dict[int, dict[int, bytes]] = {}
        self._stage = Kind.KEYS

    # --- public keys

    def take_keys(self, client: int, data: bytes) -> None:
        """A client's KEYS."""
        body = self._body(Kind.KEYS, client, data, set(self.session.clients), self._keys)
        s, keys = self.session, bytes(body)
        if len(keys) != s.keys_bytes:
            raise SecureError(f"KEYS of client {client}: {len(keys)} bytes, expected {s.keys_bytes}")
        if self.authority is not None and s.signed:
            self.authority.check(client, s.statement(client, keys), keys[PUBLIC_BYTES:])
        self._keys[client] = keys

    def roster(self, client: int) -> bytes:
        """ROSTER for a client whose keys came. From now on no more keys are taken."""
        self._go_on(Kind.SHARES, self._keys, client)
        return self.session.write(Kind.ROSTER, client, self.session.write_list(self._keys))

    # --- shares

    def take_shares(self, client: int, data: bytes) -> None:
        """A client's SHARES, one for each other client of the roster."""
        body = self._body(Kind.SHARES, client, data, set(self._keys), self._shares)
        found = self.session.read_list(body, SEALED_BYTES)
        if found.keys() != self._keys.keys() - {client}:
            raise SecureError(f"SHARES of client {client} are not for the others on the roster")
        self._shares[client] = found

    def sealed(self, client: int) -> bytes:
        """SEALED for a client: what the others sealed for it. From now on no more shares are taken."""
        self._go_on(Kind.UPLOAD, self._shares, client)
        sealed = {c: shares[client] for c, shares in self._shares.items() if c != client}
        return self.session.write(Kind.SEALED, client, self.session.write_list(sealed))

    # --- uploads

    def take_upload(self, client: int, data: bytes) -> None:
        """A client's UPLOAD, which is added up and not kept."""
        s = self.session
        if len(data) > s.upload_bytes:
            raise SecureError(f"UPLOAD of client {client}: {len(data)} bytes, expected {s.upload_bytes}")
        body = self._body(Kind.UPLOAD, client, data, set(self._shares), self._came)
        lanes = unpack(body, s.lanes, s.bits)
        if lanes is None:
            wanted = packed_bytes(s.lanes, s.bits)
            raise SecureError(f"UPLOAD of client {client}: not {wanted} bytes, or bits are set behind the last number")
        self._total = self._total + lanes
        self._came.add(client)

    def request(self, client: int) -> bytes:
        """REQUEST for a client whose upload came. From now on no more uploads are taken."""
        self._go_on(Kind.ANSWER, self._came, client)
        came = dict.fromkeys(self._came, b"")
        return self.session.write(Kind.REQUEST, client, self.session.write_list(came))

    # --- unmasking

    def take_answer(self, client: int, data: bytes) -> None:
        """A client's ANSWER: for everybody who sent shares one share, of the kind that was asked for."""
        body = self._body(Kind.ANSWER, client, data, self._came, self._answers)
        found = self.session.read_list(body, 1 + shamir.SHARE_BYTES)
        kinds = {c: OWN_SEED if c in self._came else MASKING_KEY for c in self._shares}
        if {c: share[:1] for c, share in found.items()} != kinds:
            raise SecureError(f"ANSWER of client {client} has not the shares that were asked for")
        self._answers[client] = {c: share[1:] for c, share in found.items()}

    def result(self) -> tuple[Counts, Counts]:
        """How many of those whose uploads came set each coordinate [n], and how many contributed to it [n]."""
        s = self.session
        if len(self._answers) < s.threshold:
            raise SecureError(f"{len(self._answers)} clients answered, {s.threshold} are needed to unmask the sum")
        total = self._total.copy()
        for client in self._shares:
            total -= self._pads(client, self._secret(client))
        total = reduced(total, s.bits).astype(np.int64)
        if not s.counts:
            return total, np.full(s.coordinates, len(self._came), dtype=np.int64)
        return total[: s.coordinates], total[s.coordinates :]

    def _secret(self, client: int) -> bytes:
        """What the answers say together: the seed of a client that came, the masking key of one that did not.

        Whether it is right, everybody can see; where a share is wrong, others are tried.
        """
        s = self.session
        for givers in islice(combinations(sorted(self._answers), s.threshold), MOST_TRIES):
            secret = shamir.join({s.place(g): self._answers[g][client] for g in givers})
            if secret is not None and self._fits(client, secret):
                return secret
        raise SecureError(f"shares of client {client}'s secret do not fit what it announced: somebody sent a wrong one")

    def _fits(self, client: int, secret: bytes) -> bool:
        keys = self._keys[client]
        if client in self._came:
            return primitives.commitment(secret, self.session.id, client) == keys[2 * KEY_BYTES : PUBLIC_BYTES]
        return primitives.public_key(secret) == keys[KEY_BYTES : 2 * KEY_BYTES]

    def _pads(self, client: int, secret: bytes) -> Lanes:
        """What a client left in the total: its own random numbers, or, where it dropped out, those that the others
        share with it and that its own upload would have cancelled."""
        s = self.session
        if client in self._came:
            return primitives.stream(secret, s.lanes, s.bits)
        pads = np.zeros_like(self._total)
        for other in self._came:
            pad = primitives.stream(pair_key(s, secret, self._keys[other], client, other), s.lanes, s.bits)
            pads = pads + pad if other < client else pads - pad
        return pads

    # --- order

    def _body(self, kind: Kind, client: int, data: bytes, allowed: set[int], taken: Collection[int]) -> memoryview:
        if self._stage != kind:
            raise SecureError(f"{kind.name} of client {client}: this session takes {self._stage.name} now")
        if client not in allowed:
            raise SecureError(f"{kind.name} of client {client}: it is not in this session, or dropped out of it before")
        if client in taken:
            raise SecureError(f"{kind.name} of client {client} came before")
        return self.session.read(data, kind, client)

    def _go_on(self, stage: Kind, done: Collection[int], client: int) -> None:
        s = self.session
        if self._stage not in (stage, _BEFORE[stage]):
            raise SecureError(f"{stage.name} cannot begin: this session takes {self._stage.name} now")
        if len(done) < s.threshold:
            raise SecureError(f"only {len(done)} clients are left, {s.threshold} are needed: no sum in this round")
        if client not in done:
            raise SecureError(f"client {client} dropped out before {stage.name}")
        self._stage = stage


_BEFORE = {Kind.SHARES: Kind.KEYS, Kind.UPLOAD: Kind.SHARES, Kind.ANSWER: Kind.UPLOAD}
