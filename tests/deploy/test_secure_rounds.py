"""A deployment with secure sums ends where the plain one ends, whoever drops out when, and shows the server no mask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pmsfl.deploy import command, operate
from pmsfl.deploy.frames import Answer, Op, Request, Status
from pmsfl.deploy.line import Call
from pmsfl.deploy.rehearse import rehearse
from pmsfl.deploy.secure import SecureServer
from pmsfl.deploy.secure.session import HEAD_BYTES, Kind, Session
from pmsfl.deploy.secure_round import SecureRound
from pmsfl.deploy.server import ServerSide
from pmsfl.deploy.settings import Patience
from pmsfl.deploy.site import SiteSide
from pmsfl.deploy.sums import check_summable
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError

from ..conftest import assert_same_tensors, copied, play
from .helpers import NAMES, recipe, server_of, sites_of, three

pytest.importorskip("cryptography")

HASTY = Patience(2, 5.0, 2.0, 1.0, 4.0, 0.3, 64)
Change = Callable[[str, Request, Answer], Answer]


def federated(path: Path, secure: bool = True, patience: Patience | None = None, **changes: Any) -> Any:
    """A server and its sites, ready to be played."""
    wanted, more = recipe(**changes), {} if patience is None else {"patience": patience}
    server = server_of(path, wanted, three(), secure_sums=secure, **more)
    return server, sites_of(path, wanted, three())


def ways(server: ServerSide, site: str) -> list[str]:
    return [line["sites"][site] for line in server.books.directory.metrics()]


def same_model(a: State | None, b: State | None) -> None:
    assert a is not None
    assert b is not None
    assert torch.equal(a.shared, b.shared)
    assert torch.equal(a.plain, b.plain)


# --- the same result


CASES: dict[str, dict[str, Any]] = {
    "personal": {},
    "mixed": {"depths": "1,2,2"},
    "threshold-mask": {"method": "threshold-mask", "eval_mask": "expected"},
    "beta": {"aggregate": "beta", "cohort": 2, "min_contributors": 2},
    "local-norms": {"norms": "local", "client_state": "persistent", "entropy_target": 0.5},
    "coded": {"mask_codec": "entropy", "theta_codec": "u8"},
    "lg-fedavg": {"method": "lg-fedavg", "depths": "4"},
    "depthfl": {"method": "depthfl", "depths": "1,2,2"},
    "nothing-personal": {"personal_ratio": 0.0, "depths": "2"},
}


@pytest.mark.parametrize("case", CASES)
def test_secure_sums_end_bit_for_bit_where_plain_uploads_end(case: str, tmp_path: Path) -> None:
    found = []
    for secure in (False, True):
        server, sites = federated(tmp_path / str(secure), secure, **CASES[case])
        assert set(rehearse(server, sites, 3).values()) == {"the job is over"}
        found.append((server, sites))
    (plain, plain_sites), (summed, summed_sites) = found
    same_model(summed.state, plain.state)
    for mine, other in zip(summed.books.directory.metrics(), plain.books.directory.metrics(), strict=True):
        for name in ("loss", "samples", "mask_entropy", "disagree", "personal", "at_clip", "sites"):
            assert mine[name] == other[name]
    assert summed.books.totals.last == plain.books.totals.last
    for site in NAMES:
        mine, other = summed_sites[site]._memory(), plain_sites[site]._memory()
        assert (mine is None) == (other is None)
        if mine is not None:
            assert torch.equal(mine.indices, other.indices)
            assert torch.equal(mine.values, other.values)


def test_the_server_never_learns_a_mask_or_a_personal_set(tmp_path: Path) -> None:
    """What a site uploads is as good as random, and nothing else of a mask leaves it."""
    sent: list[tuple[str, Request]] = []

    def listen(site: str, call: Call) -> Call:
        def heard(data: bytes) -> bytes:
            sent.append((site, Request.decode(data)))
            return call(data)

        return heard

    server, sites = federated(tmp_path, rounds=2)
    rehearse(server, sites, 2, listen)
    assert sites["a"]._memory().participations
    assert len(sites["a"]._memory().indices)
    assert server.state is not None
    assert all(not len(m.indices) for m in server.state.bank.values())
    lines = server.books.directory.metrics()
    assert all("personal.up" not in line["bytes"] for line in lines)
    size = server.world.masked_size(2)
    for name, r in sent:
        if r.op == Op.NEXT:
            assert r.info["personal"] == 0
            assert not r.wire
        if r.op == Op.FINISH:
            counts = 1 + (r.round >= 1)  # nobody has personal coordinates in the first round
            session = Session(0, 0, (0, 1, 2), size, 2, counts == 2)
            upload = np.frombuffer(r.wire[HEAD_BYTES : session.upload_bytes], np.uint8)
            ones = int(np.unpackbits(upload).sum())
            assert abs(ones - 4 * len(upload)) < 6 * np.sqrt(2 * len(upload)), name
    total = sum(line["bytes"]["mask.up"] for line in lines)
    assert total == sum(len(r.wire) for _, r in sent if r.op == Op.FINISH) - sum(
        line["bytes"]["norms.up"] for line in lines
    )
    heard = sum(len(r.wire) for _, r in sent if r.op == Op.SECURE)
    assert sum(line["bytes"]["secure.up"] for line in lines) == heard


# --- dropping out


class Gone(BaseException):
    """The site's process is killed."""


