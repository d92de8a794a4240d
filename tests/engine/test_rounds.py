"""What a round does to the state: what may change, what must not, and what a bad round costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.server import Server, Uploads
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.masks.bernoulli import bound
from pmsfl.methods import METHODS
from pmsfl.models.split import SplitModel
from pmsfl.wire.ledger import Ledger

from ..conftest import BASIC, assert_same_tensors, bottoms_of, copied, play, tiny_federation, tiny_world

EXECUTORS = [CohortExecutor, ReferenceExecutor]
Executor = type[CohortExecutor] | type[ReferenceExecutor]
MIXED = "1:1:1:1"


# --- learning at all


@pytest.mark.parametrize("method", BASIC)
def test_every_method_learns(method: str) -> None:
    world = tiny_world(method=method, rounds=8, cohort=5, lr_schedule="constant", weight_decay=0.0)
    _, _, metrics = play(world, rounds=8)
    assert metrics[-1].loss < 0.8 * metrics[0].loss


def test_a_round_is_a_function_of_state_and_seed() -> None:
    first, _, _ = play(tiny_world(), rounds=2)
    again, _, _ = play(tiny_world(), rounds=2)
    other, _, _ = play(tiny_world(seed=1), rounds=2)
    assert_same_tensors(first.to_tensors(), again.to_tensors())
    assert not torch.equal(first.shared, other.shared)


def test_the_global_generator_has_no_say_and_is_left_alone() -> None:
    torch.manual_seed(1)
    first, _, _ = play(tiny_world(), rounds=1)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second, _, _ = play(tiny_world(), rounds=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.shared, second.shared)


# --- the state


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("depths", ["2", MIXED])
def test_a_round_leaves_the_state_it_was_given_alone(executor: Executor, depths: str) -> None:
    world = tiny_world(depths=depths, client_state="persistent", norms="local")
    state, _, _ = play(world, rounds=2)
    before = copied(state)
    play(world, executor, 1, state)
    assert_same_tensors(state.to_tensors(), before)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"depths": MIXED},
        {"client_state": "persistent", "norms": "local"},
        {"client_state": "stay", "merges": 4},
        {"client_state": "stay", "merges": 4, "bank": "file"},
        {"aggregate": "beta", "beta_reset": 3},
        {"method": "splitfed", "server_optimiser": "adam", "lr_server": 1e-3},
        {"dtype": "float32"},
    ],
)
def test_a_state_written_and_read_goes_on_bit_for_bit(options: dict[str, Any]) -> None:
    whole, _, _ = play(tiny_world(**options), rounds=3)
    half, _, _ = play(tiny_world(**options), rounds=2)
    world = tiny_world(**options)
    resumed, _, _ = play(world, rounds=1, state=State.from_tensors(world, copied(half)))
    assert_same_tensors(whole.to_tensors(), resumed.to_tensors())
    assert whole.round == resumed.round == 3


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_loss_that_is_no_number_is_an_error_and_the_state_stays_good(executor: Executor) -> None:
    world = tiny_world(lr_server=1e300, rounds=3)
    state = State.initial(world)
    before = copied(state)
    with pytest.raises(PmsflError, match=r"loss|not finite"):
        play(world, executor, 3, state)
    assert_same_tensors(state.to_tensors(), before)
    calm = tiny_world()
    play(calm, executor, 1, state)  # goes on under a better recipe


# --- optimisers


@pytest.mark.parametrize("depths", ["2", MIXED])
def test_weight_decay_never_touches_scores(depths: str) -> None:
    world = tiny_world(method="splitfed-pm", lr_score=0.0, weight_decay=0.5, depths=depths, aggregate="sampled")
    before = State.initial(world)
    after, _, _ = play(world, rounds=2)
    masked = len(after.shared) if world.mixed else world.masked_size(2)
    torch.testing.assert_close(after.shared[:masked], before.shared[:masked], rtol=0, atol=1e-12)
    assert not torch.allclose(after.plain, before.plain)


def test_weight_decay_does_touch_weights() -> None:
    norms = []
    for decay in (0.0, 0.5):
        world = tiny_world(method="splitfed", weight_decay=decay, lr_client=0.05)
        state, _, _ = play(world, rounds=1)
        norms.append(float(state.shared.norm()))
    assert norms[1] < norms[0]


def test_a_learning_rate_of_zero_freezes_its_side() -> None:
    start = State.initial(tiny_world(method="splitfed"))
    p, q = tiny_world().masked_size(2), tiny_world().plain_size(2)
    client_only, _, _ = play(tiny_world(method="splitfed", lr_server=0.0), rounds=1)
    server_only, _, _ = play(tiny_world(method="splitfed", lr_client=0.0), rounds=1)
    assert torch.equal(client_only.shared[p:], start.shared[p:])
    assert torch.equal(client_only.plain[q:], start.plain[q:])
    assert not torch.equal(client_only.shared[:p], start.shared[:p])
    torch.testing.assert_close(server_only.shared[:p], start.shared[:p], rtol=0, atol=1e-15)
    assert not torch.equal(server_only.shared[p:], start.shared[p:])


def test_persistent_client_state_is_kept_and_fresh_state_is_not() -> None:
    world = tiny_world(client_state="persistent")
    state, _, _ = play(world, rounds=2)
    client = next(iter(state.bank))
    assert float(state.bank[client].optimiser["masked.steps"]) > 0
    fresh, _, _ = play(tiny_world(), rounds=2)
    assert all(not m.optimiser for m in fresh.bank.values())


def test_optimisers_go_on_until_their_round_ends() -> None:
    world = tiny_world(client_state="stay", merges=3, epochs=3)
    state, steps = State.initial(world), []
    for turn in range(4):
        state, _, _ = play(world, rounds=1, state=state)
        plan = world.plan(turn)
        optimiser = state.bank[plan.clients[0]].optimiser
        steps.append(float(optimiser["masked.steps"]) if optimiser else 0.0)
        assert {c for c, m in state.bank.items() if m.optimiser} <= set(plan.clients)
    first, second = (world.plan(turn).steps[0] for turn in (0, 1))
    assert steps == [first, first + second, 0.0, world.plan(3).steps[0]]
    persistent, _, _ = play(tiny_world(client_state="persistent", merges=3, epochs=3), rounds=4)
    assert state.bank.bytes < persistent.bank.bytes / 2  # they are not in the rows


def test_a_round_of_several_merges_is_as_many_short_rounds_of_one_cohort() -> None:
    same: dict[str, Any] = {
        "cohort": 5,
        "batch": 1,
        "norm": "group",
    }  # everybody in every round, and no batch spans two epochs
    merged, _, _ = play(tiny_world(merges=2, epochs=2, rounds=2, agreement=1.0, **same), rounds=4)
    short, _, _ = play(tiny_world(epochs=1, rounds=4, agreement=1.0, **same), rounds=4)
    assert_same_tensors(merged.to_tensors(), short.to_tensors())


# --- θ


@pytest.mark.parametrize("depths", ["2", MIXED])
@pytest.mark.parametrize("clip", [0.01, 0.2])
def test_theta_and_scores_stay_within_the_clip(clip: float, depths: str) -> None:
    world = tiny_world(clip=clip, lr_score=3.0, depths=depths, aggregate="sampled")
    state, _, _ = play(world, rounds=3)
    masked = len(state.shared) if world.mixed else world.masked_size(2)
    theta = state.shared[:masked]
    assert float(theta.min()) >= clip - 1e-12
    assert float(theta.max()) <= 1 - clip + 1e-12
    for m in state.bank.values():
        assert float(m.values.abs().max()) <= bound(clip) + 1e-12


def test_one_mask_per_round_is_one_mask() -> None:
    world = tiny_world(mask_per="round", lr_score=0.0)
    each = tiny_world(mask_per="batch", lr_score=0.0)
    drawn: list[list[Tensor | None]] = []
    for w in (world, each):
        plan = w.plan(0)
        bottoms = bottoms_of(w, State.initial(w), list(plan.clients), list(plan.steps))
        drawn.append([])
        for _ in range(2):
            drawn[-1].append(bottoms._uniform())
            bottoms.clock.step += 1
    assert torch.equal(*drawn[0])  # type: ignore[arg-type]
    assert not torch.equal(*drawn[1])  # type: ignore[arg-type]


# --- norms


def test_frozen_norms_never_change_and_local_ones_stay_with_their_client() -> None:
    for norms in ("frozen", "local"):
        world = tiny_world(norms=norms)
        state, _, _ = play(world, rounds=2)
        q = world.plain_size(2)
        assert torch.equal(state.plain[:q], world.initial_plain[:q])
        kept = [m.plain for m in state.bank.values()]
        if norms == "frozen":
            assert kept == [None] * len(kept)
        else:
            assert all(p is not None and not torch.equal(p, world.initial_plain[:q]) for p in kept)


@pytest.mark.parametrize("norms", ["frozen", "local"])
def test_norms_that_are_never_sent_are_what_a_new_client_already_has(norms: str) -> None:
    """With mixed depths the server trains norms of blocks that deep clients hold; unsent, they cannot know them."""
    world = tiny_world(norms=norms, depths="1,1,1,1,4")
    assert 4 not in world.plan(0).clients
    state, _, _ = play(world, rounds=1)
    newcomer = bottoms_of(world, state, [4], [1])
    assert torch.equal(newcomer.rows.plain[0], world.initial_plain[: world.plain_size(4)])


# --- personalisation


def test_coordinates_that_are_personal_to_everyone_keep_theta() -> None:
    world = tiny_world(personal_ratio=1.0, growth="one-shot", cohort=5, aggregate="sampled")
    state, ledger, metrics = play(world, rounds=3)
    p = world.masked_size(2)
    assert torch.equal(state.shared[:p], State.initial(world).shared[:p])
    assert [m.personal for m in metrics] == [1.0, 1.0, 1.0]
    assert ledger.messages_as_dict()["personal.up"] == 5  # indices go up once


def test_personalisation_waits_for_the_agreement() -> None:
    world = tiny_world(agreement=0.5, rounds=4, cohort=5, growth="one-shot")
    state, _, metrics = play(world, rounds=4)
    assert [m.personal > 0 for m in metrics] == [False, False, True, True]
    assert {m.participations for m in state.bank.values()} == {2}


def test_personal_sets_grow_with_participations_not_with_rounds() -> None:
    world = tiny_world(rounds=6, growth_steps=4, personal_ratio=0.8)
    state = State.initial(world)
    previous: dict[int, set[int]] = {}
    for _ in range(6):
        state, _, _ = play(world, rounds=1, state=state)
        now = {c: set(m.indices.tolist()) for c, m in state.bank.items()}
        for c, before in previous.items():
            assert before <= now[c]
            if c not in world.plan(state.round - 1).clients:
                assert before == now[c]
        for c, m in state.bank.items():
            for slot in world.layout.layers(2):
                held = sum(slot.offset <= i < slot.offset + slot.size for i in now[c])
                assert held == int(0.8 * slot.size * min(m.participations / 4, 1.0))
        previous = now


def test_no_personalisation_means_no_personal_state() -> None:
    state, ledger, metrics = play(tiny_world(personal_ratio=0.0), rounds=2)
    assert all(len(m.indices) == 0 for m in state.bank.values())
    assert "personal.up" not in ledger.as_dict()
    assert metrics[-1].personal == 0.0


# --- compensation


def merged_by_hand(world: World, server_theta: Tensor, client_bit: float) -> tuple[Tensor, list[float]]:
    """The shared vector after uploads that are all `client_bit`, and each layer's share of holders."""
    plan = world.plan(0)
    server = Server(world, State.initial(world), plan, world.clock(0))
    server.rows.masked = torch.logit(server_theta).unsqueeze(0)
    uploads = Uploads.empty(world, len(plan.clients))
    for i, d in enumerate(plan.depths):
        uploads.contributes[i, : world.masked_size(d)] = True
    uploads.values[uploads.contributes] = client_bit
    shares = [sum(d > s.block for d in plan.depths) / len(plan.depths) for s in world.layout.masked]
    return server.finish(uploads, {}).shared, shares


