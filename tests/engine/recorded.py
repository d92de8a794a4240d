"""Rounds played from recordings on a CPU: the traced graph itself runs where a GPU would run compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, fx, nn

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.compile import Lower
from pmsfl.engine.metrics import RoundMetrics
from pmsfl.engine.record import Recorder
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.models.norm import StaticBN
from pmsfl.models.split import SplitModel
from pmsfl.wire.ledger import Ledger

from ..conftest import play
from .test_agreement import assert_agree


def as_traced(graph: fx.GraphModule, fakes: list[Tensor], mode: Any) -> Callable[..., Any]:
    """Instead of a compiler."""
    return graph


def recording(world: World, lower: Lower | None = as_traced) -> tuple[CohortExecutor, Recorder, list[str]]:
    """An executor that plays recordings, its recorder and the notes it makes."""
    notes: list[str] = []
    executor = CohortExecutor(world, Ledger())
    recorder = Recorder(world, executor._union_step, notes.append, lower)
    executor.recorder = recorder
    return executor, recorder, notes


def played(executor: CohortExecutor, rounds: int = 2) -> tuple[State, list[RoundMetrics]]:
    state, seen = State.initial(executor.world), []
    for _ in range(rounds):
        state, metrics = executor.round(state)
        seen.append(metrics)
    return state, seen


def assert_recorded_as_played(
    world: World, rounds: int = 2, lower: Lower | None = as_traced
) -> tuple[Recorder, list[str]]:
    """Rounds from recordings equal the same rounds without: state, bytes and metrics."""
    executor, recorder, notes = recording(world, lower)
    state, metrics = played(executor, rounds)
    plain, ledger, plain_metrics = play(world, CohortExecutor, rounds)
    assert_agree(state, plain)
    assert executor.ledger.as_dict() == ledger.as_dict()
    assert executor.ledger.messages_as_dict() == ledger.messages_as_dict()
    for a, b in zip(metrics, plain_metrics, strict=True):
        assert (a.round, a.samples, a.failed, a.late) == (b.round, b.samples, b.failed, b.late)
        assert a.entropy_per_layer == pytest.approx(b.entropy_per_layer, rel=1e-9)
        for name in ("loss", "mask_entropy", "disagree", "personal"):
            mine, other = getattr(a, name), getattr(b, name)
            assert mine == (None if other is None else pytest.approx(other, rel=1e-9)), name
    return recorder, notes


def assert_one_compilation(recorder: Recorder, notes: list[str]) -> None:
    """One program served every number of clients, and there were several."""
    assert notes == []
    assert recorder.counts.compilations == 1
    assert recorder.compiled is not None
    assert len(recorder.replays) > 1


def two_blocks(*_: object) -> SplitModel:
    """Next to nothing: tracing takes its time per layer."""
    first = nn.Sequential(nn.Flatten(), nn.Linear(64, 6, bias=False), StaticBN(6), nn.ReLU())
    return SplitModel([first, nn.Sequential(nn.Linear(6, 5), nn.ReLU())], nn.Linear(5, 4))
