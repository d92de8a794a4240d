"""Processes that stop with the one that started them, however that one ended.

Whoever starts them holds one end of a pipe that they have as stdin. Nothing is ever written to it; when it breaks,
even by a SIGKILL that nobody hears, they stop as Ctrl-C would stop them, with what they have saved.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

HELD = "PMSFL_LIFELINE"  # in the environment of a process whose stdin is such a pipe


def start(command: Sequence[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that Ctrl-C reaches only us, which stops when we are gone."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
        env=os.environ | {HELD: str(os.getpid())},
    )


def heed() -> None:
    """Where this process hangs on a lifeline: SIGTERM to it once the other end is gone."""
    if os.environ.pop(HELD, None) is not None:  # a process that it starts has another stdin
        threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
