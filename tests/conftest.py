"""Small federations, recipes and players that the tests share."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pmsfl import commands
from pmsfl.cli import ABOUT, COMMANDS
from pmsfl.data.federation import Federation
from pmsfl.engine.client import Bottoms
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.metrics import RoundMetrics
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.models.norm import StaticBN
from pmsfl.models.small import small_cnn
from pmsfl.recipe import Recipe
from pmsfl.wire.ledger import Ledger

# The methods whose training loss and bytes follow from their attributes alone.
BASIC = ("pm-sfl", "splitfed", "splitfed-pm", "frozen-mask", "dense-frozen", "threshold-mask")
SIZES = (17, 12, 23, 30, 5)  # ragged, one client below the batch of `tiny_recipe`


Pmsfl = Callable[..., int]


@pytest.fixture(params=["typer", "argparse"])
def pmsfl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pmsfl:
    """The command line in this process, both ways."""
    if request.param == "argparse":
        monkeypatch.setitem(sys.modules, "typer", None)
    return lambda *words: commands.main(COMMANDS, [str(w) for w in words], ABOUT)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Bit-identical sums need a fixed thread count."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard() -> None:
    """A suite that a script put into the background ignores Ctrl-C, and what it starts would ignore it, too."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def tiny_federation(
    sizes: Sequence[int] = SIZES,
    tests: Sequence[int] | int = 4,
    shape: tuple[int, ...] = (1, 8, 8),
    classes: int = 4,
    seed: int = 0,
) -> Federation:
    """Random rows that lean towards their class, dealt one client after another."""
    rng = np.random.default_rng(seed)
    held = [tests] * len(sizes) if isinstance(tests, int) else list(tests)
    total = sum(sizes) + sum(held)
    y = rng.integers(0, classes, total).astype(np.int64)
    lean = rng.standard_normal((classes, *shape))
    x = (rng.standard_normal((total, *shape)) + lean[y]).astype(np.float32)
    ends = np.cumsum([0, *(n for pair in zip(sizes, held, strict=True) for n in pair)])
    parts = [np.arange(a, b, dtype=np.int64) for a, b in pairwise(ends.tolist())]
    channels = shape[0] if len(shape) == 3 else shape[-1]
    return Federation(
        name="tiny",
        x=x,
        y=y,
        train=tuple(parts[0::2]),
        test=tuple(parts[1::2]),
        global_test=np.concatenate(parts[1::2]) if total else np.zeros(0, np.int64),
        classes=classes,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        owners=tuple(f"client {k}" for k in range(len(sizes))),
        global_test_is_official=False,
    )


def tiny_recipe(**changes: Any) -> Recipe:
    """Three rounds in double precision, with personalisation under way from the first."""
    base: dict[str, Any] = {
        "name": "tiny",
        "dtype": "float64",
        "rounds": 3,
        "width": 4,
        "batch": 6,
        "epochs": 1,
        "cohort": 3,
        "agreement": 0.0,
        "growth_steps": 3,
        "eval_masks": 1,
    }
    return Recipe(**(base | changes))


def tiny_world(federation: Federation | None = None, **changes: Any) -> World:
    return World(tiny_recipe(**changes), federation=federation or tiny_federation())


def play(
    world: World,
    kind: type[CohortExecutor] | type[ReferenceExecutor] = CohortExecutor,
    rounds: int = 3,
    state: State | None = None,
) -> tuple[State, Ledger, list[RoundMetrics]]:
    """The state after some rounds, every byte counted on the way, and the metrics of each round."""
    ledger = Ledger()
    executor = kind(world, ledger)
    state = state or State.initial(world)
    seen = []
    for _ in range(rounds):
        state, metrics = executor.round(state)
        seen.append(metrics)
    return state, ledger, seen


@contextmanager
def interrupted_in_round(which: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C as the cohort executor begins its `which`-th round, counted over all runs."""
    original, played = CohortExecutor.round, list[int]()

    def stop(self: CohortExecutor, state: State) -> tuple[State, RoundMetrics]:
        played.append(state.round)
        if len(played) == which:
            raise KeyboardInterrupt
        return original(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(CohortExecutor, "round", stop)
        yield


def bottoms_of(world: World, state: State, clients: list[int], steps: list[int]) -> Bottoms:
    """Clients of one depth at the beginning of the state's next round."""
    depth = world.depths[clients[0]]
    view = world.plain_view(depth)
    shared, plain = state.shared[: world.masked_size(depth)], state.plain[view.sent]
    clock = world.clock(state.round)
    return Bottoms(world, clock, state.round, clients, depth, steps, shared, plain, state.bank, True)


def distinct(values: Tensor) -> list[float]:
    """The different values of a tensor, sorted."""
    return sorted(set(values.flatten().tolist()))


def copied(state: State) -> dict[str, Tensor]:
    """Everything in a state, cloned."""
    return {name: t.clone() for name, t in state.to_tensors().items()}


def assert_same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def _ordinary(module: nn.Module) -> nn.Module:
    if isinstance(module, StaticBN):
        return nn.BatchNorm2d(module.features, module.eps, track_running_stats=False)
    for name, child in module.named_children():
        setattr(module, name, _ordinary(child))
    return module


def uncut_model(world: World) -> tuple[nn.Sequential, dict[str, nn.Parameter]]:
    """The tiny world's network as an ordinary torch model with nn.BatchNorm2d and the run's initial weights.

    Its parameters by the names they have in a split model.
    """
    split = small_cnn(1, 4, width=4)
    model = nn.Sequential(*(_ordinary(b) for b in split.blocks), split.head).double()
    own = {(f"blocks.{n}" if n[0] != "4" else f"head{n[1:]}"): p for n, p in model.named_parameters()}
    start = world.layout.bottom(world.frozen, world.initial_plain, world.model.depth + 1)
    for name, p in own.items():
        p.data.copy_(start[name])
    return model, own
