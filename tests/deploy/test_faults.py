"""Sites that die, hang, lose their line, come back or come late; a server that is killed."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pmsfl.deploy.books import Books
from pmsfl.deploy.frames import Answer, Op, Request, Status
from pmsfl.deploy.line import Call
from pmsfl.deploy.rehearse import rehearse
from pmsfl.deploy.server import ServerSide
from pmsfl.deploy.settings import Patience
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError

from ..conftest import assert_same_tensors, copied, play
from .helpers import NAMES, recipe, server_of, sites_of, three

HASTY = Patience(2, 5.0, 2.0, 1.5, 4.0, 0.3, 64)
Meddle = Callable[[str, Request, Call, bytes], bytes]


def between(meddle: Meddle) -> Any:
    """Something that sits on the line of every site."""

    def wrap(site: str, call: Call) -> Call:
        return lambda data: meddle(site, Request.decode(data), call, data)

    return wrap


def undisturbed(path: Path, **changes: Any) -> State:
    wanted = recipe(**changes)
    server = server_of(path, wanted, three())
    rehearse(server, sites_of(path, wanted, three()), wanted.rounds)
    assert server.state is not None
    return server.state


def same_model(a: State | None, b: State) -> None:
    assert a is not None
    assert torch.equal(a.shared, b.shared)
    assert torch.equal(a.plain, b.plain)


def ways(server: ServerSide, site: str) -> list[str]:
    return [line["sites"][site] for line in server.books.directory.metrics()]


def test_a_line_that_fails_and_comes_back_changes_nothing(tmp_path: Path) -> None:
    """Calls that never arrive and answers that never come back: the retry is answered as the first try was."""
    seen: dict[bytes, int] = {}

    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        seen[data] = seen.get(data, 0) + 1
        if site == "b" and seen[data] == 1:
            if r.step % 2:
                raise ConnectionError("lost on the way there")
            call(data)
            raise TimeoutError("lost on the way back")
        return call(data)

    wanted = recipe(rounds=2, eval_every=2)
    server, sites = server_of(tmp_path, wanted, three()), sites_of(tmp_path, wanted, three())
    for site in sites.values():
        site.pause = 0.01
    rehearse(server, sites, 2, between(meddle))
    same_model(server.state, undisturbed(tmp_path / "calm", rounds=2, eval_every=2))
    assert all(not server.flags.get(s) for s in NAMES)
    assert ways(server, "b") == ["in", "in"]


def test_a_site_that_dies_in_a_round_costs_the_others_nothing_but_its_mask(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        if site == "c" and r.op == Op.STEP and (r.round, r.step) == (1, 1):
            raise Killed
        return call(data)

    wanted, errors = recipe(eval_every=9), []
    hook, threading.excepthook = threading.excepthook, lambda args: errors.append(args.exc_type)
    try:
        server, sites = server_of(tmp_path, wanted, three(), HASTY), sites_of(tmp_path, wanted, three())
        rehearse(server, sites, 2, between(meddle))
    finally:
        threading.excepthook = hook
    assert errors == [Killed]
    assert ways(server, "c") == ["in", "late"]
    assert ways(server, "a") == ["in", "in"]
    # It comes back for the next job, with what it had on its disk.
    sites["c"] = sites_of(tmp_path, wanted, three())["c"]
    rehearse(server, sites, 1)
    assert ways(server, "c") == ["in", "late", "in"]
    memory = sites["c"]._memory()
    assert memory is not None
    assert server.state is not None
    assert torch.equal(memory.indices, server.state.bank[2].indices)


def test_a_site_that_hangs_is_out_until_the_next_round(tmp_path: Path) -> None:
    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        if site == "a" and r.op == Op.STEP and (r.round, r.step) == (0, 1):
            time.sleep(2.2)
        if r.op == Op.STEP and r.round:
            time.sleep(0.08)
        return call(data)

    notes: list[str] = []
    wanted = recipe(rounds=6, eval_every=9)
    server, sites = server_of(tmp_path, wanted, three(), HASTY), sites_of(tmp_path, wanted, three(), note=notes.append)
    ended = rehearse(server, sites, 6, between(meddle))
    assert ways(server, "a")[0] == "late"
    assert ways(server, "a")[-1] == "in"
    assert ways(server, "b") == ways(server, "c") == ["in"] * 6
    assert any("left out: later than 1.5 s" in n for n in notes)
    assert set(ended.values()) == {"the job is over"}


def test_a_late_mask_is_dropped_as_the_reference_drops_it(tmp_path: Path) -> None:
    """The round of the two that are left, in the reference's own arithmetic."""

    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        if site == "b" and r.op == Op.FINISH:
            time.sleep(2.2)
        return call(data)

    wanted = recipe(rounds=1, eval_every=9)
    server, sites = server_of(tmp_path, wanted, three(), HASTY), sites_of(tmp_path, wanted, three())
    # no evaluation: the late site would be late for that, too
    server.recipe = wanted.replace(rounds=9)
    rehearse(server, sites, 1, between(meddle))
    assert ways(server, "b") == ["late"]
    world = World(wanted, federation=three())
    plan = world.plan(0)
    late = tuple(c == 1 for c in plan.clients)
    world.plan = lambda round_: type(plan)(0, plan.clients, plan.depths, plan.steps, late)  # type: ignore[method-assign]
    state, _, _ = play(world, CohortExecutor, 1)
    assert server.state is not None
    torch.testing.assert_close(server.state.shared, state.shared, rtol=0, atol=1e-9)
    assert sites["b"]._memory() is None  # what was not merged is not kept


