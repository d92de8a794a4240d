"""A whole deployment in one process: a thread for each site, calls instead of a network. For tests and rehearsals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from pmsfl.deploy.line import Call
from pmsfl.deploy.server import ServerSide
from pmsfl.deploy.site import SiteSide

Wrap = Callable[[str, Call], Call]  # puts faults between a site and the server


def rehearse(
    server: ServerSide,
    sites: Mapping[str, SiteSide],
    rounds: int,
    wrap: Wrap = lambda site, call: call,
    give_up: float = 300.0,
) -> dict[str, str]:
    """Play a job with these sites; why it ended for each of them."""
    ended: dict[str, str] = {}
    offered = server.recipe.to_toml()

    def run(name: str, site: SiteSide) -> None:
        ended[name] = site.play(offered, wrap(name, lambda data: server.handle(name, data)), give_up)

    server.prepare()
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in sites.items()]
    for t in threads:
        t.start()
    try:
        server.play(rounds)
    finally:
        for t in threads:
            t.join(give_up)
    return ended
