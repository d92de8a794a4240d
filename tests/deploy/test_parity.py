"""With the simulation's keys, three sites behind a server end where the reference executor ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pmsfl.deploy.rehearse import rehearse
from pmsfl.deploy.secret import site_keys
from pmsfl.deploy.settings import Patience
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream
from pmsfl.totals import evaluation_line

from ..conftest import play
from .helpers import NAMES, recipe, server_of, sites_of, three

CASES: dict[str, dict[str, Any]] = {
    "pm-sfl": {},
    "mixed": {"depths": "1,2,3"},
    "splitfed": {"method": "splitfed", "depths": "1,3,2"},
    "standalone": {"method": "standalone"},
    "lg-fedavg": {"method": "lg-fedavg", "depths": "4"},
    "depthfl": {"method": "depthfl", "depths": "1,2,3"},
    "threshold-mask": {"method": "threshold-mask", "eval_mask": "expected"},
    "client-statistics": {"statistics": "client", "eval_masks": 2},
    "client-statistics-mixed": {"method": "standalone", "depths": "1,2,3", "statistics": "client"},
    "batch-statistics": {"statistics": "batch", "mask_per": "round", "depths": "1,1,2"},
    "local-norms": {"norms": "local", "client_state": "persistent"},
    "merges": {"merges": 2, "client_state": "stay", "epochs": 2, "cohort": 2},
    "two-of-three": {"cohort": 2, "weighting": "samples", "aggregate": "beta"},
    "compact": {"mask_codec": "entropy", "theta_codec": "u8", "cut_codec": "int8"},
    "narrow-cut": {"cut_channels": 2, "cut_pool": 2},
    "narrow-coarse-cut": {"cut_channels": 2, "cut_pool": 2, "cut_codec": "int4", "gradient_codec": "int8"},
    "sorted": {"cut_channels": 2, "cut_sort": 2, "cut_weights": "trained"},
    "even-uploads": {"upload_draw": "even", "cohort": 2},
    "even-uploads-mixed": {"upload_draw": "even", "mask_sharpness": 4.0, "depths": "1,2,3"},
    "several-masks": {"forward_masks": 7, "upload_masks": 7, "mask_act": "flip", "upload_draw": "even", "cohort": 2},
    "guarded": {"guard": 0.5, "no_peek": 0.1},
    "bf16-cut": {"cut_codec": "bf16", "augment": "crop"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_deployment_repeats_the_reference_executor(case: str, tmp_path: Path) -> None:
    wanted, federation = recipe(**CASES[case]), three()
    server, sites = server_of(tmp_path, wanted, federation), sites_of(tmp_path, wanted, federation)
    ended = rehearse(server, sites, wanted.turns)
    assert set(ended.values()) == {"the job is over"}

    world = World(wanted, federation=federation)
    state, ledger, metrics = play(world, ReferenceExecutor, wanted.turns)
    assert server.state is not None
    bottom = world.masked_size(world.cut)
    if world.method.uploads == "bits" and not world.mixed:
        assert torch.equal(server.state.shared[:bottom], state.shared[:bottom])  # means of the same bits
    torch.testing.assert_close(server.state.shared, state.shared, rtol=0, atol=1e-9)
    torch.testing.assert_close(server.state.plain, state.plain, rtol=0, atol=1e-9)
    for mine, other in zip(server.books.directory.metrics(), metrics, strict=True):
        assert mine["loss"] == pytest.approx(other.loss, rel=1e-9)
        assert mine["samples"] == other.samples
        for name in ("mask_entropy", "disagree", "personal", "at_clip"):
            expected = getattr(other, name)
            assert mine[name] == (None if expected is None else pytest.approx(expected, rel=1e-9))
    agree_on_memories(sites, state)
    agree_on_bytes(server.books.directory.metrics(), ledger.as_dict())
    if wanted.cut_codec == "native":  # a simulation evaluates without the wire, a deployment over it
        agree_on_accuracy(server.books.totals.last, world, state)


def agree_on_memories(sites: dict[str, Any], state: State) -> None:
    """What each site has on its disk is what the simulation's bank holds."""
    for k, name in enumerate(NAMES):
        mine, other = sites[name]._memory(), state.bank.get(k)
        if other is None:
            assert mine is None
            continue
        assert torch.equal(mine.indices, other.indices)
        torch.testing.assert_close(mine.values, other.values, rtol=0, atol=1e-9)
        assert mine.participations == other.participations


def agree_on_bytes(lines: list[dict[str, Any]], expected: dict[str, int]) -> None:
    """Rounds without an evaluation send what the ledger of a simulation counts."""
    plain = [line["bytes"] for line in lines if "evaluation" not in line]
    assert plain
    for kind in ("gradient.down", "labels.up", "mask.up", "norms.up", "personal.up", "theta.up", "weights.up"):
        assert sum(line["bytes"].get(kind, 0) for line in lines) == expected.get(kind, 0)