def dropping(server: ServerSide, sites: dict[str, SiteSide], rounds: int, dies: Callable[[str, Request], bool]) -> None:
    """Play while one site is killed just before it would send a request."""
    errors: list[Any] = []
    hook, threading.excepthook = threading.excepthook, lambda args: errors.append(args.exc_type)

    def wrap(site: str, call: Call) -> Call:
        def guarded(data: bytes) -> bytes:
            if dies(site, Request.decode(data)):
                raise Gone
            return call(data)

        return guarded

    try:
        rehearse(server, sites, rounds, wrap)
    finally:
        threading.excepthook = hook
    assert set(errors) <= {Gone}


def without_b(wanted_late: bool) -> State:
    """One round of the reference arithmetic in which client 1 is late, or not."""
    wanted = recipe(rounds=1, eval_every=9)
    world = World(wanted, federation=three())
    plan = world.plan(0)
    late = tuple(wanted_late and c == 1 for c in plan.clients)
    world.plan = lambda round_: type(plan)(0, plan.clients, plan.depths, plan.steps, late)  # type: ignore[method-assign]
    return play(world, CohortExecutor, 1)[0]


@pytest.mark.parametrize(
    ("op", "step", "counted"),
    [
        (Op.SECURE, Kind.KEYS, False),
        (Op.SECURE, Kind.SHARES, False),  # it has given keys, but no shares
        (Op.FINISH, 0, False),  # its shares are out, its masked upload never comes
        (Op.SECURE, Kind.ANSWER, True),  # its masked upload came, its answer never does
    ],
)
def test_a_site_that_vanishes_at_any_stage_is_recovered_by_the_others(
    op: Op, step: int, counted: bool, tmp_path: Path
) -> None:
    server, sites = federated(tmp_path, patience=HASTY, rounds=1, eval_every=9)
    server.recipe = server.recipe.replace(rounds=9)  # no evaluation: the dead site would be waited for again
    dropping(server, sites, 1, lambda site, r: site == "b" and (r.op, r.step) == (op, step))
    assert ways(server, "b") == ["in" if counted else "late"]
    assert server.state is not None
    expected = without_b(not counted)
    torch.testing.assert_close(server.state.shared, expected.shared, rtol=0, atol=1e-9)
    torch.testing.assert_close(server.state.plain, expected.plain, rtol=0, atol=1e-9)


def test_a_site_whose_answer_is_late_keeps_what_was_merged(tmp_path: Path) -> None:
    """Its upload is in the sum: when its answer comes after the round, it is told so and remembers."""

    def slow(site: str, call: Call) -> Call:
        def waits(data: bytes) -> bytes:
            r = Request.decode(data)
            if site == "b" and r.op == Op.SECURE and r.step == Kind.ANSWER:
                time.sleep(2.0)
            return call(data)

        return waits

    server, sites = federated(tmp_path, patience=HASTY, rounds=1, eval_every=9)
    server.recipe = server.recipe.replace(rounds=9)
    rehearse(server, sites, 1, slow)
    assert ways(server, "b") == ["in"]
    assert (tmp_path / "b" / "run" / "memory-000001.safetensors").is_file()


@pytest.mark.parametrize("step", [Kind.SHARES, Kind.ANSWER])
def test_with_too_few_left_the_round_is_given_up_and_nothing_has_changed(step: Kind, tmp_path: Path) -> None:
    notes: list[str] = []
    server, sites = federated(tmp_path, patience=HASTY, eval_every=9)
    server.note = notes.append
    rehearse(server, sites, 1)
    assert server.state is not None
    before, counted = copied(server.state), server.books.totals.ledger.as_dict()
    with pytest.raises(PmsflError, match="nothing has moved"):
        dropping(
            server,
            sites_of(tmp_path, recipe(eval_every=9), three()),
            1,
            lambda site, r: site != "a" and r.op == Op.SECURE and r.step == step,
        )
    assert any("given up: 1 of 3 sites are left, the secure sum needs 2" in n for n in notes)
    assert_same_tensors(copied(server.state), before)
    assert server.books.totals.ledger.as_dict() == counted
    # They come back, and the round is played again.
    rehearse(server, sites_of(tmp_path, recipe(eval_every=9), three()), 1)
    assert server.state.round == 2


