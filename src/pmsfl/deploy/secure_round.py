"""A round on the server whose masks are summed securely: it learns the sum and who is in it, and no mask.

After the last step come four messages of each site: KEYS, SHARES, UPLOAD (in FINISH, with the norms) and ANSWER. Each
is a barrier like a step. Who is late before its upload is out of the round; who falls silent after it is in the sum,
and the others' shares take its random numbers away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmsfl.deploy.checks import placed, within
from pmsfl.deploy.live import LiveRound
from pmsfl.deploy.secure import Authority, SecureError, SecureServer
from pmsfl.deploy.secure.session import Kind as Stage
from pmsfl.deploy.settings import Bounds
from pmsfl.deploy.sums import alone, session_of, threshold
from pmsfl.engine.client import Finished
from pmsfl.engine.metrics import RoundMetrics
from pmsfl.engine.plan import RoundPlan
from pmsfl.engine.protocol import count_encoded
from pmsfl.engine.state import Memory, State
from pmsfl.engine.world import World
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction, Kind, WireError

STAGES = (Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.ANSWER)


class SecureRound(LiveRound):
    """A round under way. i counts the clients of the plan."""

    def __init__(
        self,
        world: World,
        state: State,
        plan: RoundPlan,
        ledger: Ledger,
        bounds: Bounds,
        least: int,
        authority: Authority | None = None,
    ) -> None:
        """authority: checks whose keys they are; None: sites do not sign them (a rehearsal)."""
        super().__init__(world, state, plan, ledger, bounds)
        needed = threshold(len(plan.clients), least)
        self.session = session_of(world, self.wire.run, plan.round, plan.clients, needed, authority is not None)
        self.sums = SecureServer(self.session, authority)
        self.stage = Stage.KEYS
        self.came: dict[Stage, set[int]] = {stage: set() for stage in STAGES}
        self.silent: set[int] = set()  # in the sum, but gone since
        self.replies: dict[tuple[int, int], bytes] = {}

    def offer(self) -> dict[str, Any]:
        """What sites are told of the sum; they check it and make the rest themselves."""
        return {"secure": {"clients": list(self.session.clients), "threshold": self.session.threshold}}

    # --- who is there

    @property
    def anyone_waits(self) -> bool:
        """Is somebody through with its steps?"""
        return bool(self.came[Stage.KEYS])

    def missing(self) -> list[int]:
        """Whom the current step or stage still waits for."""
        if self.stepping:
            return super().missing()
        return [i for i in self.inside if i not in self.came[self.stage] and i not in self.silent]

    def leave_out(self, i: int, reason: str) -> None:
        """Before its upload a client is out; after it, the sum has it and goes on without its answer."""
        if i in self.came[Stage.UPLOAD]:
            self.silent.add(i)
        else:
            super().leave_out(i, reason)

    def too_few(self, least: int) -> str:
        """Why the round cannot end any more; '' while it can."""
        left = [i for i in self.inside if i not in self.silent or i in self.came[Stage.ANSWER]]
        needed = self.session.threshold
        if len(left) < needed:
            return f"{len(left)} of {len(self.plan.clients)} sites are left, the secure sum needs {needed}"
        depths = [self.plan.depths[i] for i in self.inside]
        if alone(depths):
            return f"one site of depth {max(depths)} is left alone, and the sum would be its mask"
        return ""

    # --- messages

    def take(self, i: int, kind: int, data: bytes) -> None:
        """A client's KEYS, SHARES or ANSWER. WireError or SecureError: not used, and nothing has changed."""
        client = self.plan.clients[i]
        self._check_steps(i)
        takes = {
            Stage.KEYS: self.sums.take_keys,
            Stage.SHARES: self.sums.take_shares,
            Stage.ANSWER: self.sums.take_answer,
        }
        if kind not in takes:
            raise WireError(f"SECURE: there is no message of kind {kind} to be taken")
        stage = Stage(kind)
        takes[stage](client, data)
        self.came[stage].add(i)
        self.ledger.add(Kind.SECURE, Direction.UP, len(data))

    def finish(self, i: int, info: Mapping[str, Any], data: bytes) -> None:
        """One client's hidden mask and its norms, checked as far as that goes."""
        w, client, depth = self.world, self.plan.clients[i], self.plan.depths[i]
        self._check_steps(i)
        size, view = self.session.upload_bytes, w.plain_view(depth)
        masked, rest = data[:size], data[size:]
        placed(rest, self.wire.run, self.plan.round, client, 0)
        plain = within(self.wire.read_norms(rest, depth), self.bounds.values, "NORMS")
        finished = self._summary(i, info, plain)
        self.sums.take_upload(client, masked)
        self.came[Stage.UPLOAD].add(i)
        self.uploads.plain[i, view.sent] = plain
        self.uploads.plain_held[i, view.sent] = True
        self.memories[client] = Memory(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=w.dtype))
        self.done[i] = finished
        self.ledger.add(Kind.MASK, Direction.UP, len(masked))
        count_encoded(self.ledger, Direction.UP, rest)

    def _summary(self, i: int, info: Mapping[str, Any], plain: Tensor) -> Finished:
        """What a site tells of itself. How many coordinates it keeps is told, never which: the first ones stand in."""
        size, count = self.world.masked_size(self.plan.depths[i]), info.get("kept", 0)
        if type(count) is not int or not 0 <= count <= size:
            raise WireError(f"kept = {count!r}: a whole number in 0..{size} is expected")
        contributes = torch.arange(size) >= count
        return self._finished(i, info, torch.zeros(size, dtype=self.world.dtype), contributes, plain)

    def reply(self, i: int, kind: int) -> bytes | None:
        """What a client's message is answered with once its stage is over; None before."""
        return self.replies.get((kind, i))

    def go_on(self) -> bool:
        """Everybody has been heard or given up: on to the next stage; False where there is none."""
        if self.stage == Stage.ANSWER:
            return False
        gives = {
            Stage.KEYS: self.sums.roster,
            Stage.SHARES: self.sums.sealed,
            Stage.UPLOAD: self.sums.request,
        }
        for i in sorted(self.came[self.stage] - self.out.keys()):
            self.replies[self.stage, i] = data = gives[self.stage](self.plan.clients[i])
            self.ledger.add(Kind.SECURE, Direction.DOWN, len(data))
        self.stage = STAGES[STAGES.index(self.stage) + 1]
        return True

    # --- the end

    def merge(self) -> tuple[State, RoundMetrics, RoundPlan]:
        """The next state from the sums. SecureError where they cannot be had: nothing has changed."""
        self._enter_sums(*self.sums.result())
        return super().merge()

    def _enter_sums(self, sums: npt.NDArray[np.int64], heads: npt.NDArray[np.int64]) -> None:
        """Put sums where uploads go, counted out in ones: row r has a contribution where heads > r and a set bit where
        sums > r. The rows add up to the sums exactly, so every rule of merging gives what it gives for the uploads."""
        total, count = torch.from_numpy(sums), torch.from_numpy(heads)
        holders = torch.zeros_like(count)
        for i in self.done:
            holders[: self.world.masked_size(self.plan.depths[i])] += 1
        if bool((total > count).any() or (count > holders).any()):
            raise SecureError("the sum has more set bits than contributors, or more of those than sites: one was wrong")
        for row in range(len(self.plan.clients)):
            self.uploads.contributes[row] = count > row
            self.uploads.values[row] = (total > row).to(self.world.dtype)
