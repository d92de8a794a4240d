"""Executors agree: three rounds in double precision with personalisation under way (conformance 13)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.methods import METHODS
from pmsfl.models.split import SplitModel

from ..conftest import play, tiny_federation, tiny_world

MIXED = "1:1:1:1"
VARIANTS: dict[str, dict[str, Any]] = {
    "sequential": {"schedule": "sequential"},
    "sequential-mixed": {"schedule": "sequential", "depths": MIXED},
    "norms-local": {"norms": "local"},
    "norms-local-mixed": {"norms": "local", "depths": MIXED},
    "norms-frozen": {"norms": "frozen"},
    "norms-frozen-mixed": {"norms": "frozen", "depths": MIXED},
    "persistent": {"client_state": "persistent"},
    "persistent-mixed": {"client_state": "persistent", "depths": MIXED, "client_optimiser": "adam", "lr_client": 1e-2},
    "persistent-weights": {"client_state": "persistent", "method": "splitfed"},
    "merges": {"merges": 2, "aggregate": "beta", "beta_reset": 2},
    "merges-stay": {"merges": 3, "client_state": "stay", "epochs": 3},
    "merges-stay-mixed": {"merges": 2, "client_state": "stay", "depths": MIXED, "stragglers": 0.4},
    "beta": {"aggregate": "beta", "beta_reset": 2},
    "beta-mixed": {"aggregate": "beta", "beta_reset": 2, "depths": MIXED, "beta_prior": 1.5},
    "damped": {"aggregate": "damped"},
    "mask-per-round": {"mask_per": "round"},
    "masked-top": {"masked_top": True},
    "no-compensation": {"depths": MIXED, "compensation": False},
    "by-samples": {"weighting": "samples", "depths": "1:0:0:1"},
    "min-contributors": {"min_contributors": 2},
    "global-scope": {"personal_scope": "global", "growth": "one-shot"},
    "random-order": {"personal_order": "random", "growth": "count", "growth_count": 5},
    "augmented": {"augment": "crop-flip"},
    "everyone": {"cohort": 5, "epochs": 2},
    "one-client": {"cohort": 1},
    "deepest": {"depths": "4"},
    "adam-cosine": {"server_optimiser": "adam", "lr_server": 1e-2, "score_schedule": "cosine"},
    "u-shape": {"labels": "u-shape"},
    "u-shape-mixed": {"labels": "u-shape", "depths": "1:1:1"},
    "u-shape-sequential": {"labels": "u-shape", "schedule": "sequential", "method": "splitfed"},
    "labels-randomised": {"labels": "randomised", "label_epsilon": 1.0},
    "faults": {"failures": 0.3, "stragglers": 0.4, "cohort": 5},
    "faults-mixed": {"failures": 0.3, "stragglers": 0.4, "cohort": 5, "depths": MIXED},
    "group-norm": {"norm": "group"},
    "merge-all": {"method": "splitfed", "merge": "all", "depths": MIXED},
    "lg-fedavg-weights": {"method": "lg-fedavg", "train": "weights", "depths": "4"},
    "depthfl-weights": {"method": "depthfl", "train": "weights", "depths": MIXED},
    "dp-sound": {"method": "splitfed-dp", "dp_calibration": "sound", "norm": "group", "norms": "local"},
    "narrow-cut": {"cut_channels": 3, "cut_pool": 2, "cut_clip": 2.0},
    "sorted-cut": {"cut_channels": 3, "cut_sort": 3},
    "sharp": {"mask_sharpness": 8.0},
    "sharp-mixed": {"mask_sharpness": 4.0, "depths": MIXED, "mask_per": "round", "top_mask": "expected"},
    "several-masks": {"forward_masks": 15, "upload_masks": 15, "mask_act": "flip", "personal_ratio": 0.3},
    "shrinking-scores": {"score_decay": 0.5, "depths": MIXED},
    "several-masks-mixed": {"forward_masks": 3, "upload_masks": 6, "upload_draw": "even", "depths": MIXED},
    "flipped": {"mask_act": "flip", "mask_per": "round", "depths": MIXED, "top_mask": "expected"},
    "flipped-threshold": {"mask_act": "flip", "method": "threshold-mask", "upload_masks": 3},
    "trained-cut": {"cut_channels": 3, "cut_pool": 2, "cut_weights": "trained"},
    "trained-cut-kept": {"cut_channels": 3, "cut_weights": "trained", "norms": "local", "personal_ratio": 0.3},
    "narrow-deepest": {"cut_channels": 2, "depths": "4", "method": "splitfed"},
    "narrow-u-shape": {"cut_channels": 2, "labels": "u-shape"},
    "guarded": {"cut_channels": 3, "guard": 0.5, "guard_width": 4, "norms": "frozen"},
    "guarded-persistent": {"guard": 0.5, "guard_width": 4, "client_state": "persistent", "method": "splitfed"},
    "steered": {
        "entropy_target": 0.3,
        "score_spread": 2.0,
        "weights_scale": 0.5,
        "label_smoothing": 0.1,
        "depths": MIXED,
    },
    "smoothed-u-shape": {"label_smoothing": 0.1, "labels": "u-shape"},
    "rate-by-share": {"union_rate": "linear"},
    "rate-by-share-mixed": {"union_rate": "sqrt", "depths": MIXED},
    "even-uploads": {"upload_draw": "even", "personal_ratio": 0.3},
    "even-uploads-mixed": {"upload_draw": "even", "depths": MIXED, "failures": 0.3, "cohort": 5},
    "expected-top": {"top_mask": "expected", "depths": MIXED},
    "threshold-top": {"top_mask": "threshold", "masked_top": True},
    "no-peek": {"no_peek": 0.3, "depths": MIXED},
    "int8-cut": {"cut_codec": "int8"},
    "int4-up-int8-down": {"cut_codec": "int4", "gradient_codec": "int8", "depths": MIXED},
    "int2-u-shape": {"cut_codec": "int2", "gradient_codec": "int4", "labels": "u-shape"},
    "masks-coded": {"mask_codec": "entropy"},
    "masks-coded-mixed": {"mask_codec": "entropy", "theta_codec": "u8", "depths": MIXED},
    "theta-coded": {"mask_codec": "entropy", "theta_codec": "entropy", "aggregate": "sampled"},
    "theta-u16": {"theta_codec": "u16", "method": "splitfed-pm"},
    "theta-coded-weights": {"theta_codec": "entropy", "method": "splitfed"},
    "theta-coded-lg-fedavg": {"theta_codec": "entropy", "mask_codec": "entropy", "method": "lg-fedavg", "depths": "4"},
    "fedpm": {"frozen": "signed", "estimator": "paper", "aggregate": "beta", "score_init": "constant"},
}


def both(world: World, rounds: int = 3) -> tuple[State, State]:
    """The two executors' states, after comparing them, bytes, messages and metrics."""
    fast, fast_ledger, fast_metrics = play(world, CohortExecutor, rounds)
    slow, slow_ledger, slow_metrics = play(world, ReferenceExecutor, rounds)
    assert_agree(fast, slow)
    assert fast_ledger.as_dict() == slow_ledger.as_dict()
    assert fast_ledger.messages_as_dict() == slow_ledger.messages_as_dict()
    for a, b in zip(fast_metrics, slow_metrics, strict=True):
        assert a.samples == b.samples
        assert a.entropy_per_layer == pytest.approx(b.entropy_per_layer, rel=1e-9)
        for mine, other in (
            (a.loss, b.loss),
            (a.mask_entropy, b.mask_entropy),
            (a.disagree, b.disagree),
            (a.personal, b.personal),
            (a.at_clip, b.at_clip),
        ):
            assert mine == (None if other is None else pytest.approx(other, rel=1e-9))
    return fast, slow


