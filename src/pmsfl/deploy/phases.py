"""What a job on the server waits for, since when, and when that is over: enrol, gather, round, exam."""

from __future__ import annotations

from pmsfl.deploy.desk import Desk
from pmsfl.errors import PmsflError


class Phases(Desk):
    """A desk whose calls move a job on. Who inherits has a method `_PHASE` for each of its phases, called by `tick`."""

    phase = "closed"
    first: float | None = None  # when the first site came to what is being waited for
    moved = 0.0  # when anything last came or went on
    failed: str | None = None

    def close(self, reason: str) -> None:
        """End the job: everybody is told so."""
        with self.changed:
            self.failed = self.over = reason
            self.changed.notify_all()

    def _arrive(self) -> None:
        self.moved = self.now()
        if self.first is None:
            self.first = self.moved
        self.changed.notify_all()

    def _move(self, phase: str) -> None:
        self.phase, self.first, self.moved = phase, None, self.now()
        self.changed.notify_all()

    def _passed(self, seconds: float) -> bool:
        return self.first is not None and self.now() - self.first >= seconds

    def tick(self) -> None:
        """Move the run on where everybody is there or a deadline has passed."""
        if self.over is not None or self.phase == "closed":
            return
        try:
            getattr(self, f"_{self.phase}")()
            if self.over is None and self.phase != "enrol" and self.now() - self.moved > self.patience.idle_seconds:
                self.close(f"nothing has moved for {self.patience.idle_seconds:g} s: too few sites are there")
        except PmsflError as e:
            self.close(str(e))
        except Exception as e:
            self.close(f"the server failed: {e!r}")
            raise
