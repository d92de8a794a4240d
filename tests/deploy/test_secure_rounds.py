"""A deployment with secure sums ends where the plain one ends, whoever drops out when, and shows the server no mask."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pmsfl.deploy import command, operate
from pmsfl.deploy.frames import Op, Request
from pmsfl.deploy.line import Call
from pmsfl.deploy.rehearse import rehearse
from pmsfl.deploy.secure.session import HEAD_BYTES, Kind, Session
from pmsfl.deploy.settings import Patience
from pmsfl.deploy.sums import check_summable
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError

from ..conftest import assert_same_tensors, copied, play
from .helpers import NAMES, recipe, sites_of, three
from .secure_helpers import HASTY, dropping, federated, same_model, ways

pytest.importorskip("cryptography")

# --- the same result


CASES: dict[str, dict[str, Any]] = {
    "personal": {},
    "mixed": {"depths": "1,2,2"},
    "beta": {"aggregate": "beta", "cohort": 2, "min_contributors": 2},
    "local-norms": {"norms": "local", "client_state": "persistent", "entropy_target": 0.5},
    "coded": {"mask_codec": "entropy", "theta_codec": "u8"},
    "lg-fedavg": {"method": "lg-fedavg", "depths": "4"},
    "depthfl": {"method": "depthfl", "depths": "1,2,2"},
    "nothing-personal": {"personal_ratio": 0.0, "depths": "2"},
    "merges": {"merges": 3, "client_state": "stay", "epochs": 3},
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


# --- what is refused, what is said


@pytest.mark.parametrize(
    ("changes", "sites", "match"),
    [
        ({"method": "splitfed"}, 3, "uploads weights"),
        ({"method": "splitfed-pm"}, 3, "uploads theta"),
        ({"method": "standalone"}, 3, "uploads nothing"),
        ({"weighting": "samples"}, 3, "counts every site once"),
        ({"method": "threshold-mask", "eval_mask": "expected"}, 3, "are no draw"),
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