def test_layers_are_merged_by_the_share_of_clients_that_hold_them() -> None:
    world = tiny_world(depths="1,2,3,4,4", cohort=5, aggregate="sampled")
    theta = torch.full((world.layout.masked_size - world.masked_size(1),), 0.3, dtype=torch.float64)
    shared, shares = merged_by_hand(world, theta, 1.0)
    assert shares == [1.0, 0.8, 0.6, 0.4]
    for slot, share in zip(world.layout.masked, shares, strict=True):
        part = shared[slot.offset : slot.offset + slot.size]
        torch.testing.assert_close(part, torch.full_like(part, (1 - share) * 0.3 + share * 0.99))


def test_without_compensation_the_holders_decide_alone() -> None:
    world = tiny_world(depths="1,2,3,3,3", cohort=5, aggregate="sampled", compensation=False)
    theta = torch.full((world.layout.masked_size - world.masked_size(1),), 0.3, dtype=torch.float64)
    shared, _ = merged_by_hand(world, theta, 1.0)
    p = world.masked_size(3)
    torch.testing.assert_close(shared[:p], torch.full_like(shared[:p], 0.99))
    torch.testing.assert_close(shared[p:], torch.full_like(shared[p:], 0.3))


@pytest.mark.parametrize("masked_top", [False, True])
def test_with_equal_depths_compensation_changes_nothing(masked_top: bool) -> None:
    states = [
        play(tiny_world(compensation=on, masked_top=masked_top), rounds=2)[0].to_tensors() for on in (True, False)
    ]
    assert_same_tensors(*states)