def test_a_site_whose_own_code_fails_skips_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    wanted = recipe(eval_every=9)
    server, sites = server_of(tmp_path, wanted, three(), HASTY), sites_of(tmp_path, wanted, three(), note=notes.append)
    right = type(sites["a"])._gradient

    def wrong(self: Any, data: bytes, step: int, shape: tuple[int, ...]) -> torch.Tensor:
        if self is sites["a"] and self.round == 1:
            raise ValueError("out of memory, say")
        return right(self, data, step, shape)

    monkeypatch.setattr(type(sites["a"]), "_gradient", wrong)
    rehearse(server, sites, 3)
    assert ways(server, "a") == ["in", "late", "in"]
    assert any("out of memory, say" in n for n in notes)


def test_too_few_sites_leave_the_state_as_it_was(tmp_path: Path) -> None:
    wanted = recipe(eval_every=9)
    server, sites = server_of(tmp_path, wanted, three(), HASTY), sites_of(tmp_path, wanted, three())
    rehearse(server, sites, 1)
    assert server.state is not None
    before = copied(server.state)
    bytes_before = server.books.totals.ledger.as_dict()

    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        if site != "a" and r.op == Op.STEP:
            time.sleep(6.0)
        return call(data)

    with pytest.raises(PmsflError, match="nothing has moved"):
        rehearse(server, sites_of(tmp_path, wanted, three()), 1, between(meddle), give_up=20)
    assert_same_tensors(copied(server.state), before)
    assert server.books.totals.ledger.as_dict() == bytes_before


class Kill(PmsflError):
    """The process is gone."""


