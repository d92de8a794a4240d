"""A job on the server: how a run moves from enrolment through rounds and evaluations to its end.

It goes enrol → gather → round → (exam) → gather … → over. Whoever arrives last at what is being waited for, or finds
a deadline passed, moves it on; all of this happens under the desk's lock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pmsfl.deploy.books import Books
from pmsfl.deploy.desk import Note, system_clock
from pmsfl.deploy.exam import LiveEvaluation
from pmsfl.deploy.frames import Answer, Request, Status
from pmsfl.deploy.live import LiveRound
from pmsfl.deploy.phases import Phases
from pmsfl.deploy.roster import Roster
from pmsfl.deploy.rules import check_deployable, digest_of, hides_smashed, largest_request
from pmsfl.deploy.secure import Authority, SecureError
from pmsfl.deploy.secure_round import SecureRound
from pmsfl.deploy.settings import Bounds, Patience
from pmsfl.deploy.sums import alone, check_depths, check_summable, may_be_personal
from pmsfl.deploy.worlds import server_world
from pmsfl.engine.evaluate import Evaluation
from pmsfl.engine.metrics import RoundMetrics
from pmsfl.engine.plan import RoundPlan, cohort_size, evaluates_after, plan_round
from pmsfl.engine.state import Memory, State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.recipe import Recipe
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.masks import decode_indices
from pmsfl.wire.messages import Kind, WireError, decode

ATTEMPTS = 5  # at one round, in one job


class Job(Phases):
    """One run on the server, and the job of some rounds that is under way. What calls mean, `ServerSide` says."""

    def __init__(
        self,
        path: Path,
        recipe: Recipe,
        sites: Sequence[str],
        patience: Patience | None = None,
        bounds: Bounds | None = None,
        roster: Roster | None = None,
        note: Note = lambda line: None,
        clock: Callable[[], float] = system_clock,
        secure_sums: bool = False,
        kit: Path | None = None,
    ) -> None:
        """roster: facts that are known beforehand (shape, classes, normalisation), for a new run. kit: whose authority
        checks what sites sign; None in a rehearsal."""
        check_deployable(recipe)
        super().__init__(sites, patience or Patience(), note, clock)
        self.books, known = Books.open(path, recipe, sites)
        self.roster = roster if roster is not None and not known.facts else known
        if self.roster.sites != tuple(sites):
            raise PmsflError(f"{path} is a run of the sites {', '.join(self.roster.sites)}, not of {', '.join(sites)}")
        self.authority = None if kit is None or not secure_sums else Authority(kit, sites)
        self._agree_on_sums(secure_sums, bool(known.facts))
        self.recipe, self.name, self.bounds = self.books.recipe, path.name, bounds or Bounds()
        self.least = min(self.patience.min_clients, len(sites))
        self.world: World | None = None
        self.state: State | None = None
        self.mask_scores: dict[str, float] = {}
        self.prepare()

    def _agree_on_sums(self, secure_sums: bool, begun: bool) -> None:
        """A run keeps to what it began with: sites have agreed to that and to nothing else."""
        if begun and secure_sums != self.roster.secure_sums:
            was, now = ("with", "leave it out of no start") if self.roster.secure_sums else ("without", "leave it out")
            raise PmsflError(f"this run was begun {was} --secure-sums; {now}, or begin a new run with --run NAME")
        self.roster.secure_sums = secure_sums
        if secure_sums:
            check_summable(self.books.recipe, len(self.roster.sites), self.patience.min_clients)

    def prepare(self) -> None:
        """A job is about to be played: whoever calls already is told to wait."""
        with self.changed:
            self._open(0)
            self.phase = "closed"

    def _open(self, rounds: int) -> None:
        self.phase, self.until, self.over = "enrol", rounds, None
        self.first = self.moved = self.now()
        self.here: dict[str, str] = {}  # sites of this job -> their session
        self.absent: set[str] = set()  # of those, who missed the last deadline
        self.asked: dict[str, Request] = {}  # who waits for something to do
        self.given: dict[str, tuple[int, Answer]] = {}  # what each was last given, and the request it answers
        self.answers, self.held = {}, {}
        self.live: LiveRound | None = None
        self.exam: LiveEvaluation | None = None
        self.gradients: dict[int, bytes] = {}
        self.settled: dict[str, tuple[int, Answer]] = {}  # how the last round ended for each
        self.before = Ledger()
        self.merged: tuple[State, RoundMetrics, RoundPlan] | None = None
        self.failed: str | None = None
        self.given_up = 0  # times in a row

    # --- a job

    def play(self, rounds: int, aborted: Callable[[], bool] = lambda: False) -> int:
        """Play so many rounds with whoever comes (to the recipe's last at most); the number of rounds completed.

        aborted: tells that the transport is about to end the job; what was done until then goes to the disk.
        """
        with self.changed, self.books.directory.locked():
            self._open(rounds)
            while self.over is None:
                self.changed.wait(min(0.25, self.patience.step_seconds / 4))
                self.tick()
                if aborted():
                    self.close("the job was aborted")
            if self.state is not None:
                self.books.checkpoint(self.state)
            self._publish()
            if self.failed is not None:
                raise PmsflError(self.failed)
            assert self.state is not None
            return self.state.round

    def status(self) -> dict[str, Any]:
        """What `pmsfl deploy status` shows."""
        raise NotImplementedError

    def _publish(self) -> None:
        self.books.write_status(self.status())

    # --- moving on

    def _enrol(self) -> None:
        if len(self.here) < len(self.roster.sites) and not self._passed(self.patience.enrol_seconds):
            return
        if len(self.here) < self.least:
            self.close(f"{len(self.here)} sites came, at least {self.least} are needed")
            return
        self.roster.settle(self.recipe)
        if self.roster.secure_sums:
            assert self.roster.depths is not None
            check_depths(self.recipe, self.roster.depths)
        self.books.save_roster(self.roster)
        if self.world is None:
            self.world = server_world(self.recipe, self.roster)
        self.world.sizes = self._sizes()
        self.limit = largest_request(self.world)
        if self.state is None:
            self.state = self.books.restore(self.world, self.note)
        self.until = min(self.state.round + self.until, self.recipe.turns)
        self._between()

    def _between(self) -> None:
        """Neither a round nor an evaluation is under way."""
        assert self.state is not None
        self.live = self.exam = None
        self.given.clear()
        self._publish()
        if self.state.round >= self.until:
            self.over = "the job is over"
        self._move("gather")
        if self.asked:
            self._arrive()

    def _gather(self) -> None:
        assert self.world is not None
        assert self.state is not None
        for site in list(self.asked):
            self._agree_on_personal(site)
        awaited = {s for s in self.here if s not in self.absent and s not in self.asked}
        if awaited and not self._passed(self.patience.gather_seconds):
            return
        there = [s for s in self.roster.sites if s in self.asked]
        if len(there) < self.least:
            return  # somebody may come back; if not, the idle limit ends the job
        plan = self._plan(there)
        if self.roster.secure_sums and alone(plan.depths):
            return  # the deepest site is waited for or waits for another of its depth, in the same way
        self.absent |= awaited
        self.before = self.books.totals.ledger.snapshot()
        self.gradients = {}
        self.live = live = self._begin(plan)
        self._move("round")
        for i, client in enumerate(plan.clients):
            info = {"do": "round", "round": plan.round, "steps": plan.steps[i], **live.offer()}
            if self.world.recipe.upload_draw == "even":
                info["turn"] = plan.even_turns[client]
            self._give(self.roster.sites[client], Answer(Status.OK, info, live.start(i)))

    def _begin(self, plan: RoundPlan) -> LiveRound:
        assert self.world is not None
        assert self.state is not None
        ledger = self.books.totals.ledger
        if self.roster.secure_sums:
            return SecureRound(self.world, self.state, plan, ledger, self.bounds, self.least, self.authority)
        return LiveRound(self.world, self.state, plan, ledger, self.bounds)

    def _plan(self, there: Sequence[str]) -> RoundPlan:
        """The round of those who are there."""
        assert self.world is not None
        assert self.state is not None
        r = self.world.recipe
        r = r.replace(cohort=min(r.cohort, len(there)), failures=0.0, stragglers=0.0)
        r = r.replace(cohort=max(cohort_size(r, len(there)), min(self.least, len(there))))
        return plan_round(r, self.world.keys, self.state.round, self.roster.sizes(there), self.world.depths)

    def _agree_on_personal(self, site: str) -> None:
        """Both sides must mean the same personal set. Where they differ (a site lost its newest memory, the server
        went back to a checkpoint), the site is told the round it is, tells its set, and that counts."""
        assert self.world is not None
        assert self.state is not None
        request, client = self.asked[site], self.roster.client(site)
        known = self.state.bank.get(client)
        mine = torch.zeros(0, dtype=torch.int64) if known is None else known.indices
        same_round = request.info.get("round") == self.state.round
        if same_round and (self.roster.secure_sums or request.info.get("personal") == digest_of(mine)):
            return
        ask = Answer(Status.OK, {"do": "tell", "round": self.state.round})
        if not same_round or not request.wire:
            self._give(site, ask)
            return
        try:
            message = decode(request.wire, expect=Kind.PERSONAL)
            indices = decode_indices(message.payload, self.world.masked_size(self.world.depths[client]))
        except WireError as e:
            self._give(site, Answer(Status.REFUSED, {"reason": str(e)}))
            return
        own = indices if len(indices) else torch.zeros(0, dtype=torch.int64)  # numpy's empty arrays have odd strides
        memory = Memory(own, torch.zeros(len(own), dtype=self.world.dtype))
        self.state = dataclasses.replace(self.state, bank=self.state.bank | {client: memory})

    def _round(self) -> None:
        live = self.live
        assert live is not None
        if live.sequential or self._passed(self.patience.step_seconds):
            for i in live.missing():
                site = self.roster.sites[live.plan.clients[i]]
                if live.sequential and self.timing.silent(site, self.now()) < self.patience.step_seconds:
                    continue  # it works at its own speed
                live.leave_out(i, f"later than {self.patience.step_seconds:g} s")
                self.absent.add(site)
                self.note(f"round {live.plan.round + 1}: {site} is late and left out until the next round")
            self.first = None
        if reason := live.too_few(self.least):
            self._give_up(reason)
        elif not live.missing():
            if not live.stepping:
                if not live.go_on():
                    self._end_round(live)
                    return
                self.first = self.moved = self.now()  # all of them are to answer
            else:
                if live.inbox:
                    self.gradients |= live.take_step()
                else:
                    live.step += 1  # whoever had more steps has gone
                self.first = self.now() if live.anyone_waits else None  # those who are done wait in silence
            self.changed.notify_all()
            self._round()

    def _give_up(self, reason: str) -> None:
        """The round does not count: the state before it is still there, and its bytes are not counted."""
        assert self.live is not None
        self.note(f"round {self.live.plan.round + 1} is given up: {reason}")
        self.live.give_up(reason)
        self._settle(self.live)
        if self.world is not None:  # what was sent was seen, whether it counts or not
            self.books.spending = self.books.spending.after(self.world, self.live.actual())
        self.books.totals.ledger.load(self.before.as_dict(), self.before.messages_as_dict())
        self.given_up += 1
        if self.given_up >= ATTEMPTS:
            self.close(f"round {self.live.plan.round + 1} was given up {self.given_up} times, at last because {reason}")
            return
        self._between()

    def _settle(self, live: LiveRound) -> None:
        """Remember how a round ended for each site: its call may come again."""
        self.given.clear()
        for i, client in enumerate(live.plan.clients):
            out = live.out.get(i)
            answer = Answer(Status.OK, {"accepted": True}) if out is None else Answer(Status.OUT, {"reason": out})
            self.settled[self.roster.sites[client]] = live.plan.round, answer

    def _end_round(self, live: LiveRound) -> None:
        assert self.world is not None
        try:
            self.merged = live.merge()
        except SecureError as e:  # a site sent wrong shares or numbers
            self._give_up(str(e))
            return
        self._settle(live)
        self.state, self.live = self.merged[0], None
        if not evaluates_after(self.recipe, self.state.round) or hides_smashed(self.recipe):
            self._write(None)
            return
        there = {self.roster.client(s): self.roster.facts[s] for s in self.here if s not in self.absent}
        rows = {c: (f.train, f.test) for c, f in there.items()}
        # Which coordinates are personal, a server of secure sums does not know.
        hidden = self.roster.secure_sums and may_be_personal(self.world, self.state.round - 1)
        self.exam = LiveEvaluation(self.world, self.state, rows, self.books.totals.ledger, self.bounds, hidden)
        self._move("exam")
        self.first = self.now()

    def _exam(self) -> None:
        exam = self.exam
        assert exam is not None
        for site in list(self.asked):
            client = self.roster.client(site)
            if client in exam.inside and client not in exam.started:
                info, wire = exam.task(client)
                self._give(site, Answer(Status.OK, {"do": "evaluate", "round": exam.state.round, **info}, wire))
        if self._passed(self.patience.step_seconds):
            for client in [c for c in exam.inside if c not in exam.reports]:
                site = self.roster.sites[client]
                if self.timing.silent(site, self.now()) >= self.patience.step_seconds:
                    exam.out[client] = f"silent for {self.patience.step_seconds:g} s"
                    self.absent.add(site)
                    self.changed.notify_all()
            self.first = self.now()
        if exam.play_complete():
            self.changed.notify_all()
        if all(c in exam.reports for c in exam.inside):
            self._write(exam.result())

    def _write(self, evaluation: Evaluation | None) -> None:
        """The round counts from here on."""
        assert self.merged is not None
        assert self.world is not None
        state, metrics, plan = self.merged
        came = dict(zip(plan.clients, plan.on_time, strict=True))
        words = {True: "in", False: "late", None: "away"}
        sites = {s: words[came.get(k)] for k, s in enumerate(self.roster.sites)}
        if self.exam is not None and self.exam.collects:
            for client in self.exam.started:
                times = self.exam.draws * len(self.exam.modes)
                self.books.shown(client, self.exam.rows[client][0], times)
        more = {"sites": sites, "timing": self.timing.summary()}
        self.books.write_round(self.world, state, metrics, plan, evaluation, self.before, more)
        self.given_up = 0
        if state.round % self.recipe.checkpoint_every == 0 or state.round >= self.recipe.turns:
            self.books.checkpoint(state)
        self._between()

    def _give(self, site: str, answer: Answer) -> None:
        """What a site that asked is to do."""
        self.given[site] = self.asked.pop(site).step, answer
        self.changed.notify_all()

    def _sizes(self) -> tuple[int, ...]:
        return tuple(max(1, n) for n in self.roster.sizes())