def near(a: Tensor | None, b: Tensor | None, tolerance: float = 1e-9) -> None:
    if a is None or b is None:
        assert a is b
        return
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def assert_agree(fast: State, slow: State) -> None:
    near(fast.shared, slow.shared)
    near(fast.plain, slow.plain)
    for a, b in (
        (fast.masked_optimiser, slow.masked_optimiser),
        (fast.plain_optimiser, slow.plain_optimiser),
    ):
        for name, value in a.tensors().items():
            near(value, b.tensors()[name])
    assert (fast.counts is None) == (slow.counts is None)
    for x, y in zip(fast.counts or (), slow.counts or (), strict=True):
        near(x, y)
    assert fast.bank.keys() == slow.bank.keys()
    for client, mine in fast.bank.items():
        other = slow.bank[client]
        assert torch.equal(mine.indices, other.indices)
        assert mine.participations == other.participations
        near(mine.values, other.values)
        near(mine.plain, other.plain)
        assert mine.optimiser.keys() == other.optimiser.keys()
        for name, value in mine.optimiser.items():
            near(value, other.optimiser[name])


@pytest.mark.parametrize("depths", ["2", MIXED])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_the_same_under_both_executors(method: str, depths: str) -> None:
    world = tiny_world(method=method, depths=depths, aggregate="sampled")
    fast, slow = both(world)
    if world.method.uploads == "bits" and not world.mixed:
        bottom = world.masked_size(world.cut)
        assert torch.equal(fast.shared[:bottom], slow.shared[:bottom])  # means of the same bits
    if method == "pm-sfl":
        assert any(len(m.indices) for m in fast.bank.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_is_the_same_under_both_executors(variant: str) -> None:
    both(tiny_world(**VARIANTS[variant]))


@pytest.mark.parametrize("method", ["pm-sfl", "splitfed"])
@pytest.mark.parametrize("codec", ["fp32", "bf16", "fp16"])
def test_a_coarse_cut_rounds_alike_under_both_executors(method: str, codec: str) -> None:
    world = tiny_world(method=method, cut_codec=codec)
    fast, slow = both_coarse(world)
    # A value on the edge between two codes may fall either way; one code is worth no more than this.
    near(fast.plain, slow.plain, 1e-2)
    near(fast.shared[world.masked_size(world.cut) :], slow.shared[world.masked_size(world.cut) :], 1e-2)


def both_coarse(world: World) -> tuple[State, State]:
    fast, fast_ledger, _ = play(world, CohortExecutor, 1)
    slow, slow_ledger, _ = play(world, ReferenceExecutor, 1)
    assert fast_ledger.messages_as_dict() == slow_ledger.messages_as_dict()
    assert fast_ledger.as_dict() == slow_ledger.as_dict()
    exact, exact_ledger, _ = play(tiny_world(method=world.recipe.method), CohortExecutor, 1)
    assert fast_ledger.as_dict()["smashed.up"] < exact_ledger.as_dict()["smashed.up"]
    assert not torch.equal(exact.plain, fast.plain)  # it does round
    return fast, slow


@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 3)])
def test_a_transformer_is_the_same_under_both_executors(shape: tuple[int, ...]) -> None:
    world = tiny_world(tiny_federation(shape=shape), model="transformer", width=8, depths=MIXED)
    both(world)


