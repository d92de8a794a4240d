"""Secure sums equal plain ones for everybody who may survive, hide single uploads, and refuse what does not belong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.deploy.secure import SecureClient, SecureError, SecureServer, Session
from pmsfl.deploy.secure.lanes import pack, unpack
from pmsfl.deploy.secure.session import HEAD_BYTES, Kind, fewest
from pmsfl.masks.aggregate import Aggregator, Rule, merge, merge_sums

Bits = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def session_of(clients: int = 3, coordinates: int = 5, threshold: int | None = None, counts: bool = True) -> Session:
    return Session(7, 2, tuple(range(10, 10 + clients)), coordinates, threshold or fewest(clients), counts)


class Sum:
    """One session: its clients, its server, and what everybody holds. Stages take the clients that are still there."""

    def __init__(self, session: Session, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        shape = (len(session.clients), session.coordinates)
        self.session, self.server = session, SecureServer(session)
        self.clients = {c: SecureClient(session, c) for c in session.clients}
        bits, held = rng.random(shape) < 0.4, rng.random(shape) < 0.7
        self.bits = dict(zip(session.clients, bits, strict=True))
        self.held = dict(zip(session.clients, held if session.counts else held | True, strict=True))

    def exchange_keys(self, clients: tuple[int, ...] | None = None) -> None:
        for c in clients or self.session.clients:
            self.server.take_keys(c, self.clients[c].keys())

    def exchange_shares(self, clients: tuple[int, ...] | None = None) -> None:
        for c in clients or self.session.clients:
            self.server.take_shares(c, self.clients[c].shares(self.server.roster(c)))

    def upload_of(self, c: int) -> bytes:
        return self.clients[c].upload(self.server.sealed(c), self.bits[c], self.held[c])

    def upload(self, clients: tuple[int, ...] | None = None) -> None:
        for c in clients or self.session.clients:
            self.server.take_upload(c, self.upload_of(c))

    def answer(self, clients: tuple[int, ...] | None = None) -> None:
        for c in clients or self.session.clients:
            self.server.take_answer(c, self.clients[c].answer(self.server.request(c)))

    def assert_sum_of(self, clients: tuple[int, ...]) -> None:
        sums, counts = self.server.result()
        assert np.array_equal(sums, sum((self.bits[c] & self.held[c]).astype(int) for c in clients))
        assert np.array_equal(counts, sum(self.held[c].astype(int) for c in clients))

    def until(self, stage: str) -> Sum:
        """Everybody takes part in everything before a stage."""
        for name in ("exchange_keys", "exchange_shares", "upload", "answer"):
            if name == stage:
                break
            getattr(self, name)()
        return self


def test_every_set_of_survivors_gives_its_exact_sum() -> None:
    clients = session_of(7).clients
    for size in (5, 6, 7):
        for came in combinations(clients, size):
            one = Sum(session_of(7))
            one.exchange_keys()
            one.exchange_shares()
            one.upload(came)
            one.answer(came[-5:])  # the threshold is enough
            one.assert_sum_of(came)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_sums_are_exact_whoever_drops_out_and_when(data: st.DataObject) -> None:
    k, n = data.draw(st.integers(2, 9)), data.draw(st.integers(0, 40))
    session = session_of(k, n, data.draw(st.integers(fewest(k), k)), data.draw(st.booleans()))
    one, left = Sum(session, data.draw(st.integers(0, 99))), session.clients
    for stage in (one.exchange_keys, one.exchange_shares, one.upload, one.answer):
        size = data.draw(st.integers(session.threshold, len(left)))
        left = tuple(sorted(data.draw(st.permutations(left))[:size]))
        stage(left)
        if stage == one.upload:
            came = left
    one.assert_sum_of(came)


@pytest.mark.parametrize("rule", ["sampled", "damped", "beta", "settled"])
def test_a_merge_of_secure_sums_is_the_merge_of_the_uploads(rule: Rule) -> None:
    one = Sum(session_of(4, 200)).until("upload")
    came = one.session.clients[:3]
    one.upload(came)
    one.answer(came)
    sums, heads = (torch.from_numpy(part) for part in one.server.result())
    previous, aggregator = torch.linspace(0.01, 0.99, 200, dtype=torch.float64), Aggregator(rule, min_contributors=2)
    uploads = torch.from_numpy(np.stack([one.bits[c] for c in came])).double()
    held = torch.from_numpy(np.stack([one.held[c] for c in came]))
    plain, _ = merge(previous, uploads, held, aggregator)
    secure, _ = merge_sums(previous, sums.double(), heads.double(), heads, aggregator)
    assert torch.equal(secure, plain)


@pytest.mark.parametrize("clients", [2, 3, 4, 7, 8, 15, 16])
def test_all_ones_do_not_overflow_and_take_the_fewest_bits(clients: int) -> None:
    one = Sum(session_of(clients, 11))
    for c in one.session.clients:
        one.bits[c][:], one.held[c][:] = True, True
    one.until("upload")
    for c in one.session.clients:
        data = one.upload_of(c)
        assert len(data) == HEAD_BYTES + (2 * 11 * clients.bit_length() + 7) // 8 == one.session.upload_bytes
        one.server.take_upload(c, data)
    one.answer()
    assert one.server.result()[0].tolist() == [clients] * 11


def test_hundreds_of_clients_are_summed_in_wider_numbers() -> None:
    session = Session(0, 0, tuple(range(256)), 3, 192)
    assert session.bits == 9
    lanes = np.array([0, 1, 511, 300, 256], dtype=np.uint16)
    assert len(pack(lanes, 9)) == 6
    received = unpack(pack(lanes, 9), 5, 9)
    assert received is not None
    assert received.tolist() == lanes.tolist()


def test_an_upload_looks_uniform_whatever_is_in_it() -> None:
    one = Sum(session_of(3, 40_000))
    one.bits[10][:], one.held[10][:] = True, True
    one.until("upload")
    codes = np.frombuffer(one.upload_of(10)[HEAD_BYTES:], dtype=np.uint8)
    pairs = np.stack([codes >> place & 3 for place in (0, 2, 4, 6)], 1)
    for part in (pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]):
        seen = np.bincount(part.reshape(-1), minlength=4)
        chi_square = float(((seen - seen.mean()) ** 2 / seen.mean()).sum())
        assert chi_square < 27.0  # 3 degrees of freedom: passed by chance but for one in 170 000


def test_the_sum_of_uploads_alone_says_nothing() -> None:
    """Pairwise numbers cancel in the sum, each client's own do not: without answers even the sum stays hidden."""
    one = Sum(session_of(3, 4000)).until("answer")
    raw = one.server._total & 3
    plain = sum((one.bits[c] & one.held[c]).astype(int) for c in one.session.clients)
    assert 0.2 < float((raw[:4000] == plain).mean()) < 0.3


