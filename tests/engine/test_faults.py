"""Clients that fail or are late, and depths by budget."""

from __future__ import annotations

import pytest
import torch

from pmsfl.engine.budget import parse_budgets
from pmsfl.errors import PmsflError
from pmsfl.models.inspect import cut_cost
from tests.conftest import play, tiny_world


def test_the_round_goes_on_without_those_that_fail() -> None:
    world = tiny_world(failures=0.6, cohort=5, rounds=20)
    plans = [world.plan(t) for t in range(20)]
    assert any(p.failed for p in plans)
    assert all(p.clients for p in plans)
    assert all(set(p.clients).isdisjoint(p.failed) and len(p.clients) + len(p.failed) == 5 for p in plans)


def test_faults_are_reproducible_and_follow_the_seed() -> None:
    def seen(seed: int) -> list[tuple[int, ...]]:
        world = tiny_world(failures=0.5, cohort=5, rounds=10, seed=seed)
        return [world.plan(t).failed for t in range(10)]

    assert seen(0) == seen(0)
    assert seen(0) != seen(1)


def test_even_if_everybody_fails_one_client_is_spared() -> None:
    world = tiny_world(failures=1.0, cohort=5)
    assert all(len(world.plan(t).clients) == 1 and world.plan(t).on_time == (True,) for t in range(3))
    state, _, metrics = play(world)
    assert state.round == 3
    assert metrics[0].failed == 4


def test_a_late_client_works_half_and_its_upload_is_dropped() -> None:
    world = tiny_world(stragglers=0.7, cohort=5, rounds=5)
    plan = world.plan(0)
    assert any(plan.late)
    for client, late, steps in zip(plan.clients, plan.late, plan.steps, strict=True):
        full = -(-int(world.sizes[client]) // world.recipe.batch)
        assert steps == (max(1, full // 2) if late else full)
    state, ledger, metrics = play(world, rounds=1)
    on_time = [c for c, ok in zip(plan.clients, plan.on_time, strict=True) if ok]
    assert sorted(state.bank) == sorted(on_time)
    assert ledger.messages_as_dict()["mask.up"] == len(on_time)
    assert metrics[0].late == len(plan.clients) - len(on_time)


def test_what_a_late_client_learned_does_not_reach_the_merge() -> None:
    world = tiny_world(stragglers=0.7, cohort=5, rounds=5, method="splitfed", aggregate="sampled")
    plan = world.plan(0)
    state, _, _ = play(world, rounds=1)
    alone = [c for c, ok in zip(plan.clients, plan.on_time, strict=True) if ok]
    assert len(alone) < len(plan.clients)
    assert torch.isfinite(state.shared).all()


def test_budgets_choose_the_deepest_cut_that_fits() -> None:
    world = tiny_world(depths="auto", budgets="0.5/0.0007,server")
    costs = {d: cut_cost(world.model, world.input_shape, d, 6) for d in range(1, 5)}

    def affordable(client: int, depth: int) -> bool:
        work = -(-int(world.sizes[client]) // 6) * 6
        return costs[depth].memory_bytes() <= 0.5e6 and costs[depth].flops_per_sample * work <= 0.0007e9

    assert world.depths[1::2] == (4, 4)
    for client in (0, 2, 4):
        depth = world.depths[client]
        assert affordable(client, depth)
        assert depth == 4 or not affordable(client, depth + 1)
    assert min(world.depths) < 4
    assert any(line.startswith("depths: ") for line in world.notes())


def test_a_client_that_cannot_hold_one_block_is_named_with_what_it_lacks() -> None:
    with pytest.raises(PmsflError, match=r"client 0 .* cannot train even the first block"):
        tiny_world(depths="auto", budgets="0.0001/1000")


def test_budgets_must_be_given_and_known() -> None:
    with pytest.raises(PmsflError, match="needs budgets"):
        tiny_world(depths="auto")
    with pytest.raises(PmsflError, match="did you mean 'phone'"):
        parse_budgets("phoen")
    assert [b.name for b in parse_budgets("watch, 64/20")] == ["watch", "64/20"]