@pytest.mark.parametrize("moment", ["before-checkpoint", "after-metrics", "in-a-step", "at-enrolment"])
def test_a_server_killed_at_any_moment_resumes_bit_for_bit(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(checkpoint_every=2, eval_every=9)
    server, sites = server_of(tmp_path, wanted, three()), sites_of(tmp_path, wanted, three())
    if moment != "at-enrolment":
        rehearse(server, sites, 1)  # one job is through
    checkpoint, write = Books.checkpoint, Books.write_round

    def die(*args: Any, **kwargs: Any) -> None:
        raise Kill("killed")

    def written_then_dead(self: Books, *args: Any, **kwargs: Any) -> Any:
        write(self, *args, **kwargs)
        raise Kill("killed")

    if moment == "after-metrics":
        monkeypatch.setattr(Books, "write_round", written_then_dead)
    elif moment == "in-a-step":
        monkeypatch.setattr("pmsfl.deploy.live.LiveRound.take_step", die)
    elif moment == "at-enrolment":
        monkeypatch.setattr(Books, "save_roster", die)
    monkeypatch.setattr(Books, "checkpoint", die)
    with pytest.raises(Kill if moment == "before-checkpoint" else PmsflError, match="killed"):
        rehearse(server, sites, 2)
    monkeypatch.undo()
    assert Books.checkpoint is checkpoint
    again = server_of(tmp_path, wanted, three())
    rehearse(again, sites_of(tmp_path, wanted, three()), 3)
    same_model(again.state, undisturbed(tmp_path / "calm", checkpoint_every=2, eval_every=9))
    assert [line["round"] for line in again.books.directory.metrics()] == [1, 2, 3]


def test_a_job_that_is_aborted_leaves_its_rounds_on_disk(tmp_path: Path) -> None:
    """FLARE aborts a job when a site's process dies; no round is played twice for that."""
    wanted = recipe(checkpoint_every=9, eval_every=9)
    server, sites = server_of(tmp_path, wanted, three()), sites_of(tmp_path, wanted, three())
    play = server.play
    server.play = lambda rounds: play(rounds, lambda: bool(server.state and server.state.round))  # type: ignore
    with pytest.raises(PmsflError, match="aborted"):
        rehearse(server, sites, 3)
    again = server_of(tmp_path, wanted, three())
    rehearse(again, sites_of(tmp_path, wanted, three()), 3)
    same_model(again.state, undisturbed(tmp_path / "calm", checkpoint_every=9, eval_every=9))
    counts = json.loads((tmp_path / "a" / "run" / "rounds.json").read_text())
    assert counts["0"] == 1


def test_a_site_joins_late_and_takes_part_from_the_next_job(tmp_path: Path) -> None:
    wanted = recipe(eval_every=9)
    patient = Patience(2, 0.5, 1.0, 3.0, 6.0, 0.3, 64)
    server, sites = server_of(tmp_path, wanted, three(), patient), sites_of(tmp_path, wanted, three())
    late = sites.pop("c")
    rehearse(server, sites, 2)
    assert ways(server, "c") == ["away", "away"]
    rehearse(server, sites_of(tmp_path, wanted, three()) | {"c": late}, 1)
    assert ways(server, "c") == ["away", "away", "in"]


def test_a_site_that_joins_during_a_job_is_in_the_next_round(tmp_path: Path) -> None:
    wanted = recipe(eval_every=9, rounds=6, agreement=1.0)
    patient = Patience(2, 0.2, 1.0, 3.0, 6.0, 0.3, 64)

    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        if site == "b" and r.op == Op.HELLO:
            time.sleep(0.8)
        if r.op == Op.STEP:
            time.sleep(0.05)
        return call(data)

    server, sites = server_of(tmp_path, wanted, three(), patient), sites_of(tmp_path, wanted, three())
    rehearse(server, sites, 6, between(meddle))
    assert ways(server, "b")[0] == "away"
    assert ways(server, "b")[-1] == "in"


def test_a_site_that_lost_its_disk_starts_over_with_the_shared_mask(tmp_path: Path) -> None:
    wanted = recipe(eval_every=9)
    server, sites = server_of(tmp_path, wanted, three()), sites_of(tmp_path, wanted, three())
    rehearse(server, sites, 2)
    assert server.state is not None
    assert len(server.state.bank[1].indices)
    shutil.rmtree(tmp_path / "b")
    fresh = sites_of(tmp_path, wanted, three())
    rehearse(server, fresh, 1)
    assert ways(server, "b") == ["in"] * 3
    memory = fresh["b"]._memory()
    assert memory is not None
    assert memory.participations == 1
    assert torch.equal(memory.indices, server.state.bank[1].indices)


def test_calls_that_are_held_never_outnumber_the_threads(tmp_path: Path) -> None:
    wanted = recipe(eval_every=3)
    narrow = Patience(2, 5.0, 3.0, 3.0, 10.0, 1.0, max_waiting=1)
    server, sites = server_of(tmp_path, wanted, three(), narrow), sites_of(tmp_path, wanted, three())
    most, waits = [0], [0]

    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        answer = call(data)
        most[0] = max(most[0], server.waiting)
        waits[0] += Answer.decode(answer).status == Status.WAIT
        return answer

    rehearse(server, sites, 3, between(meddle))
    assert most[0] <= 1
    assert waits[0] > 0
    same_model(server.state, undisturbed(tmp_path / "calm"))


def test_sequential_steps_do_not_wait_for_anybody(tmp_path: Path) -> None:
    wanted = recipe(schedule="sequential", eval_every=9)

    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        if site == "b" and r.op == Op.STEP:
            time.sleep(0.9)
        return call(data)

    server, sites = server_of(tmp_path, wanted, three()), sites_of(tmp_path, wanted, three())
    held: list[float] = []
    reported = server.timing.reported

    def listen(trips: list[tuple[float, float]]) -> None:
        held.extend(pair[1] for pair in trips)
        reported(trips)

    server.timing.reported = listen  # type: ignore[method-assign]
    rehearse(server, sites, 1, between(meddle))
    assert ways(server, "b") == ["in"]
    assert max(held) < 0.7  # nobody was held for b's sake


def test_sequential_with_one_site_is_the_reference(tmp_path: Path) -> None:
    wanted, federation = recipe(schedule="sequential", cohort=1), three(sizes=(17,))
    alone = Patience(1, 5.0, 3.0, 3.0, 10.0, 1.0, 64)
    server, sites = server_of(tmp_path, wanted, federation, alone), sites_of(tmp_path, wanted, federation)
    rehearse(server, sites, 3)
    state, _, _ = play(World(wanted, federation=federation), CohortExecutor, 3)
    assert server.state is not None
    torch.testing.assert_close(server.state.shared, state.shared, rtol=0, atol=1e-9)


def test_a_site_that_falls_silent_in_an_evaluation_is_left_out_of_it(tmp_path: Path) -> None:
    def meddle(site: str, r: Request, call: Call, data: bytes) -> bytes:
        if site == "c" and r.op == Op.SUMS:
            time.sleep(4.0)
        return call(data)

    wanted = recipe(rounds=1)
    server, sites = server_of(tmp_path, wanted, three(), HASTY), sites_of(tmp_path, wanted, three())
    rehearse(server, sites, 1, between(meddle))
    tested = server.books.totals.last["per_client"]
    assert tested[2] is None
    assert tested[0] is not None
    assert tested[1] is not None