# --- refusals


def test_one_client_is_refused() -> None:
    with pytest.raises(SecureError, match="over 1 clients hides nobody"):
        session_of(1, threshold=1)


@pytest.mark.parametrize("threshold", [0, 1, 2, 5])
def test_thresholds_that_are_too_low_or_too_high_are_refused(threshold: int) -> None:
    with pytest.raises(SecureError, match="take 3 to 4 of 4 clients"):
        Session(0, 0, (1, 2, 3, 4), 5, threshold)


@pytest.mark.parametrize("clients", [(2, 1), (1, 1), (-1, 2), (1, 2**32)])
def test_clients_that_are_no_growing_numbers_are_refused(clients: tuple[int, ...]) -> None:
    with pytest.raises(SecureError, match="growing"):
        Session(0, 0, clients, 5, 2)


@pytest.mark.parametrize("stage", ["exchange_keys", "exchange_shares", "upload", "answer"])
def test_below_the_threshold_there_is_no_sum(stage: str) -> None:
    one = Sum(session_of(5)).until(stage)
    getattr(one, stage)((10, 11))
    follow: dict[str, Callable[[], object]] = {
        "exchange_keys": lambda: one.server.roster(10),
        "exchange_shares": lambda: one.server.sealed(10),
        "upload": lambda: one.server.request(10),
        "answer": one.server.result,
    }
    with pytest.raises(SecureError, match="2 clients"):
        follow[stage]()


def test_a_client_refuses_lists_below_the_threshold() -> None:
    one = Sum(session_of(5)).until("exchange_shares")
    s, me = one.session, one.clients[10]
    keys = s.read_list(s.read(one.server.roster(10), Kind.ROSTER, 10), 96)
    few = s.write(Kind.ROSTER, 10, s.write_list({c: keys[c] for c in (10, 11)}))
    with pytest.raises(SecureError, match="2 clients, at least 4"):
        me.shares(few)
    one.exchange_shares()
    sealed = s.read_list(s.read(one.server.sealed(10), Kind.SEALED, 10), 82)
    with pytest.raises(SecureError, match="2 clients, at least 4"):
        me.upload(s.write(Kind.SEALED, 10, s.write_list({11: sealed[11]})), one.bits[10], one.held[10])
    one.upload()
    with pytest.raises(SecureError, match="2 clients, at least 4"):
        me.answer(s.write(Kind.REQUEST, 10, s.write_list({10: b"", 11: b""})))


