"""Where calls arrive: each is read, met once, and its answer kept for a retry.

One lock guards everything. A call that must wait for others is held on a condition for a while and then told to ask
again, so calls that are held never outnumber the transport's threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from pmsfl.deploy.frames import MAX_JSON, Answer, Op, Request, Status, refused
from pmsfl.deploy.settings import Patience
from pmsfl.deploy.timing import Timing
from pmsfl.errors import PmsflError
from pmsfl.wire.messages import WireError

Key = tuple[int, int, int]  # op, round, step
Note = Callable[[str], None]
ANSWERS_KEPT = 4  # per site; it has one call under way at a time


class Desk:
    """Meets calls from any number of threads. Who inherits says what a call means (`meet`) and what moves (`tick`)."""

    def __init__(self, sites: Sequence[str], patience: Patience, note: Note, clock: Callable[[], float]) -> None:
        self.known, self.patience, self.note, self.now = tuple(sites), patience, note, clock
        self.changed = threading.Condition(threading.RLock())
        self.over: str | None = None  # why there is nothing more to do; None while there is
        self.answers: dict[str, dict[Key, tuple[str, bytes]]] = {}
        self.held: dict[str, dict[Key, str]] = {}  # taken in, not answered yet
        self.flags: dict[str, list[str]] = {}  # site -> what was refused of it lately
        self.timing = Timing()
        self.limit = MAX_JSON + (1 << 16)  # bytes of a request; more where a run's own messages are larger
        self.waiting = 0

    def meet(self, site: str, r: Request, new: bool) -> Answer:
        """The answer to a request; new: it has not been taken in before. PmsflError: it is refused."""
        raise NotImplementedError

    def late(self, site: str, r: Request, taken_in: bool) -> Answer | None:
        """The answer to a request that comes when all is over, where it has one; taken_in: it came before."""
        return None

    def tick(self) -> None:
        """Move on what can move."""

    def handle(self, site: str, data: bytes) -> bytes:
        """The answer to one call of a site, whose name the transport vouches for."""
        try:
            request = Request.decode(data, self.limit)
            if site not in self.known:
                raise WireError(f"site {site!r} is not one of this run: {', '.join(self.known)}")
        except PmsflError as e:
            return self._refuse(site, str(e))
        key, digest = _key(request), request.digest
        with self.changed:
            self.timing.arrived(site, key, self.now())
            stored = self.answers.get(site, {}).get(key)
            if stored is not None and stored[0] == digest:
                return stored[1]
            try:
                answer = self._once(site, request, key, digest)
            except PmsflError as e:
                return self._refuse(site, str(e))
            except Exception as e:  # a fault here must not take the others' round down with it
                return self._refuse(site, f"it cannot be handled: {e!r}")
            return self._keep(site, request, key, digest, answer)

    def _once(self, site: str, request: Request, key: Key, digest: str) -> Answer:
        seen = self.held.get(site, {}).get(key)
        if self.over is not None:
            return self.late(site, request, seen == digest) or Answer(Status.OVER, {"reason": self.over})
        if seen not in (None, digest):
            raise WireError(f"{request.op.name} of this round and step came before with other content: replayed")
        return self.meet(site, request, seen is None)

    def take_in(self, site: str, request: Request) -> None:
        """From here on the request counts: should it come again, it is not to be entered twice."""
        self.held.setdefault(site, {})[_key(request)] = request.digest

    def _keep(self, site: str, request: Request, key: Key, digest: str, answer: Answer) -> bytes:
        if answer.status == Status.WAIT:
            return answer.encode()
        took = self.timing.answered(site, key, self.now())
        if request.op == Op.STEP and answer.status == Status.OK:
            answer = Answer(answer.status, {**answer.info, "held": round(took, 6)}, answer.wire)
        out = answer.encode()
        kept = self.answers.setdefault(site, {})
        if request.op in (Op.HELLO, Op.NEXT):
            kept.clear()  # whoever asks for more has had everything before it
        kept[key] = digest, out
        while len(kept) > ANSWERS_KEPT:
            kept.pop(next(iter(kept)))
        self.held.get(site, {}).pop(key, None)
        return out

    def _refuse(self, site: str, reason: str) -> bytes:
        with self.changed:
            if site in self.known:
                self.flags.setdefault(site, []).append(reason)
                del self.flags[site][:-20]
        self.note(f"refused a message of {site}: {reason}")
        return refused(reason).encode()

    def hold(self, ready: Callable[[], Answer | None]) -> Answer:
        """The answer as soon as there is one; WAIT after a while, or at once where too many are held."""
        until = self.now() + self.patience.hold_seconds
        while True:
            self.tick()
            if (answer := ready()) is not None:
                return answer
            if self.over is not None:
                return Answer(Status.OVER, {"reason": self.over})
            left = until - self.now()
            if left <= 0 or self.waiting >= self.patience.max_waiting:
                return Answer(Status.WAIT)
            self.waiting += 1
            try:
                self.changed.wait(min(left, 0.25))
            finally:
                self.waiting -= 1


def _key(request: Request) -> Key:
    return int(request.op), request.round, request.step


def system_clock() -> float:
    """Seconds that never go back."""
    return time.monotonic()
