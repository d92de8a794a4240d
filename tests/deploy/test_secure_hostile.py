"""Hostile peers in a secure sum: a server that asks for too much, sites that send wrong shares or garbage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pmsfl.deploy.frames import Answer, Op, Request, Status
from pmsfl.deploy.line import Call
from pmsfl.deploy.rehearse import rehearse
from pmsfl.deploy.secure import SecureClient, SecureError, SecureServer
from pmsfl.deploy.secure.session import HEAD_BYTES, Kind
from pmsfl.deploy.secure.shamir import SHARE_BYTES
from pmsfl.deploy.secure_round import SecureRound
from pmsfl.deploy.server import ServerSide
from pmsfl.errors import PmsflError

from ..conftest import assert_same_tensors, copied
from .helpers import NAMES, recipe, server_of, sites_of, three
from .secure_helpers import HASTY, Change, dropping, federated, same_model, ways

pytest.importorskip("cryptography")


def meddled(path: Path, change: Change, secure: bool = True, **more: Any) -> tuple[list[str], ServerSide]:
    """Site b's notes when a server changes what it tells b."""
    wanted, notes = recipe(rounds=1, eval_every=9), list[str]()
    server = server_of(path, wanted, three(), HASTY, secure_sums=secure)
    server.recipe = wanted.replace(rounds=9)
    sites = sites_of(path, wanted, three())
    sites["b"] = sites_of(path, wanted, three(), note=notes.append, **more)["b"]

    def wrap(site: str, call: Call) -> Call:
        if site != "b":
            return call
        return lambda data: change("b", Request.decode(data), Answer.decode(call(data))).encode()

    ended = rehearse(server, sites, 1, wrap)
    return [*notes, ended["b"]], server


def test_a_server_that_asks_for_both_secrets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the truth, then that c had dropped out: with both answers it could unmask c. The second is not given."""
    given: list[tuple[SecureClient, bytes, bytes]] = []
    answer = SecureClient.answer

    def watched(self: SecureClient, request: bytes) -> bytes:
        out = answer(self, request)
        given.append((self, request, out))
        return out

    monkeypatch.setattr(SecureClient, "answer", watched)
    meddled(tmp_path, lambda site, r, told: told)
    assert len(given) == 3
    for client, request, out in given:
        s, me = client.session, client.client
        came = s.read_list(s.read(request, Kind.REQUEST, me), 0)
        shares = s.read_list(s.read(out, Kind.ANSWER, me), 1 + SHARE_BYTES)
        assert {c: share[0] for c, share in shares.items()} == {c: 0 if c in came else 1 for c in s.clients}
        lie = s.write(Kind.REQUEST, me, s.write_list(dict.fromkeys({me, (me + 1) % 3}, b"")))
        with pytest.raises(SecureError, match="answered this before"):
            answer(client, lie)


def test_a_request_without_this_site_or_with_one_alone_is_not_answered(tmp_path: Path) -> None:
    """A server that claims that b's own upload never came would get b's masking key and, from the others, b's seed."""

    def change(site: str, r: Request, answer: Answer) -> Answer:
        if r.op != Op.FINISH or answer.status != Status.OK:
            return answer
        body = b"\x02\x00" + (0).to_bytes(4, "little") + (2).to_bytes(4, "little")
        return Answer(answer.status, answer.info, answer.wire[:HEAD_BYTES] + body)

    notes, server = meddled(tmp_path, change)
    assert any("leaves this client out" in n for n in notes)
    assert ways(server, "b") == ["in"]  # the other two's shares are enough for the honest part of the server


def test_the_deepest_site_is_not_unmasked_alone(tmp_path: Path) -> None:
    """Depths 1, 2, 2: without c the sum is b's own mask in block 2; b does not answer, nor would the server ask."""
    notes: list[str] = []
    wanted = recipe(rounds=1, eval_every=9, depths="1,2,2")
    server = server_of(tmp_path, wanted, three(), HASTY, secure_sums=True, note=notes.append)
    sites = sites_of(tmp_path, wanted, three())
    with pytest.raises(PmsflError, match="nothing has moved"):
        dropping(server, sites, 1, lambda site, r: site == "c" and r.op == Op.FINISH)
    assert any("one site of depth 2 is left alone" in n for n in notes)

    def change(site: str, r: Request, answer: Answer) -> Answer:
        if r.op != Op.FINISH or answer.status != Status.OK:
            return answer
        body = b"\x02\x00" + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
        return Answer(answer.status, answer.info, answer.wire[:HEAD_BYTES] + body)

    again, other = (
        sites_of(tmp_path / "2", wanted, three()),
        server_of(tmp_path / "2", wanted, three(), HASTY, secure_sums=True),
    )
    other.recipe = wanted.replace(rounds=9)
    said: list[str] = []
    again["b"].note = said.append

    def wrap(site: str, call: Call) -> Call:
        return (
            call if site != "b" else lambda data: change(site, Request.decode(data), Answer.decode(call(data))).encode()
        )

    rehearse(other, again, 1, wrap)
    assert any("one site's mask in its deepest blocks" in n for n in said)