def agree_on_accuracy(mine: dict[str, Any], world: World, state: State) -> None:
    other = json.loads(json.dumps(evaluation_line(Evaluator(world).evaluate(state))))
    for name in ("accuracy", "accuracy_weighted", "accuracy_local_global", "deviation"):
        assert mine[name] == pytest.approx(other[name], abs=1e-9)
    assert np.allclose(mine["per_client"], other["per_client"])
    assert np.allclose(mine["per_client_global"], other["per_client_global"])


def test_long_test_sets_are_evaluated_in_several_passes_alike(tmp_path: Path) -> None:
    """More than 128 rows take several passes; which rows meet in one decides what batch norm sees."""
    federation = three(sizes=(140, 20, 12), tests=[7, 260, 130])
    wanted = recipe(rounds=1, batch=40, statistics="global", depths="2,2,1")
    server, sites = server_of(tmp_path, wanted, federation), sites_of(tmp_path, wanted, federation)
    rehearse(server, sites, 1)
    world = World(wanted, federation=federation)
    state, _, _ = play(world, ReferenceExecutor, 1)
    agree_on_accuracy(server.books.totals.last, world, state)


def test_sites_draw_their_masks_from_their_own_secrets(tmp_path: Path) -> None:
    wanted, federation = recipe(rounds=1), three()
    states = []
    for name in ("one", "two"):
        path = tmp_path / name
        server, sites = server_of(path, wanted, federation), sites_of(path, wanted, federation, fixed=False)
        assert set(rehearse(server, sites, 1).values()) == {"the job is over"}
        assert server.state is not None
        states.append(server.state.shared)
        for site in NAMES:
            assert (path / site / "secret").stat().st_mode & 0o777 == 0o600
    assert not torch.equal(states[0], states[1])


def test_without_given_statistics_sites_agree_on_the_pooled_ones(tmp_path: Path) -> None:
    wanted, federation = recipe(rounds=1), three()
    server = server_of(tmp_path, wanted, federation)
    server.roster.mean = server.roster.std = server.roster.shape = server.roster.classes = None
    rehearse(server, sites_of(tmp_path, wanted, federation), 1)
    rows = np.concatenate(federation.train)
    own = federation.x[rows].astype(np.float64)
    assert server.roster.mean == pytest.approx([own.mean()], rel=1e-12)
    assert server.roster.std == pytest.approx([own.std()], rel=1e-12)
    assert server.roster.as_dict() | {"shape": (1, 8, 8), "classes": 4} == server.roster.as_dict()


@pytest.mark.parametrize(("statistics", "more"), [("global", 2), ("batch", 0)])
def test_what_an_evaluation_shows_of_training_rows_is_counted(tmp_path: Path, statistics: str, more: int) -> None:
    """Two evaluated masks: every training row goes up twice more, unless tests bring their own statistics."""
    wanted, federation = recipe(rounds=1, eval_masks=2, statistics=statistics, agreement=1.0), three()
    server = server_of(tmp_path, wanted, federation)
    rehearse(server, sites_of(tmp_path, wanted, federation), 1)
    rows, trained = sum(map(len, federation.train)), 6 * sum(World(wanted, federation=federation).plan(0).steps)
    seen = server.books.directory.metrics()[0]["observations"]["mean"]
    assert seen == pytest.approx(trained / rows + more)


def test_even_uploads_need_a_secret_that_all_sites_share(tmp_path: Path) -> None:
    wanted, federation = recipe(upload_draw="even", rounds=2), three()
    alike = sites_of(tmp_path / "with", wanted, federation, fixed=False, cohort=b"c" * 32)
    server = server_of(tmp_path / "with", wanted, federation)
    assert set(rehearse(server, alike, 2).values()) == {"the job is over"}
    assert {int(site.keys.roots[Stream.UPLOAD]) for site in alike.values()} == {
        int(site_keys(b"x" * 32, alike["a"].manifest.run, wanted.seed, b"c" * 32).roots[Stream.UPLOAD])
    }
    lacking = sites_of(tmp_path / "without", wanted, federation, fixed=False)
    quick = Patience(2, 0.5, 0.5, 0.5, 1.0, 0.3, 64)
    notes: list[str] = []
    lacking["a"].note = notes.append
    with pytest.raises(PmsflError, match="too few sites are there"):
        rehearse(server_of(tmp_path / "without", wanted, federation, quick), lacking, 2)
    assert any("needs the secret that all sites share" in line for line in notes)