def test_a_client_answers_once_so_nobody_gets_both_kinds_of_a_peers_shares() -> None:
    one = Sum(session_of(5)).until("answer")
    s = one.session
    everybody = s.write(Kind.REQUEST, 10, s.write_list(dict.fromkeys(s.clients, b"")))
    without = s.write(Kind.REQUEST, 10, s.write_list(dict.fromkeys((10, 11, 12), b"")))
    one.clients[10].answer(everybody)
    for request in (without, everybody):
        with pytest.raises(SecureError, match="answered this before"):
            one.clients[10].answer(request)


def test_an_answer_has_one_kind_of_share_for_every_peer() -> None:
    one = Sum(session_of(5)).until("upload")
    one.upload((10, 11, 12, 13))
    s = one.session
    answer = s.read_list(s.read(one.clients[10].answer(one.server.request(10)), Kind.ANSWER, 10), 34)
    assert {c: share[0] for c, share in answer.items()} == {10: 0, 11: 0, 12: 0, 13: 0, 14: 1}


@pytest.mark.parametrize("came", [(11, 12, 13), (10, 11, 14)])
def test_requests_that_leave_a_client_out_or_name_strangers_are_refused(came: tuple[int, ...]) -> None:
    one = Sum(session_of(5)).until("exchange_shares")
    one.exchange_shares((10, 11, 12, 13))
    one.upload((10, 11, 12, 13))
    s = one.session
    with pytest.raises(SecureError, match="leaves this client out, or names"):
        one.clients[10].answer(s.write(Kind.REQUEST, 10, s.write_list(dict.fromkeys(came, b""))))


@pytest.mark.parametrize("stage", ["exchange_keys", "exchange_shares", "upload", "answer"])
def test_a_second_message_of_a_client_is_refused_and_changes_nothing(stage: str) -> None:
    one = Sum(session_of(3)).until(stage)
    made: dict[str, tuple[Callable[[], bytes], Callable[[int, bytes], None]]] = {
        "exchange_keys": (one.clients[10].keys, one.server.take_keys),
        "exchange_shares": (lambda: one.clients[10].shares(one.server.roster(10)), one.server.take_shares),
        "upload": (lambda: one.upload_of(10), one.server.take_upload),
        "answer": (lambda: one.clients[10].answer(one.server.request(10)), one.server.take_answer),
    }
    make, take = made[stage]
    data = make()
    take(10, data)
    with pytest.raises(SecureError, match="came before"):
        take(10, data)
    with pytest.raises(SecureError, match="says that it is client 10's"):
        take(11, data)
    stages = ("exchange_keys", "exchange_shares", "upload", "answer")
    getattr(one, stage)((11, 12))
    for later in stages[stages.index(stage) + 1 :]:
        getattr(one, later)()
    one.assert_sum_of(one.session.clients)


def test_messages_of_another_round_are_refused() -> None:
    one = Sum(session_of(3)).until("upload")
    other = Sum(Session(7, 3, one.session.clients, 5, 2)).until("upload")
    one.server.sealed(10)
    with pytest.raises(SecureError, match="another run, round or cohort"):
        one.server.take_upload(10, other.upload_of(10))


def test_messages_out_of_turn_are_refused() -> None:
    one = Sum(session_of(3))
    with pytest.raises(SecureError, match="takes KEYS now"):
        one.server.take_upload(10, b"")
    with pytest.raises(SecureError, match="cannot begin"):
        one.server.request(10)
    one.exchange_keys((10, 11))
    one.server.roster(10)
    with pytest.raises(SecureError, match="takes SHARES now"):
        one.server.take_keys(12, one.clients[12].keys())
    with pytest.raises(SecureError, match="dropped out"):
        one.server.roster(12)
    with pytest.raises(SecureError, match="out of order"):
        one.clients[10].answer(one.session.write(Kind.REQUEST, 10, one.session.write_list({10: b"", 11: b""})))


def changed(data: bytes, at: int) -> bytes:
    out = bytearray(data)
    out[at] ^= 1
    return bytes(out)


def test_sealed_shares_that_were_changed_are_noticed_by_their_receiver() -> None:
    one = Sum(session_of(3)).until("upload")
    sealed = changed(one.server.sealed(10), -5)
    one.server.take_upload(10, one.clients[10].upload(sealed, one.bits[10], one.held[10]))
    one.upload((11, 12))
    with pytest.raises(SecureError, match="client 12 sealed were changed"):
        one.clients[10].answer(one.server.request(10))