def test_weights_are_averaged_over_their_holders_alone() -> None:
    world = tiny_world(method="splitfed", depths="1,2,2,2,2", cohort=5, aggregate="sampled")
    plan, p = world.plan(0), world.masked_size(2)
    server = Server(world, State.initial(world), plan, world.clock(0))
    uploads = Uploads.empty(world, 5)
    for i, d in enumerate(plan.depths):
        uploads.contributes[i, : world.masked_size(d)] = True
        uploads.values[i] = i
    state = server.finish(uploads, {})
    assert torch.allclose(state.shared[: world.masked_size(1)], torch.tensor(2.0, dtype=torch.float64))
    deep = [i for i, d in enumerate(plan.depths) if d == 2]
    assert torch.allclose(state.shared[world.masked_size(1) : p], torch.tensor(sum(deep) / 4, dtype=torch.float64))
    assert torch.equal(state.shared[p:], server.rows.masked[0][p - world.masked_size(1) :])


# --- weighting and priors


def test_clients_weigh_equally_or_by_their_samples() -> None:
    for weighting, expected in (("equal", [1.0] * 3), ("samples", None)):
        world = tiny_world(weighting=weighting)
        plan = world.plan(0)
        server = Server(world, State.initial(world), plan, world.clock(0))
        wanted = expected or [float(world.sizes[c]) for c in plan.clients]
        assert server._weights().tolist() == wanted


