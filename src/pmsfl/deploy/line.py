"""A site's line to the server: one call at a time, repeated with the same bytes until it is answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pmsfl.deploy.frames import Answer, Op, Request, Status
from pmsfl.errors import PmsflError
from pmsfl.wire.messages import WireError

Call = Callable[[bytes], bytes]  # the transport: raises where a call fails


class Refusal(PmsflError):
    """The server refused what this site sent, or the site what the server sent."""


class LeftOut(PmsflError):
    """This site is out until the next round."""


class JobOver(PmsflError):
    """There is nothing more to do."""


class Line:
    """Calls the server. give_up: seconds without any answer after which the line counts as dead."""

    def __init__(self, call: Call, give_up: float = 300.0, pause: float = 0.5) -> None:
        self.call, self.give_up, self.pause = call, give_up, pause
        self.failures = 0

    def ask(
        self, op: Op, round_: int = 0, step: int = 0, info: dict[str, Any] | None = None, wire: bytes = b""
    ) -> Answer:
        """The answer to a request; one of the errors above where it is not OK."""
        data = Request(op, round_, step, info or {}, wire).encode()
        answer = self._until_answered(data)
        if answer.status == Status.REFUSED:
            raise Refusal(f"the server refuses {op.name}: {answer.reason}")
        if answer.status == Status.OUT:
            raise LeftOut(answer.reason)
        if answer.status == Status.OVER:
            raise JobOver(answer.reason)
        return answer

    def _until_answered(self, data: bytes) -> Answer:
        since = time.monotonic()
        while True:
            try:
                answer = Answer.decode(self.call(data))
            except (WireError, OSError, RuntimeError, TimeoutError) as e:
                self.failures += 1
                if time.monotonic() - since > self.give_up:
                    raise JobOver(f"no answer for {self.give_up:g} s: {e}") from e
                time.sleep(self.pause)
                continue
            if answer.status != Status.WAIT:
                return answer
            since = time.monotonic()
            time.sleep(min(self.pause, 0.02))
