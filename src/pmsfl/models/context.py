"""What a forward pass needs beyond its input: row weights, a place for statistics, a key for dropout.

Modules read it instead of taking arguments, so that users' own blocks keep an ordinary `forward(x)`. It is
per thread, because a deployed server answers several clients at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

Sums = dict[str, tuple[Tensor, Tensor, Tensor]]  # norm's name -> (count [], mean [C], squared deviations [C])


@dataclass(frozen=True)
class WholeBatch:
    """The batch that a process has only some rows of: what its layers need to act as if they had all."""

    gather: Callable[[Tensor], Tensor]  # a tensor of every process -> [processes, ...]
    total: Callable[[Tensor], Tensor]  # the sum over processes
    rows: int  # of all processes together
    places: Tensor  # int64 [B]: where among them this process's rows are


@dataclass
class ForwardContext:
    """row_weights [B]: 0 leaves a row out of batch statistics; sums: filled by StaticBN when not None;
    dropout_key: int64 scalar, None switches dropout off; batch: rows come in groups of so many, None: unknown;
    whole: where these rows are a part of a batch that several processes share."""

    row_weights: Tensor | None = None
    sums: Sums | None = None
    dropout_key: Tensor | None = None
    batch: int | None = None
    whole: WholeBatch | None = None


_local = threading.local()
_PLAIN = ForwardContext()


def current() -> ForwardContext:
    """The context of this thread's forward pass."""
    context: ForwardContext = getattr(_local, "context", _PLAIN)
    return context


@contextmanager
def explicit_layers() -> Iterator[None]:
    """Let layers spell out what they do, for a compiler: it fuses plain operations and knows nothing of kernels."""
    previous = explicit()
    _local.explicit = True
    try:
        yield
    finally:
        _local.explicit = previous


def explicit() -> bool:
    """Should layers spell out what they do?"""
    return getattr(_local, "explicit", False)


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """Run the enclosed forward passes under `context`."""
    previous = current()
    _local.context = context
    try:
        yield context
    finally:
        _local.context = previous
