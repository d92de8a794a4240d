"""A step played over and over, from a recording where there is a GPU: a stand-in records here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pmsfl.engine import replay
from pmsfl.engine.replay import WARM_UP, repeat

GPU: Any = SimpleNamespace(device=torch.device("cuda"))  # a generator that lives there


class Steps:
    """Counts how a step is played: as it is, or from a recording."""

    def __init__(self) -> None:
        self.plain, self.replayed = 0, 0

    def __call__(self) -> None:
        self.plain += 1

    def replay(self) -> None:
        self.replayed += 1


def recorder(steps: Steps, error: Exception | None = None) -> Callable[..., Any]:
    """Captures as a GPU does: after a warm-up, without playing; or fails there."""

    def capture(function: Callable[[], None], pool: Any, generators: list[Any]) -> tuple[Any, None]:
        assert generators == [GPU]  # or a recording would draw the same numbers in every replay
        for _ in range(WARM_UP):
            function()
        if error is not None:
            raise error
        return steps, None

    return capture


def test_a_cpu_plays_every_step_as_it_is() -> None:
    steps = Steps()
    repeat(steps, 5, torch.Generator())
    assert (steps.plain, steps.replayed) == (5, 0)


@pytest.mark.parametrize("times", [WARM_UP + 1, 50])
def test_a_recording_plays_all_but_the_warm_up(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    monkeypatch.setattr(replay, "capture", recorder(steps))
    repeat(steps, times, GPU)
    assert (steps.plain, steps.replayed) == (WARM_UP, times - WARM_UP)


@pytest.mark.parametrize("times", [0, 1, WARM_UP])
def test_few_steps_are_not_worth_a_recording(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    monkeypatch.setattr(replay, "capture", recorder(steps))
    repeat(steps, times, GPU)
    assert (steps.plain, steps.replayed) == (times, 0)


def test_a_step_that_cannot_be_recorded_is_played_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    monkeypatch.setattr(replay, "capture", recorder(steps, RuntimeError("operation not permitted")))
    repeat(steps, 20, GPU)
    assert (steps.plain, steps.replayed) == (20, 0)


def test_a_recording_that_fails_before_its_warm_up_costs_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(*_: Any, **__: Any) -> None:
        raise RuntimeError("no stream")

    steps = Steps()
    monkeypatch.setattr(replay, "capture", capture)
    repeat(steps, 20, GPU)
    assert steps.plain == 20


def test_a_full_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "capture", recorder(Steps(), torch.cuda.OutOfMemoryError("no room")))
    with pytest.raises(torch.cuda.OutOfMemoryError, match="no room"):
        repeat(Steps(), 20, GPU)
