"""What test_distributed plays in several processes: `python -m tests.engine.two_processes RANK SIZE FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.distributed import DistributedExecutor
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.processes import Processes
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.methods import METHODS
from pmsfl.models.registry import make_model
from pmsfl.models.split import SplitModel
from pmsfl.wire.ledger import Ledger

from ..conftest import tiny_federation, tiny_world

ROUNDS = 2
MIXED = "1:1:1:1"
OPTIONS: dict[str, dict[str, Any]] = {
    "u-shape": {"labels": "u-shape"},
    "u-shape-mixed": {"labels": "u-shape", "depths": "1:1:1"},
    "norms-local": {"norms": "local"},
    "norms-local-mixed": {"norms": "local", "depths": MIXED},
    "group-norm": {"norm": "group", "depths": MIXED},
    "mask-per-round": {"mask_per": "round", "masked_top": True},
    "faults": {"failures": 0.3, "stragglers": 0.4, "cohort": 5},
    "faults-mixed": {"failures": 0.3, "stragglers": 0.4, "cohort": 5, "depths": MIXED},
    "persistent": {"client_state": "persistent", "depths": MIXED, "client_optimiser": "adam", "lr_client": 1e-2},
    "merges-stay": {"merges": 2, "client_state": "stay", "epochs": 2},
    "beta": {"aggregate": "beta", "depths": MIXED},
    "one-client": {"cohort": 1},
    "everyone": {"cohort": 5, "epochs": 2, "augment": "crop-flip", "weighting": "samples"},
    "deepest": {"depths": "4"},
    "own-statistics": {"statistics": "client", "eval_masks": 3},
    "adam": {"server_optimiser": "adam", "lr_server": 1e-2},
    "dropout": {"depths": "1:1", "model": "with-dropout"},
    "looped": {"depths": "1:1", "model": "branching"},
    "transformer": {"model": "transformer", "width": 8, "depths": MIXED},
}
CASES = (
    {f"{m}-{d}": {"method": m, "depths": d, "aggregate": "sampled"} for m in METHODS for d in ("2", MIXED)}
) | OPTIONS


class Branching(nn.Linear):
    """Not to be vectorised, and not able to take a batch of no rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x.view(x.shape[0], -1))
        return out if float(out.detach().abs().max()) > 0 else out * 2


def with_dropout(*_: object) -> SplitModel:
    blocks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))]
    return SplitModel(blocks, nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 4)))


def branching(*_: object) -> SplitModel:
    return SplitModel([Branching(64, 8), Branching(8, 8)], nn.Linear(8, 4))


OWN: dict[str, Callable[..., SplitModel]] = {"with-dropout": with_dropout, "branching": branching}


def world_of(case: str) -> World:
    changes = dict(CASES[case])
    model = OWN.get(changes.get("model", ""))
    if model is not None:
        del changes["model"]
    with mock.patch("pmsfl.engine.world.make_model", model or make_model):
        return tiny_world(tiny_federation(shape=(5, 6)) if case == "transformer" else None, **changes)


def play(case: str, processes: Processes) -> dict[str, Any]:
    """Two rounds and an evaluation, all that can be compared."""
    world, ledger = world_of(case), Ledger()
    alone = processes.size == 1
    executor = CohortExecutor(world, ledger) if alone else DistributedExecutor(world, ledger, processes)
    state, metrics = State.initial(world), []
    for _ in range(ROUNDS):
        state, seen = executor.round(state)
        metrics.append(asdict(seen))
    evaluation = Evaluator(world, ledger, processes).evaluate_every_way(state)
    return {
        "state": state.to_tensors(),
        "metrics": metrics,
        "bytes": ledger.as_dict(),
        "messages": ledger.messages_as_dict(),
        "evaluation": {
            k: torch.as_tensor(list(v.values()) if isinstance(v, dict) else v) for k, v in asdict(evaluation).items()
        },
    }


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=size, timeout=timedelta(minutes=2)
    )
    processes = Processes(rank, size)
    for case in CASES:
        torch.save(play(case, processes), folder / f"{case}.{rank}.tmp")
        (folder / f"{case}.{rank}.tmp").rename(folder / f"{case}.{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