def test_a_site_is_not_talked_out_of_secure_sums(tmp_path: Path) -> None:
    """Not by a run without, not within a round, and not later in the same run."""
    notes, _ = meddled(tmp_path / "1", lambda site, r, answer: answer, secure=False, secure_sums=True)
    assert any("with --secure-sums only" in n for n in notes)

    def no_offer(site: str, r: Request, answer: Answer) -> Answer:
        return Answer(answer.status, {k: v for k, v in answer.info.items() if k != "secure"}, answer.wire)

    notes, server = meddled(tmp_path / "2", no_offer)
    assert any("without: not sent" in n for n in notes)
    assert ways(server, "b") == ["late"]

    def plain(site: str, r: Request, answer: Answer) -> Answer:
        return Answer(answer.status, answer.info | {"secure_sums": False}, answer.wire) if r.op == Op.HELLO else answer

    notes, _ = meddled(tmp_path / "2", plain)
    assert any("not what this site enrolled in" in n for n in notes)
    with pytest.raises(PmsflError, match="was begun with --secure-sums"):
        server_of(tmp_path / "2", recipe(rounds=1, eval_every=9), three())


@pytest.mark.parametrize(
    ("offer", "match"),
    [
        ({"clients": [1], "threshold": 1}, "hides nobody"),
        ({"clients": [0, 1, 2], "threshold": 1}, "take 2 to 3 of 3"),
        ({"clients": [0, 2], "threshold": 2}, "leaves this site out"),
        ({"clients": [0, 1, 7], "threshold": 2}, "not sites of this run"),
        ({"clients": "all", "threshold": 2}, "not sites of this run"),
        ({"clients": [0, 1, 2], "threshold": "2"}, "no threshold"),
    ],
)
def test_an_odd_offer_is_refused_before_anything_is_sent(offer: dict[str, Any], match: str, tmp_path: Path) -> None:
    def change(site: str, r: Request, answer: Answer) -> Answer:
        if r.op != Op.NEXT or "secure" not in answer.info:
            return answer
        return Answer(answer.status, answer.info | {"secure": offer}, answer.wire)

    notes, server = meddled(tmp_path, change)
    assert any(match in n for n in notes)
    assert ways(server, "b") == ["late"]


def test_a_tampered_share_costs_the_round_and_changes_nothing(tmp_path: Path) -> None:
    notes: list[str] = []
    server, sites = federated(tmp_path, patience=HASTY, rounds=1, eval_every=9)
    server.note, server.recipe = notes.append, server.recipe.replace(rounds=9)
    tampered = [0]

    def wrap(site: str, call: Call) -> Call:
        def changed(data: bytes) -> bytes:
            r = Request.decode(data)
            if r.op == Op.SECURE and r.step == Kind.ANSWER and site != "c" and tampered[0] < 2:
                tampered[0] += 1
                wire = r.wire[:-1] + bytes(
                    [
                        r.wire[-1] ^ 1,
                    ]
                )
                data = Request(r.op, r.round, r.step, r.info, wire).encode()
            return call(data)

        return changed

    before: list[dict[str, torch.Tensor]] = []
    give_up = ServerSide._give_up

    def watched(self: ServerSide, reason: str) -> None:
        assert self.state is not None
        before.append(copied(self.state))
        give_up(self, reason)
        assert_same_tensors(copied(self.state), before[-1])

    with pytest.MonkeyPatch.context() as m:
        m.setattr(ServerSide, "_give_up", watched)
        rehearse(server, sites, 1, wrap)
    assert len(before) == 1
    assert any("somebody sent a wrong one" in n for n in notes)
    assert ways(server, "a") == ["in"]  # the second try


