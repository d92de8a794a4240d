"""A server that tells every client something else about who is there still reads nobody's upload."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from pmsfl.deploy.secure import SecureClient, SecureError, Session, primitives, shamir
from pmsfl.deploy.secure.client import MASKING_KEY, pair_key
from pmsfl.deploy.secure.lanes import unpack
from pmsfl.deploy.secure.session import HEAD_BYTES, Kind, fewest


def unmasked(session: Session, victim: int, near: set[int], said: dict[int, set[int]]) -> bool:
    """Does a server read the upload of `victim`, to whom it relays shares of `near` only, if it tells each other client
    that the uploads of `said` came? What it may not ask, it does not get."""
    s = session
    clients = {c: SecureClient(s, c) for c in s.clients}
    keys = {c: one.keys()[HEAD_BYTES:] for c, one in clients.items()}
    shares = {}
    for c, one in clients.items():
        body = one.shares(s.write(Kind.ROSTER, c, s.write_list(keys)))[HEAD_BYTES:]
        shares[c] = s.read_list(memoryview(body), 82)
    bits = np.random.default_rng(0).random(s.coordinates) < 0.5
    sent = b""
    for c, one in clients.items():
        peers = near if c == victim else set(s.clients) - {c}
        sealed = s.write(Kind.SEALED, c, s.write_list({p: shares[p][c] for p in peers}))
        out = one.upload(sealed, bits, np.ones_like(bits))
        sent = out if c == victim else sent
    got: dict[tuple[int, bytes], dict[int, bytes]] = {}
    for c, came in said.items():
        request = s.write(Kind.REQUEST, c, s.write_list(dict.fromkeys(came, b"")))
        try:
            answer = clients[c].answer(request)[HEAD_BYTES:]
        except SecureError:
            continue
        for peer, share in s.read_list(memoryview(answer), 34).items():
            got.setdefault((peer, share[:1]), {})[s.place(c)] = share[1:]

    def secret(peer: int, kind: bytes) -> bytes | None:
        found = dict(list(got.get((peer, kind), {}).items())[: s.threshold])
        return shamir.join(found) if len(found) == s.threshold else None

    seed, masking = secret(victim, b"\0"), {p: secret(p, MASKING_KEY) for p in near}
    if seed is None or None in masking.values():
        return False
    lanes = unpack(sent[HEAD_BYTES:], s.lanes, s.bits)
    assert lanes is not None
    lanes = lanes - primitives.stream(seed, s.lanes, s.bits)
    for p, private in masking.items():
        assert private is not None
        pad = primitives.stream(pair_key(s, private, keys[victim], victim, p), s.lanes, s.bits)
        lanes = lanes - pad if victim < p else lanes + pad
    return bool(((lanes & ((1 << s.bits) - 1)) == bits).all())


SAID = {0: {0, 1, 2}, 1: {0, 1, 3}, 2: {0, 2, 3}, 3: {0, 3, 4}, 4: {0, 3, 4}}


def test_with_three_of_five_a_server_could_read_an_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why more than half is not enough: an attack that works, without which the next tests would be worth nothing."""
    monkeypatch.setattr("pmsfl.deploy.secure.session.fewest", lambda clients: clients // 2 + 1)
    assert unmasked(Session(0, 0, tuple(range(5)), 40, 3, counts=False), 0, {1, 2}, SAID)


def test_that_threshold_is_refused() -> None:
    with pytest.raises(SecureError, match="take 4 to 5 of 5"):
        Session(0, 0, tuple(range(5)), 40, 3)


def test_no_way_to_tell_three_clients_different_things_reads_an_upload() -> None:
    s = Session(0, 0, (0, 1, 2), 40, fewest(3), counts=False)
    ways = ({0, 1}, {0, 2}, {1, 2}, {0, 1, 2})
    for said in product(ways, ways, ways):
        assert not unmasked(s, 0, {1}, dict(enumerate(said)))


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 30, 100, 190])
def test_there_are_fewer_shares_than_it_takes(clients: int) -> None:
    """The victim's random numbers are shared with `old` others whose keys the server has from an earlier try, and with
    `live` others of which it needs `threshold` shares each; it gets at most clients - threshold from everybody."""
    needed = fewest(clients)
    most = clients - needed
    assert clients // 2 < needed <= clients
    for old in range(clients):
        if clients - (old > 0) - old < needed:
            continue  # too few can open what the victim sealed: its own seed cannot be had
        for live in range(max(needed - 1 - old, 0), clients - old):
            own = live + 1 - needed if old == 0 else 0
            shares = (clients - 1 - live) * min(live, most) + live * min(live - 1, most) + own
            assert shares < live * needed
