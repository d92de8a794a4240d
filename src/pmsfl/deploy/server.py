"""The server of a deployment, without a network: bytes of a known site in, bytes out, from any number of threads."""

from __future__ import annotations

from typing import Any

from pmsfl.deploy.exam import TEST, TRAIN
from pmsfl.deploy.frames import Answer, Op, Request, Status
from pmsfl.deploy.job import Job
from pmsfl.deploy.live import LiveRound
from pmsfl.deploy.roster import EnrolmentError, Facts
from pmsfl.deploy.secure.session import Kind as Stage
from pmsfl.deploy.timing import read_trips
from pmsfl.deploy.worlds import manifest_for
from pmsfl.engine.plan import longest_turn
from pmsfl.wire.messages import WireError


class ServerSide(Job):
    """One run on the server. `play` runs a job of some rounds while `handle` answers the sites."""

    def meet(self, site: str, r: Request, new: bool) -> Answer:
        """The answer to a request."""
        if self.phase == "closed":
            return Answer(Status.WAIT)
        client = self.roster.client(site)
        if r.op == Op.HELLO:
            return self._hello(site, client, r)
        if site not in self.here:
            raise WireError(f"site {site!r} has not said hello in this job")
        if r.op == Op.NEXT:
            return self._next(site, r)
        if r.op == Op.SKIP:
            self._drop(site, f"it skips: {str(r.info.get('reason', ''))[:200]}")
            return Answer(Status.OK)
        if r.op in (Op.STEP, Op.FINISH, Op.SECURE):
            return self._train(site, client, r, new)
        return self._evaluate(site, client, r, new)

    def late(self, site: str, r: Request, taken_in: bool) -> Answer | None:
        """How the last round ended for a site that had no answer to its upload before the job was over."""
        ended, outcome = self.settled.get(site, (-1, None))
        return outcome if ended == r.round and ((r.op == Op.FINISH and taken_in) or _is_answer(r)) else None

    def _hello(self, site: str, client: int, r: Request) -> Answer:
        session = str(r.info.get("session", ""))[:64]
        if self.here.get(site) != session:
            facts = Facts.read(r.info)
            if (steps := longest_turn(self.recipe, facts.train)) > self.bounds.steps:
                raise EnrolmentError(
                    f"{facts.train} rows are {steps} steps a round; at most {self.bounds.steps} are allowed"
                )
            self.roster.enrol(site, facts)
            self._drop(site, "it started anew")
            self.here[site] = session
            self.absent.discard(site)
            for waiting in (self.asked, self.given, self.held):
                waiting.pop(site, None)
            if self.world is not None:
                self.world.sizes = self._sizes()
            self.changed.notify_all()

        def ready() -> Answer | None:
            if self.phase == "enrol" or self.world is None or self.state is None:
                return None
            manifest = manifest_for(self.name, self.world, self.roster, client).as_dict()
            return Answer(Status.OK, manifest | {"oldest": self.books.oldest, "round": self.state.round})

        return self.hold(ready)

    def _drop(self, site: str, reason: str) -> None:
        """A site has no part any more in what is under way."""
        client = self.roster.client(site)
        if self.live is not None and (i := self.live.place(client)) is not None:
            self.live.leave_out(i, reason)
        if self.exam is not None and client in self.exam.rows:
            self.exam.out.setdefault(client, reason)
        self.changed.notify_all()

    def _next(self, site: str, r: Request) -> Answer:
        self.absent.discard(site)
        fresh = site not in self.asked or self.asked[site].step != r.step
        if fresh and self.given.get(site, (-1,))[0] != r.step:
            if site in self.given:
                self._drop(site, "it asked for something else to do")
            self.asked[site] = r
            self._arrive()

        def ready() -> Answer | None:
            step, answer = self.given.get(site, (-1, None))
            return answer if step == r.step else None

        return self.hold(ready)

    def _train(self, site: str, client: int, r: Request, new: bool) -> Answer:
        live = self.live
        ended, outcome = self.settled.get(site, (-1, Answer(Status.OUT)))
        if (
            ended == r.round
            and (live is None or live.plan.round != ended)
            and not (new and outcome.status == Status.OK and not _is_answer(r))
        ):
            return outcome
        if live is None or r.round != live.plan.round or (i := live.place(client)) is None:
            raise WireError(f"{r.op.name} for round {r.round + 1}, which is not under way with this site")
        if i in live.out:
            return Answer(Status.OUT, {"reason": live.out[i]})
        if new:
            self._enter(site, i, live, r)
        if live.sequential and r.op == Op.STEP:
            return Answer(Status.OK, {}, live.take_step()[i])

        def ready() -> Answer | None:
            if i in live.out:
                return Answer(Status.OUT, {"reason": live.out[i]})
            if r.op == Op.STEP and live.taken[i] > r.step:
                return Answer(Status.OK, {}, self.gradients.pop(i))
            if (reply := live.reply(i, Stage.UPLOAD if r.op == Op.FINISH else r.step)) is not None and r.op != Op.STEP:
                return Answer(Status.OK, {}, reply)
            if r.op in (Op.FINISH, Op.SECURE) and self.live is not live:
                return Answer(Status.OK, {"accepted": True})
            return None

        return self.hold(ready)

    def _enter(self, site: str, i: int, live: LiveRound, r: Request) -> None:
        """Take in a step's smashed data or a round's upload, if it is sound."""
        if r.op == Op.STEP:
            live.accept(i, live.read_step(i, r.step, r.wire), r.wire)
        elif r.op == Op.SECURE:
            live.take(i, r.step, r.wire)
        else:
            if r.step:
                raise WireError(f"FINISH with step {r.step}: it has none")
            trips = read_trips(r.info)
            live.finish(i, r.info, r.wire)
            self.timing.reported(trips)
            if i in live.scores:
                self.mask_scores[site] = live.scores[i]
        self.take_in(site, r)
        self._arrive()

    def _evaluate(self, site: str, client: int, r: Request, new: bool) -> Answer:
        exam = self.exam
        if exam is None or r.round != exam.state.round or client not in exam.rows:
            raise WireError(f"{r.op.name}: no evaluation of round {r.round} is under way with this site")
        if client in exam.out:
            return Answer(Status.OUT, {"reason": exam.out[client]})
        if r.op == Op.REPORT:
            exam.report(client, r.info.get("right"))
            self._arrive()
            return Answer(Status.OK)
        draw, mode, index = (_place(r.info, k) for k in ("draw", "mode", "index"))
        exam.check(draw, mode)
        if new and r.op != Op.STATISTICS:
            exam.part(client, draw, mode, TEST if r.op == Op.TEST else TRAIN, index, r.wire)
            self.take_in(site, r)
            self.first = self.moved = self.now()  # things move: the deadline starts again
            self.changed.notify_all()
        if r.op == Op.SUMS:
            return Answer(Status.OK)

        def ready() -> Answer | None:
            if client in exam.out:
                return Answer(Status.OUT, {"reason": exam.out[client]})
            if r.op == Op.STATISTICS:
                found = exam.statistics_for(client, draw, mode) if exam.collected(draw, mode) else None
            else:
                found = exam.logits_for(client, draw, mode, index)
            return None if found is None else Answer(Status.OK, {}, found)

        return self.hold(ready)

    # --- what is shown

    def status(self) -> dict[str, Any]:
        """Rounds, accuracy, sites, bytes, mask health and times, in plain numbers."""
        with self.changed:
            lines = self.books.directory.metrics()
            last = lines[-1] if lines else {}
            totals = self.books.totals
            return {
                "run": self.name,
                "phase": "over" if self.over else self.phase,
                "round": 0 if self.state is None else self.state.round,
                "rounds": self.recipe.turns,
                "loss": last.get("loss"),
                "accuracy": totals.last.get("accuracy"),
                "mask_entropy": last.get("mask_entropy"),
                "bytes": totals.ledger.as_dict(),
                "timing": self.timing.summary(),
                "failed": self.failed,
                "secure_sums": self.roster.secure_sums,
                "sites": {site: self._about(k, site) for k, site in enumerate(self.roster.sites)},
            }

    def _about(self, client: int, site: str) -> dict[str, Any]:
        facts, depths = self.roster.facts.get(site), self.roster.depths
        return {
            "here": site in self.here and site not in self.absent,
            "train": None if facts is None else facts.train,
            "depth": None if depths is None else depths[client],
            "mask_score": self.mask_scores.get(site),
            "refused": self.flags.get(site, [])[-3:],
        }


def _is_answer(r: Request) -> bool:
    """Is it the last message of a secure sum? Should it be late, the others' shares were enough, and it counts."""
    return r.op == Op.SECURE and r.step == Stage.ANSWER


def _place(info: dict[str, Any], key: str) -> int:
    value = info.get(key, 0)
    if type(value) is not int:
        raise WireError(f"{key} = {value!r} is no whole number")
    return value
