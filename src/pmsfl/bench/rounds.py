"""`pmsfl bench round`: whole rounds of PM-SFL and SplitFed, with clients cut at one depth and at all of them.

A round is everything between two states: planning, sending, local steps, personal coordinates, uploads, the merge.
Evaluations and checkpoints are not in it.
"""

from __future__ import annotations

from typing import Any

from pmsfl.bench.setting import Setting
from pmsfl.bench.synthetic import whole_federation
from pmsfl.bench.timing import Times, ratio, seconds_of, take_turns
from pmsfl.data.federation import Federation
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.settings import federation_of
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.models.registry import make_model
from pmsfl.wire.ledger import Ledger

METHODS = ("pm-sfl", "splitfed")
EQUAL, MIXED = "equal", "mixed"


class Rounds:
    """One variant: a run that is played on and on, round by round. Its plans repeat with the seed, whoever plays."""

    def __init__(self, setting: Setting, federation: Federation, method: str, depths: str) -> None:
        recipe = setting.recipe.replace(method=method, depths=depths, rounds=setting.repeats + 1)
        self.world = World(recipe, setting.device, federation)
        self.state, self.executor = State.initial(self.world), CohortExecutor(self.world, Ledger())

    def play(self) -> float:
        """Seconds of the next round."""
        return seconds_of(self._round, self.world.device)

    def _round(self) -> None:
        for _ in range(self.world.recipe.merges):
            self.state, _ = self.executor.round(self.state)

    @property
    def client_steps(self) -> float:
        """Steps of single clients in a timed round, on average."""
        r = self.world.recipe
        plans = [self.world.plan(turn) for turn in range(r.merges, r.turns)]
        return sum(sum(p.steps) for p in plans) / (r.rounds - 1)


def measure_rounds(setting: Setting, own_data: bool = False) -> dict[str, Any]:
    """Both methods at both kinds of depths, taking turns round by round; the first round of each is warm-up."""
    r = setting.recipe
    if not r.depths.isdigit():
        raise PmsflError(f"depths = {r.depths!r}: the benchmark mixes depths itself; give one cut, like -c depths=2")
    federation = federation_of(r) if own_data else whole_federation(r)
    cuts = {EQUAL: r.depths, MIXED: _every_depth(setting, federation)}
    variants = {(m, kind): Rounds(setting, federation, m, depths) for m in METHODS for kind, depths in cuts.items()}
    blocks = {f"{m} {kind}": rounds.play for (m, kind), rounds in variants.items()}
    times = take_turns(blocks, setting.repeats, units=1)
    pm, split = times[f"pm-sfl {EQUAL}"], times[f"splitfed {EQUAL}"]
    pm_mixed, split_mixed = times[f"pm-sfl {MIXED}"], times[f"splitfed {MIXED}"]
    about = setting.about()
    del about["method"]
    return (
        {"bench": "round"}
        | about
        | {"clients": federation.clients, "cohort": len(variants["pm-sfl", EQUAL].world.plan(1).clients)}
        | {"data": federation.name, "depths_mixed": cuts[MIXED]}
        | ratio(pm, split, "pm_over_splitfed")
        | ratio(pm_mixed, pm, "mixed_over_equal")
        | ratio(pm_mixed, split_mixed, "pm_over_splitfed_mixed")
        | ratio(split_mixed, split, "mixed_over_equal_splitfed")
        | {"variants": [_variant(m, kind, v, times[f"{m} {kind}"]) for (m, kind), v in variants.items()]}
    )


def _every_depth(setting: Setting, federation: Federation) -> str:
    """Clients spread evenly over all cuts of the model: '1:1:1:1' for four blocks."""
    model = make_model(setting.recipe, tuple(federation.x.shape[1:]), federation.classes)
    return ":".join("1" * model.depth)


def _variant(method: str, kind: str, rounds: Rounds, times: Times) -> dict[str, Any]:
    return (
        {"method": method, "depths": kind}
        | times.as_dict("ms_round")
        | {"client_steps": rounds.client_steps, "ms_client_step": times.median / rounds.client_steps}
        | {"seconds_warmup": times.seconds_warmup}
    )