@pytest.mark.parametrize(("rest", "round_", "takes"), [(0.75, 5, 1.0), (0.75, 6, 1.0), (0.75, 7, 0.5), (0.5, 6, 0.5)])
def test_settled_masks_take_less_of_a_round_when_they_come_to_rest(rest: float, round_: int, takes: float) -> None:
    worlds = [tiny_world(aggregate=a, rounds=8, personal_ratio=0.0, rest_from=rest) for a in ("sampled", "settled")]
    before = replace(State.initial(worlds[0]), round=round_)
    sampled, settled = (play(w, rounds=1, state=before)[0] for w in worlds)
    p = Server(worlds[0], before, worlds[0].plan(round_), worlds[0].clock(round_)).p
    theta, plain, rested = (s.shared[:p] for s in (before, sampled, settled))
    free = (plain - 0.5).abs() < 0.48  # a mean of 0 or 1 is moved to the clip
    assert 0 < int((free & (plain != theta)).sum()) < p
    torch.testing.assert_close(rested[free], (theta + takes * (plain - theta))[free], rtol=0, atol=1e-12)
    assert_same_tensors({"norms": settled.plain}, {"norms": sampled.plain})  # weights and norms take the plain mean


def test_a_beta_prior_is_forgotten_when_it_is_reset() -> None:
    world = tiny_world(aggregate="beta", beta_reset=2, personal_ratio=0.0)
    state = State.initial(world)
    totals = []
    for _ in range(4):
        state, _, _ = play(world, rounds=1, state=state)
        assert state.counts is not None
        totals.append(float((state.counts[0] + state.counts[1]).mean()))
    assert totals == [5.0, 8.0, 5.0, 8.0]  # a prior of 1 + 1, three clients a round


