"""A site's side of a round's secure sum: its mask leaves under random numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pmsfl.deploy.frames import Op
from pmsfl.deploy.line import Line, Refusal
from pmsfl.deploy.secure import Identity, SecureClient, Session
from pmsfl.deploy.secure.session import Kind as Stage
from pmsfl.deploy.sums import alone, session_of
from pmsfl.engine.client import Finished
from pmsfl.engine.protocol import Wire
from pmsfl.engine.world import World


class SecureUpload:
    """One round's upload. What the server asks for is checked here and in `SecureClient`, never trusted."""

    def __init__(
        self,
        world: World,
        wire: Wire,
        client: int,
        round_: int,
        offer: Mapping[str, Any],
        identity: Identity | None = None,
    ) -> None:
        """offer: what the server said of the round; Refusal where it has no secure sum in it, or an odd one.
        identity: signs this site's keys and checks the others'; None in a rehearsal."""
        self.world, self.wire, self.client, self.round, self.identity = world, wire, client, round_, identity
        self.session = self._session(offer.get("secure"))

    def _session(self, offer: Any) -> Session:
        if not isinstance(offer, dict):
            raise Refusal("this run's masks are summed securely, but the server asks for a round without: not sent")
        clients, needed = offer.get("clients"), offer.get("threshold")
        everybody = range(len(self.world.depths))
        if not isinstance(clients, list) or any(type(c) is not int or c not in everybody for c in clients):
            raise Refusal(f"the server's secure sum is over {clients!r}, which are not sites of this run")
        if type(needed) is not int or self.client not in clients:
            raise Refusal("the server's secure sum has no threshold, or leaves this site out")
        return session_of(self.world, self.wire.run, self.round, clients, needed, self.identity is not None)

    def send(self, finished: Finished, info: dict[str, Any], line: Line) -> None:
        """All four messages; returns when the round is merged. info: what goes along in the clear."""
        one = SecureClient(self.session, self.client, identity=self.identity)
        roster = line.ask(Op.SECURE, self.round, Stage.KEYS, wire=one.keys()).wire
        sealed = line.ask(Op.SECURE, self.round, Stage.SHARES, wire=one.shares(roster)).wire
        norms = self.wire.write_norms(self.round, self.client, finished, 0)
        info = info | {"kept": int((~finished.contributes[0]).sum())}
        upload = one.upload(sealed, *self._padded(finished))
        reply = line.ask(Op.FINISH, self.round, info=info, wire=upload + norms)
        if reply.info.get("accepted"):
            return  # the others' answers were enough, this call came late
        self._check_company(reply.wire)
        line.ask(Op.SECURE, self.round, Stage.ANSWER, wire=one.answer(reply.wire))

    def _padded(self, finished: Finished) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Bits and contributions over the deepest site's coordinates; past this site's own it has none."""
        bits, contributes = (np.zeros(self.session.coordinates, dtype=np.bool_) for _ in (0, 1))
        own = finished.values.shape[1]
        bits[:own] = (finished.values[0] > 0.5).cpu().numpy()
        contributes[:own] = finished.contributes[0].cpu().numpy()
        return bits & contributes, contributes

    def _check_company(self, request: bytes) -> None:
        """Refusal where the sum that is to be unmasked has this site's deepest blocks, or another's, alone in it."""
        s = self.session
        came = s.read_list(s.read(request, Stage.REQUEST, self.client), 0)
        if alone([self.world.depths[c] for c in came]):
            raise Refusal("the server would unmask a sum that is one site's mask in its deepest blocks: not answered")