def with_dropout(*_: object) -> SplitModel:
    blocks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.3)), nn.Linear(8, 8)]
    return SplitModel(blocks, nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 4)))


class Branching(nn.Linear):
    """Not to be vectorised."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if float(out.sum()) > 0 else out * 2


def branching(*_: object) -> SplitModel:
    return SplitModel([nn.Sequential(nn.Flatten(), Branching(64, 8)), nn.Linear(8, 8)], nn.Linear(8, 4))


def test_dropout_drops_the_same_units_under_both_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.world.make_model", with_dropout)
    world = tiny_world(depths="1")
    assert world.why_looped is None
    both(world)


def test_a_model_that_cannot_be_vectorised_runs_looped_and_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.world.make_model", branching)
    world = tiny_world(depths="1:1")
    assert world.why_looped is not None
    both(world)


def test_single_precision_agrees_after_one_step() -> None:
    world = tiny_world(tiny_federation(sizes=(6, 6, 6)), dtype="float32")
    assert world.plan(0).steps == (1, 1, 1)
    fast, _, _ = play(world, CohortExecutor, 1)
    slow, _, _ = play(world, ReferenceExecutor, 1)
    near(fast.plain, slow.plain, 1e-5)
    for client, mine in fast.bank.items():
        assert mine.participations == slow.bank[client].participations == 1
