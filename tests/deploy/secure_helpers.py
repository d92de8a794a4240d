"""Small deployments with secure sums."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pmsfl.deploy.frames import Answer, Request
from pmsfl.deploy.line import Call
from pmsfl.deploy.rehearse import rehearse
from pmsfl.deploy.server import ServerSide
from pmsfl.deploy.settings import Patience
from pmsfl.deploy.site import SiteSide
from pmsfl.engine.state import State

from .helpers import recipe, server_of, sites_of, three

HASTY = Patience(2, 5.0, 2.0, 1.0, 4.0, 0.3, 64)
Change = Callable[[str, Request, Answer], Answer]


def federated(path: Path, secure: bool = True, patience: Patience | None = None, **changes: Any) -> Any:
    """A server and its sites, ready to be played."""
    wanted, more = recipe(**changes), {} if patience is None else {"patience": patience}
    server = server_of(path, wanted, three(), secure_sums=secure, **more)
    return server, sites_of(path, wanted, three())


def ways(server: ServerSide, site: str) -> list[str]:
    return [line["sites"][site] for line in server.books.directory.metrics()]


def same_model(a: State | None, b: State | None) -> None:
    assert a is not None
    assert b is not None
    assert torch.equal(a.shared, b.shared)
    assert torch.equal(a.plain, b.plain)


class Gone(BaseException):
    """The site's process is killed."""


def dropping(server: ServerSide, sites: dict[str, SiteSide], rounds: int, dies: Callable[[str, Request], bool]) -> None:
    """Play while one site is killed just before it would send a request."""
    errors: list[Any] = []
    hook, threading.excepthook = threading.excepthook, lambda args: errors.append(args.exc_type)

    def wrap(site: str, call: Call) -> Call:
        def guarded(data: bytes) -> bytes:
            if dies(site, Request.decode(data)):
                raise Gone
            return call(data)

        return guarded

    try:
        rehearse(server, sites, rounds, wrap)
    finally:
        threading.excepthook = hook
    assert set(errors) <= {Gone}