def test_sealed_shares_open_only_where_they_belong() -> None:
    one = Sum(session_of(3)).until("upload")
    s = one.session
    mine = s.read_list(s.read(one.server.sealed(10), Kind.SEALED, 10), 82)
    swapped = s.write(Kind.SEALED, 10, s.write_list({11: mine[12], 12: mine[11]}))
    one.server.take_upload(10, one.clients[10].upload(swapped, one.bits[10], one.held[10]))
    one.upload((11, 12))
    with pytest.raises(SecureError, match="sealed were changed"):
        one.clients[10].answer(one.server.request(10))


@pytest.mark.parametrize("dropped", [False, True])
def test_a_wrong_share_is_noticed_before_a_wrong_sum_is_given(dropped: bool) -> None:
    one = Sum(session_of(4)).until("upload")
    came = one.session.clients[: 3 if dropped else 4]
    one.upload(came)
    one.server.take_answer(
        10, changed(one.clients[10].answer(one.server.request(10)), -1 if dropped else HEAD_BYTES + 9)
    )
    one.answer(came[1:3])
    with pytest.raises(SecureError, match=f"client {13 if dropped else 10}'s secret do not fit"):
        one.server.result()
    if not dropped:  # one more who answers, and there are enough right ones
        one.answer(came[3:])
        one.assert_sum_of(came)


def test_a_roster_with_changed_or_doubled_keys_is_refused() -> None:
    one = Sum(session_of(3)).until("exchange_shares")
    s = one.session
    keys = s.read_list(s.read(one.server.roster(10), Kind.ROSTER, 10), 96)
    with pytest.raises(SecureError, match="other keys of client 10"):
        one.clients[10].shares(s.write(Kind.ROSTER, 10, s.write_list(keys | {10: keys[11]})))
    with pytest.raises(SecureError, match="same keys"):
        one.clients[10].shares(s.write(Kind.ROSTER, 10, s.write_list(keys | {12: keys[11]})))
    with pytest.raises(SecureError, match="no proper point"):
        one.clients[10].shares(s.write(Kind.ROSTER, 10, s.write_list(keys | {12: bytes(96)})))


@pytest.mark.parametrize("what", ["float", "length", "contributes"])
def test_masks_of_another_kind_are_refused(what: str) -> None:
    one = Sum(session_of(3, counts=False)).until("upload")
    bits, held = {
        "float": (np.zeros(5), one.held[10]),
        "length": (np.zeros(4, dtype=np.bool_), one.held[10]),
        "contributes": (one.bits[10], np.arange(5) > 0),
    }[what]
    with pytest.raises(SecureError, match=r"must be bool \[5\]|counts no contributors"):
        one.clients[10].upload(one.server.sealed(10), bits, held)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_arbitrary_bytes_are_refused_with_a_reason(data: st.DataObject) -> None:
    stage = data.draw(st.sampled_from(["exchange_keys", "exchange_shares", "upload", "answer"]))
    one = Sum(session_of(3)).until(stage)
    takes = {
        "exchange_keys": (Kind.KEYS, one.server.take_keys),
        "exchange_shares": (Kind.SHARES, one.server.take_shares),
        "upload": (Kind.UPLOAD, one.server.take_upload),
        "answer": (Kind.ANSWER, one.server.take_answer),
    }
    kind, take = takes[stage]
    body = data.draw(st.binary(max_size=120).filter(lambda b: len(b) not in (3, 96)))  # lengths that may be right
    whole = data.draw(st.sampled_from([body, one.session.write(kind, 10, body)]))
    if stage != "exchange_keys":
        getattr(one.server, {"exchange_shares": "roster", "upload": "sealed", "answer": "request"}[stage])(10)
    with pytest.raises(SecureError):
        take(10, whole)


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(["shares", "upload", "answer"]), st.data())
def test_a_client_refuses_arbitrary_bytes_or_goes_on(step: str, data: st.DataObject) -> None:
    one = Sum(session_of(3)).until({"shares": "exchange_shares", "upload": "upload", "answer": "answer"}[step])
    whole = {"shares": one.server.roster, "upload": one.server.sealed, "answer": one.server.request}[step](10)
    at = data.draw(st.integers(0, len(whole) - 1))
    bad = data.draw(st.sampled_from([whole[:at], whole + b"\0", changed(whole, at)]))
    me = one.clients[10]
    try:
        if step == "upload":
            me.upload(bad, one.bits[10], one.held[10])
        else:
            getattr(me, step)(bad)
    except SecureError:
        return
    assert step != "answer" or bad == whole
    assert len(bad) == len(whole)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(SecureError, match=r"pip install 'pmsfl\[deploy\]'"):
        SecureClient(session_of(3), 10).keys()
