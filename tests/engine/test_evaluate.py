"""Evaluation against an ordinary torch model: statistics first (conformance 10), then every client's accuracy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pmsfl.data.federation import Federation
from pmsfl.engine.evaluate import ROWS_PER_CLIENT, Evaluator, _batches
from pmsfl.engine.server import Server
from pmsfl.engine.state import Memory, State
from pmsfl.engine.world import World
from pmsfl.masks.random import Stream, normal, root
from pmsfl.wire.ledger import Ledger

from ..conftest import assert_same_tensors, copied, play, tiny_federation, tiny_world, uncut_model

Moments = dict[str, tuple[float, Tensor, Tensor]]


class Naive:
    """One client after another through an ordinary model, sums kept by hooks. Every client below 128 rows."""

    def __init__(self, world: World, state: State) -> None:
        self.world = world
        self.model, self.own = uncut_model(world)
        self.norms = {f"blocks.{n}": m for n, m in self.model.named_modules() if isinstance(m, nn.BatchNorm2d)}
        self.set(state.shared, state.plain)

    def set(self, masked: Tensor, plain: Tensor) -> None:
        for name, value in self.world.layout.bottom(masked, plain, self.world.model.depth + 1).items():
            self.own[name].data.copy_(value)

    @torch.no_grad()
    def moments(self, rows: list[Tensor], cut: int, weights: list[Tensor], plain: Tensor) -> Moments:
        """Count, Σx and Σx² at every norm: each client's bottom on its own batch, the top on the union."""
        found: Moments = {}

        def note(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
                (x,) = args
                n, total, squares = found.get(name, (0.0, torch.zeros(()), torch.zeros(())))
                count = float(x.numel() / x.shape[1])
                found[name] = (n + count, total + x.sum((0, 2, 3)), squares + (x * x).sum((0, 2, 3)))

            return hook

        hooks = [m.register_forward_pre_hook(note(n)) for n, m in self.norms.items()]
        self.model.train()
        smashed = []
        for r, w in zip(rows, weights, strict=True):
            self.set(w, plain)
            smashed.append(self.model[:cut](self.world.inputs(r)))
        self.model[cut:](torch.cat(smashed))
        for h in hooks:
            h.remove()
        return found

    @torch.no_grad()
    def right(self, rows: Tensor, weights: Tensor, plain: Tensor, moments: Moments) -> float:
        """Percent right with fixed statistics."""
        self.set(weights, plain)
        for name, norm in self.norms.items():
            n, total, squares = moments[name]
            norm.running_mean, norm.running_var = total / n, squares / n - (total / n) ** 2
            norm.track_running_stats = True
        logits = self.model.eval()(self.world.inputs(rows))
        for norm in self.norms.values():
            norm.running_mean, norm.running_var, norm.track_running_stats = None, None, False
        return 100.0 * float((logits.argmax(1) == self.world.y[rows]).double().mean())


@pytest.fixture
def federation() -> Federation:
    return tiny_federation(tests=(40, 25, 0, 31, 40))


def test_statistics_of_the_first_norm_are_the_centralised_ones() -> None:
    sizes = [300, 129, *[3 + i for i in range(18)]]  # several batches, several chunks of clients
    world = tiny_world(tiny_federation(sizes=sizes), method="splitfed")
    state = State.initial(world)
    evaluator = Evaluator(world)
    statistics = evaluator.statistics(state, 0, evaluator.global_jobs(state, 0, world.train_rows))
    rows = torch.cat(world.train_rows)
    first = nn.functional.conv2d(world.inputs(rows), state.shared[:36].reshape(4, 1, 3, 3), padding=1)
    found = statistics.buffers(None)
    torch.testing.assert_close(found["blocks.0.1.running_mean"], first.mean((0, 2, 3)))
    torch.testing.assert_close(found["blocks.0.1.running_var"], first.var((0, 2, 3), correction=0))


def test_statistics_of_every_norm_equal_a_loop_over_clients() -> None:
    world = tiny_world(method="splitfed")
    state, _, _ = play(world, rounds=1)
    evaluator = Evaluator(world)
    found = evaluator.statistics(state, 0, evaluator.global_jobs(state, 0, world.train_rows)).buffers(None)
    moments = Naive(world, state).moments(world.train_rows, 2, [state.shared] * 5, state.plain)
    assert len(found) == 2 * len(moments) == 8
    for name, (n, total, squares) in moments.items():
        torch.testing.assert_close(found[f"{name}.running_mean"], total / n)
        torch.testing.assert_close(found[f"{name}.running_var"], squares / n - (total / n) ** 2)


def test_accuracy_equals_an_ordinary_models(federation: Federation) -> None:
    world = tiny_world(federation, method="splitfed")
    state, _, _ = play(world, rounds=2)
    found = Evaluator(world).evaluate(state)
    naive = Naive(world, state)
    moments = naive.moments(world.train_rows, 2, [state.shared] * 5, state.plain)
    expected = [naive.right(r, state.shared, state.plain, moments) if len(r) else math.nan for r in world.test_rows]
    assert found.per_client.tolist() == pytest.approx(expected, nan_ok=True)
    overall = torch.from_numpy(world.federation.global_test)
    assert found.accuracy_global == pytest.approx(naive.right(overall, state.shared, state.plain, moments))
    assert found.accuracy > 30.0  # better than chance: the comparison is about something


@pytest.mark.parametrize("mode", ["expected", "threshold"])
def test_each_client_is_evaluated_with_its_own_mask(federation: Federation, mode: str) -> None:
    world = tiny_world(federation, eval_mask=mode, growth="one-shot", lr_score=0.5, personal_ratio=1.0)
    state, _, _ = play(world, rounds=3)
    p = world.masked_size(2)

    def weights(client: int | None) -> Tensor:
        theta = state.shared[:p].clone()
        if client is not None and client in state.bank:
            theta[state.bank[client].indices] = torch.sigmoid(state.bank[client].values)
        mask = theta if mode == "expected" else (theta > 0.5).double()
        return torch.cat((world.frozen[:p] * mask, state.shared[p:]))

    found = Evaluator(world).evaluate(state)
    naive = Naive(world, state)
    for accuracies, owners in ((found.per_client, list(range(5))), (found.per_client_global, [None] * 5)):
        own = [weights(c) for c in owners]
        moments = naive.moments(world.train_rows, 2, own, state.plain)
        expected = [
            naive.right(r, w, state.plain, moments) if len(r) else math.nan
            for r, w in zip(world.test_rows, own, strict=True)
        ]
        assert accuracies.tolist() == pytest.approx(expected, nan_ok=True)
    assert not np.array_equal(found.per_client, found.per_client_global, equal_nan=True)


# --- means


def test_clients_without_test_data_are_left_out_of_the_mean(federation: Federation) -> None:
    found = Evaluator(tiny_world(federation)).evaluate(State.initial(tiny_world(federation)))
    assert math.isnan(found.per_client[2])
    rest = [found.per_client[i] for i in (0, 1, 3, 4)]
    assert found.accuracy == pytest.approx(sum(rest) / 4)
    assert found.accuracy_weighted == pytest.approx(np.average(rest, weights=[40, 25, 31, 40]))
    assert found.accuracy_local_global == pytest.approx(np.nanmean(found.per_client_global))


def test_a_federation_without_any_test_data_has_no_accuracy() -> None:
    world = tiny_world(tiny_federation(tests=0))
    found = Evaluator(world).evaluate(State.initial(world))
    for value in (found.accuracy, found.accuracy_weighted, found.accuracy_global, found.accuracy_local_global):
        assert math.isnan(value)


class OneDraw(Evaluator):
    """Evaluates with one of the masks alone."""

    which = 0

    @property
    def draws(self) -> int:
        return 1

    def weights(self, trained: Tensor, draw: int, mode: str | None = None) -> Tensor:
        return super().weights(trained, self.which, mode)


def test_several_masks_are_averaged_and_their_deviation_told(federation: Federation) -> None:
    world = tiny_world(federation, eval_masks=4)
    state, _, _ = play(world, rounds=2)
    together = Evaluator(world).evaluate(state)
    alone = []
    for draw in range(4):
        one = OneDraw(world)
        one.which = draw
        alone.append(one.evaluate(state).accuracy)
    assert together.accuracy == pytest.approx(np.mean(alone))
    assert together.deviation == pytest.approx(np.std(alone))
    assert together.deviation > 0


@pytest.mark.parametrize("method", ["splitfed", "frozen-mask", "dense-frozen", "threshold-mask"])
def test_a_method_without_random_masks_is_evaluated_once(method: str) -> None:
    world = tiny_world(method=method, eval_masks=5)
    assert Evaluator(world).draws == 1
    assert Evaluator(world).evaluate(State.initial(world)).deviation == 0.0


# --- which weights


def test_expected_threshold_and_sampled_weights_are_what_they_say() -> None:
    worlds = {mode: tiny_world(eval_mask=mode) for mode in ("expected", "threshold", "sampled")}
    world = worlds["sampled"]
    p = world.masked_size(2)
    theta, frozen = State.initial(world).shared[:p], world.frozen[:p]
    scores = world.method.start(theta)
    torch.testing.assert_close(Evaluator(worlds["expected"]).weights(scores, 0), frozen * theta)
    assert torch.equal(Evaluator(worlds["threshold"]).weights(scores, 0), frozen * (theta > 0.5))
    drawn = torch.stack([Evaluator(world).weights(scores, d) for d in range(300)])
    assert ((drawn == 0) | (drawn == frozen)).all()
    share = (drawn != 0).double().mean(0)
    assert float(((share - theta) / (theta * (1 - theta) / 300).sqrt()).abs().max()) < 4.5


def test_a_personal_coordinate_is_laid_over_the_global_one() -> None:
    world = tiny_world(eval_mask="expected")
    state = State.initial(world)
    memory = Memory(torch.tensor([0, 7]), torch.tensor([4.0, -4.0], dtype=torch.float64))
    state = dataclasses.replace(state, bank=state.bank | {1: memory})
    evaluator = Evaluator(world)
    mine, _ = evaluator.client_weights(state, 1, 0)
    never_sampled, plain = evaluator.client_weights(state, 0, 0)
    torch.testing.assert_close(never_sampled, world.frozen[: len(mine)] * state.shared[: len(mine)])
    assert torch.equal(plain, state.plain[: world.plain_size(2)])
    assert (mine != never_sampled).nonzero().flatten().tolist() == [0, 7]
    assert float(mine[0]) == pytest.approx(float(world.frozen[0]) / (1 + math.exp(-4)))


def test_local_norms_are_used_where_a_client_has_them() -> None:
    world = tiny_world(norms="local")
    state, _, _ = play(world, rounds=1)
    sampled = world.plan(0).clients[0]
    other = next(c for c in range(5) if c not in state.bank)
    evaluator = Evaluator(world)
    own = state.bank[sampled].plain
    assert own is not None
    assert torch.equal(evaluator.client_weights(state, sampled, 0)[1], own)
    assert torch.equal(evaluator.client_weights(state, other, 0)[1], state.plain[: world.plain_size(2)])


# --- options


@pytest.mark.parametrize("depths", ["2", "1:1:1:1"])
@pytest.mark.parametrize("statistics", ["global", "client", "batch"])
@pytest.mark.parametrize("norms", ["shared", "local"])
def test_looped_and_vectorised_evaluation_agree_under_every_option(
    statistics: str, depths: str, norms: str, federation: Federation
) -> None:
    world = tiny_world(federation, statistics=statistics, depths=depths, norms=norms, growth="one-shot")
    state, _, _ = play(world, rounds=1)
    fast, slow = Evaluator(world), Evaluator(world)
    slow.passes.vectorised = False
    a, b = fast.evaluate(state), slow.evaluate(state)
    np.testing.assert_allclose(a.per_client, b.per_client)
    np.testing.assert_allclose(a.per_client_global, b.per_client_global)
    assert a.accuracy_global == pytest.approx(b.accuracy_global)


def test_per_client_statistics_are_each_clients_own() -> None:
    world = tiny_world(method="splitfed", statistics="client")
    state = State.initial(world)
    evaluator = Evaluator(world)
    found = evaluator.statistics(state, 0, evaluator.global_jobs(state, 0, world.train_rows)).buffers([3, 0])
    naive = Naive(world, state)
    for place, client in enumerate((3, 0)):
        moments = naive.moments([world.train_rows[client]], 2, [state.shared], state.plain)
        for name in ("blocks.0.1", "blocks.1.1"):
            n, total, _ = moments[name]
            torch.testing.assert_close(found[f"{name}.running_mean"][place], total / n)
    top = found["blocks.2.1.running_mean"]
    assert torch.equal(top[0], top[1])  # the top is one for all


def test_where_bottoms_have_their_own_statistics_so_has_the_top() -> None:
    """The deepest client's data pass no norm of the server's: what it keeps to itself is no business of others."""
    world = tiny_world(method="standalone", depths="1:1:1:1", statistics="client")
    state, _, _ = play(world, rounds=2)
    shallow, deepest = (world.depths.index(d) for d in (1, max(world.depths)))
    evaluator = Evaluator(world)

    def logits(client: int, of: State) -> Tensor:
        found = evaluator.statistics(of, 0, evaluator.client_jobs(of, 0, world.train_rows))
        [job] = [j for j in evaluator.client_jobs(of, 0, world.train_rows) if client in j.clients]
        alone = next(iter(evaluator.logits(of, 0, found, job)))[2]
        return alone[job.clients.index(client)].clone()

    kept = state.bank.get(deepest)
    assert kept is not None
    changed = state.bank | {deepest: dataclasses.replace(kept, values=-3.0 * kept.values)}
    other = dataclasses.replace(state, bank=changed)
    assert torch.equal(logits(shallow, other), logits(shallow, state))
    assert not torch.equal(logits(deepest, other), logits(deepest, state))


@pytest.mark.parametrize("statistics", ["global", "client", "batch"])
def test_a_model_without_batch_norm_needs_no_statistics(statistics: str) -> None:
    federation = tiny_federation(shape=(5, 6))
    accuracies = []
    for option in ("global", statistics):
        world = tiny_world(federation, model="transformer", width=8, statistics=option)
        ledger = Ledger()
        state, _, _ = play(world, rounds=1)
        accuracies.append(Evaluator(world, ledger).evaluate(state).per_client.tolist())
        assert ledger.total == 0
    assert accuracies[0] == accuracies[1]


def test_an_evaluation_changes_nothing_and_repeats_itself() -> None:
    world = tiny_world(eval_masks=2)
    state, _, _ = play(world, rounds=1)
    before = copied(state)
    first, second = (Evaluator(world).evaluate(state) for _ in range(2))
    assert_same_tensors(before, state.to_tensors())
    assert first.per_client.tolist() == second.per_client.tolist()
    following, _, _ = play(world, rounds=1, state=state)
    fresh = tiny_world(eval_masks=2)
    untouched, _, _ = play(fresh, rounds=2)
    assert_same_tensors(following.to_tensors(), untouched.to_tensors())


def test_statistics_are_counted_once_per_client_and_mask_in_both_directions() -> None:
    world = tiny_world(method="splitfed-pm", eval_masks=3)
    ledger = Ledger()
    Evaluator(world, ledger).evaluate(State.initial(world))
    values = 2 * (4 + 8) + 2  # a sum and a sum of squares per channel, a count per norm, of the two bottom norms
    counts = ledger.as_dict()
    assert counts["statistics.up"] == counts["statistics.down"] == 5 * 3 * (32 + 4 + 8 * values)
    assert ledger.messages_as_dict()["statistics.up"] == 15


# --- batches


@pytest.mark.parametrize("sizes", [[1], [5, 128, 3], [129, 1, 300], [0, 4]])
def test_every_row_is_seen_exactly_once(sizes: list[int]) -> None:
    rows = [torch.arange(n) + 1000 * i for i, n in enumerate(sizes)]
    seen: list[list[int]] = [[] for _ in sizes]
    for batch, present in _batches(rows):
        assert batch.shape[1] <= ROWS_PER_CLIENT
        for i, (b, p) in enumerate(zip(batch, present, strict=True)):
            seen[i] += b[p].tolist()
    assert seen == [r.tolist() for r in rows]


def test_a_test_row_that_is_padding_never_counts() -> None:
    federation = tiny_federation(tests=(60, 1, 1, 1, 1))
    world = tiny_world(federation, method="splitfed")
    state, _, _ = play(world, rounds=2)
    together = Evaluator(world).evaluate(state).per_client
    assert set(together[1:]) <= {0.0, 100.0}
    noise = normal(root(0, Stream.NOISE), 64)  # row 0 is what padding points at: it must not matter
    x = federation.x.copy()
    x[0] = noise.reshape(1, 8, 8).float().numpy()
    train = (federation.train[0][1:], *federation.train[1:])
    changed = dataclasses.replace(federation, x=x, train=train)
    same = dataclasses.replace(federation, train=train)
    results = []
    for f in (changed, same):
        evaluated = Evaluator(tiny_world(f, method="splitfed")).evaluate(state)
        results.append(evaluated.per_client.tolist())
    assert results[0] == results[1]


def test_the_last_evaluation_takes_the_masks_every_way_and_counts_only_what_was_asked_for() -> None:
    world = tiny_world(rounds=3, eval_masks=2)
    state, _, _ = play(world, rounds=3)
    once, every = Ledger(), Ledger()
    asked = Evaluator(world, once).evaluate(state)
    found = Evaluator(world, every).evaluate_every_way(state)
    assert once.as_dict() == every.as_dict()
    assert found.accuracy == asked.accuracy
    for mode, (accuracy, overall) in found.by_mask.items():
        alone = Evaluator(tiny_world(rounds=3, eval_masks=2, eval_mask=mode)).evaluate(state)
        assert (accuracy, overall) == (alone.accuracy, alone.accuracy_global)
    assert list(found.by_mask) == ["sampled", "expected", "threshold"]


def test_methods_without_random_masks_have_one_way() -> None:
    world = tiny_world(method="splitfed", rounds=1)
    evaluator = Evaluator(world)
    assert evaluator.evaluate_every_way(State.initial(world)).by_mask == {}


@pytest.mark.parametrize("how", ["expected", "threshold"])
@pytest.mark.parametrize("masks", [{}, {"forward_masks": 15, "upload_masks": 15, "mask_act": "flip"}])
def test_a_top_without_chance_is_evaluated_as_it_was_trained(how: str, masks: dict[str, Any]) -> None:
    world = tiny_world(depths="1:1", top_mask=how, eval_masks=2, **masks)
    state, _, _ = play(world, rounds=2)
    evaluator = Evaluator(world)
    first, second = (evaluator.top_weights(state, draw) for draw in range(2))
    assert torch.equal(first, second)
    p = world.masked_size(world.cut)
    theta = state.shared[p:]
    chances = theta if how == "expected" else (theta > 0.5).to(theta.dtype)
    torch.testing.assert_close(first, world.frozen[p:] * (2 * chances - 1 if masks else chances))
    server = Server(world, state, world.plan(1), world.clock(1))
    trained = server.weights(server.rows.masked, torch.tensor(0))
    torch.testing.assert_close(trained.detach(), first)