def test_a_replayed_round_uploads_another_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sums over the same masks, with and without one site, would show its mask to a server that goes back."""
    seen: list[torch.Tensor] = []
    merge = SecureRound._enter_sums

    def watched(self: SecureRound, sums: Any, heads: Any) -> None:
        merge(self, sums, heads)
        seen.append(self.uploads.values.sum(0))

    monkeypatch.setattr(SecureRound, "_enter_sums", watched)
    for attempt in ("1", "2"):  # a new server that knows nothing of the first; the sites do
        server = server_of(tmp_path / attempt, recipe(rounds=1, eval_every=9), three(), secure_sums=True)
        rehearse(server, sites_of(tmp_path, recipe(rounds=1, eval_every=9), three()), 1)
    assert not torch.equal(*seen)
    assert float((seen[0] - seen[1]).abs().mean()) > 0.3


def test_a_site_that_sends_garbage_for_a_mask_is_noticed_in_the_sum(tmp_path: Path) -> None:
    """One upload cannot be checked; a sum with more set bits than contributors can."""
    server, sites = federated(tmp_path, patience=HASTY, rounds=1, eval_every=9)
    server.recipe = server.recipe.replace(rounds=9)
    notes: list[str] = []
    server.note = notes.append
    taken = SecureServer.take_upload

    def garbage(self: SecureServer, client: int, data: bytes) -> None:
        if client == 1 and not notes:
            data = data[:HEAD_BYTES] + bytes(b ^ 0x5A for b in data[HEAD_BYTES:-1]) + data[-1:]
        taken(self, client, data)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(SecureServer, "take_upload", garbage)
        rehearse(server, sites, 1)
    assert any("more set bits than contributors" in n for n in notes)


def test_damaged_messages_of_a_sum_are_refused_and_change_nothing(tmp_path: Path) -> None:
    """Before each message of b come damaged ones of the same kind; the round ends as if they had not."""
    server, sites = federated(tmp_path, rounds=2, eval_every=9)
    rng, refused = np.random.default_rng(3), [0]

    def wrap(site: str, call: Call) -> Call:
        def pestered(data: bytes) -> bytes:
            r = Request.decode(data)
            if site == "b" and r.op in (Op.SECURE, Op.FINISH) and data not in seen:
                seen.add(data)
                for wire in damaged(r.wire):
                    answer = Answer.decode(call(Request(r.op, r.round, r.step, r.info, wire).encode()))
                    assert answer.status == Status.REFUSED
                    assert "cannot be handled" not in answer.reason
                    refused[0] += 1
            return call(data)

        return pestered

    def damaged(wire: bytes) -> list[bytes]:
        head = []
        for at in rng.integers(0, HEAD_BYTES, 20).tolist():
            head.append(wire[:at] + bytes([wire[at] ^ (1 << int(rng.integers(8)))]) + wire[at + 1 :])
        cuts = [wire[: int(at)] for at in rng.integers(0, len(wire), 10)]
        return [*head, *cuts, wire + b"\0", b"", bytes(len(wire)), wire + wire]

    seen: set[bytes] = set()
    rehearse(server, sites, 2, wrap)
    assert refused[0] == 2 * 4 * 34
    calm, calm_sites = federated(tmp_path / "calm", secure=False, rounds=2, eval_every=9)
    rehearse(calm, calm_sites, 2)
    same_model(server.state, calm.state)


def test_messages_of_a_sum_are_refused_in_a_run_without(tmp_path: Path) -> None:
    server, sites = federated(tmp_path, secure=False, rounds=1, eval_every=9)
    refused: list[str] = []

    def wrap(site: str, call: Call) -> Call:
        def tries(data: bytes) -> bytes:
            r = Request.decode(data)
            if site == "b" and r.op == Op.FINISH:
                refused.append(Answer.decode(call(Request(Op.SECURE, r.round, Kind.KEYS, {}, b"x").encode())).reason)
            return call(data)

        return tries

    rehearse(server, sites, 1, wrap)
    assert set(refused) == {"SECURE: this run has no secure sums"}


def test_one_site_that_sends_wrong_shares_changes_nothing_and_two_end_the_job(tmp_path: Path) -> None:
    """Two right shares are enough. Without them the round is given up each time, and not for ever."""
    server, sites = federated(tmp_path, patience=HASTY, eval_every=9)
    liars = {"a"}

    def wrap(site: str, call: Call) -> Call:
        def changed(data: bytes) -> bytes:
            r = Request.decode(data)
            if site in liars and r.op == Op.SECURE and r.step == Kind.ANSWER:
                data = Request(r.op, r.round, r.step, r.info, r.wire[:-1] + bytes([r.wire[-1] ^ 1])).encode()
            return call(data)

        return changed

    rehearse(server, sites, 1, wrap)
    calm, calm_sites = federated(tmp_path / "calm", eval_every=9)
    rehearse(calm, calm_sites, 1)
    same_model(server.state, calm.state)
    liars.add("b")
    with pytest.raises(PmsflError, match=r"round 2 was given up 5 times.*somebody sent a wrong one"):
        rehearse(server, sites_of(tmp_path, recipe(eval_every=9), three()), 1, wrap)
    same_model(server.state, calm.state)


def test_sequential_steps_and_secure_sums_go_together(tmp_path: Path) -> None:
    server, sites = federated(tmp_path, rounds=2, eval_every=9, schedule="sequential")
    assert set(rehearse(server, sites, 2).values()) == {"the job is over"}
    assert [ways(server, site) for site in NAMES] == [["in", "in"]] * 3