# --- models at the edge


def begins_without_weights(*_: object) -> SplitModel:
    return SplitModel([nn.Flatten(), nn.Linear(64, 8), nn.ReLU()], nn.Linear(8, 4))


@pytest.mark.parametrize("method", ["pm-sfl", "splitfed"])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("depths", ["1", "2", "3", "1:1"])
def test_a_bottom_without_any_weights_can_be_trained(
    executor: Executor, method: str, depths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmsfl.engine.world.make_model", begins_without_weights)
    _, _, metrics = play(tiny_world(method=method, depths=depths), executor, 2)
    assert metrics[1].loss < metrics[0].loss
    assert 0.0 <= metrics[1].personal <= 1.0


def test_clients_below_the_batch_are_noted() -> None:
    assert tiny_world(tiny_federation(sizes=(6, 7)), cohort=1).notes() == []
    (line,) = tiny_world().notes()
    assert "1 of 5 clients hold fewer samples than the batch of 6 (client 4: 5)" in line


def test_entropy_and_disagreement_are_told_where_there_are_masks() -> None:
    for method in METHODS:
        world = tiny_world(method=method)
        _, _, (metrics,) = play(world, rounds=1)
        learned = world.method.trains == "scores"
        assert (metrics.mask_entropy is not None) == world.method.samples_masks  # a threshold draws nothing
        assert (metrics.disagree is not None) == learned
        if metrics.mask_entropy is not None:
            assert 0.0 < metrics.mask_entropy < 1.0
            sizes = {"blocks.0.0.weight": 36, "blocks.1.0.weight": 288}
            mean = sum(sizes[n] * v for n, v in metrics.entropy_per_layer.items()) / 324
            assert metrics.mask_entropy == pytest.approx(mean)


def test_an_executor_counts_into_the_ledger_it_was_given() -> None:
    world, ledger = tiny_world(), Ledger()
    executor = CohortExecutor(world, ledger)
    state, _ = executor.round(State.initial(world))
    once = ledger.total
    executor.round(state)
    assert once > 0
    assert ledger.total > once


def test_one_mask_per_round_stays_the_same_while_scores_move() -> None:
    world = tiny_world(mask_per="round", lr_score=2.0)
    bottoms = CohortExecutor(world, Ledger()).begin(State.initial(world)).groups[2]
    first, drawn = bottoms.first(1), []
    for _ in range(2):
        q, _ = first.forward()
        uniform = first._uniform()
        assert uniform is not None
        drawn.append(uniform < torch.sigmoid(first.rows.trained))
        first.backward(torch.ones_like(q))
        bottoms.clock.step += 1
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(first.rows.trained > 0, bottoms.start[:1] > 0)


def test_a_batch_of_one_needs_a_norm_that_does_not_average_over_it() -> None:
    with pytest.raises(PmsflError, match="norm = 'group'"):
        tiny_world(batch=1)
    assert tiny_world(batch=1, norm="group").recipe.batch == 1