def test_a_lost_line_changes_nothing(tmp_path: Path) -> None:
    """Every call of b gets lost once, on the way there or back: its secrets are not made anew."""
    seen: set[bytes] = set()

    def flaky(site: str, call: Call) -> Call:
        def lost(data: bytes) -> bytes:
            if site == "b" and data not in seen:
                seen.add(data)
                if Request.decode(data).step % 2:
                    raise ConnectionError("lost on the way there")
                call(data)
                raise TimeoutError("lost on the way back")
            return call(data)

        return lost

    server, sites = federated(tmp_path, rounds=2, eval_every=2)
    for site in sites.values():
        site.pause = 0.01
    rehearse(server, sites, 2, flaky)
    calm, calm_sites = federated(tmp_path / "calm", rounds=2, eval_every=2)
    rehearse(calm, calm_sites, 2)
    same_model(server.state, calm.state)
    assert ways(server, "b") == ["in", "in"]


# --- hostile peers


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


def test_a_server_that_asks_for_both_secrets_is_refused(tmp_path: Path) -> None:
    """First the truth, then that c had dropped out: with both answers it could unmask c. The second is not given."""
    asked: list[Request] = []

    def change(site: str, r: Request, answer: Answer) -> Answer:
        if r.op == Op.FINISH and answer.status == Status.OK:
            asked.append(r)
        return answer

    requests: list[bytes] = []
    answers: list[bytes] = []
    secret: dict[str, Any] = {}

    def twice(self: Any, request: bytes) -> bytes:
        requests.append(request)
        answers.append(plain(self, request))
        secret["client"] = self
        return answers[-1]

    from pmsfl.deploy.secure import SecureClient

    plain = SecureClient.answer
    with pytest.MonkeyPatch.context() as m:
        m.setattr(SecureClient, "answer", twice)
        meddled(tmp_path, change)
    client = secret["client"]
    s: Session = client.session
    lie = s.write(Kind.REQUEST, client.client, s.write_list(dict.fromkeys((0, 1), b"")))
    with pytest.raises(PmsflError, match="answered this before"):
        plain(client, lie)
    for data, request in zip(answers, requests, strict=True):
        found = s.read_list(s.read(data, Kind.ANSWER, int.from_bytes(data[22:26], "little")), 34)
        came = s.read_list(s.read(request, Kind.REQUEST, int.from_bytes(request[22:26], "little")), 0)
        assert {c: share[0] for c, share in found.items()} == {c: 0 if c in came else 1 for c in found}


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
        ({"clients": [0, 1, 2], "threshold": 1}, "more than half"),
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


# --- what is refused, what is said


@pytest.mark.parametrize(
    ("changes", "sites", "match"),
    [
        ({"method": "splitfed"}, 3, "uploads weights"),
        ({"method": "splitfed-pm"}, 3, "uploads theta"),
        ({"method": "standalone"}, 3, "uploads nothing"),
        ({"weighting": "samples"}, 3, "counts every site once"),
        ({}, 1, "hides nothing"),
    ],
)
def test_what_cannot_be_summed_is_refused_before_a_job(changes: dict[str, Any], sites: int, match: str) -> None:
    with pytest.raises(PmsflError, match=match):
        check_summable(recipe(**changes), sites, 2)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"depths": "1,2,3"}, "only one site has depth 3"), ({"depths": "1,2,2", "cohort": 2}, "cohort")],
)
def test_depths_that_leave_one_site_alone_are_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    server, sites = federated(tmp_path, **changes)
    with pytest.raises(PmsflError, match=match):
        rehearse(server, sites, 1)
    assert not server.books.directory.metrics()


def test_start_refuses_before_it_asks_for_a_session(tmp_path: Path) -> None:
    (tmp_path / "deployment.json").write_text('{"sites": ["a", "b"]}')
    wanted = recipe(method="splitfed")
    with pytest.raises(PmsflError, match="uploads weights"):
        operate.start(tmp_path, wanted, "r", 1, Patience(), print, secure_sums=True)


def test_status_says_in_words_what_is_hidden_and_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for secure in (True, False):
        server, sites = federated(tmp_path / "pmsfl" / "runs" / str(secure), secure, rounds=1, eval_every=9)
        rehearse(server, sites, 1)
        found = server.status()
        assert found["secure_sums"] is secure
        assert (found["sites"]["a"]["mask_score"] is None) is secure
        command._tell({"run": found, "connected": None})
        said = " ".join(capsys.readouterr().out.split())
        assert ("uploads are neither entropy-coded nor checked one by one" in said) is secure
        assert ("norms, smashed data and labels go as ever" in said) is secure
        assert ("every upload is checked" in said) is not secure
