"""Training across the cut is training: an independent loop of torch.optim over an uncut model (conformance 7, 8)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.reference import ReferenceExecutor
from pmsfl.engine.server import Server
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.masks.random import Stream, normal, root, uniform
from pmsfl.models.split import SplitModel

from ..conftest import bottoms_of, play, tiny_federation, tiny_world, uncut_model

ROUNDS = 3


class Drawn(torch.autograd.Function):
    """The mask forwards; backwards Eq. 4's slope of σ, written out."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, u: Tensor, paper: bool) -> Tensor:
        theta = torch.sigmoid(scores)
        ctx.save_for_backward(theta)
        ctx.paper = paper
        return (u < theta).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (theta,) = ctx.saved_tensors
        slope = theta * (1 - theta) * (theta if ctx.paper else 1.0)
        return grads[0] * slope, None, None


def on_client(name: str, world: World) -> bool:
    if name.startswith("head"):
        return world.u_shape
    return int(name.split(".")[1]) < world.cut


def naive_splitfed(world: World) -> dict[str, Tensor]:
    r = world.recipe
    model, own = uncut_model(world)
    kind: Any = torch.optim.SGD if r.server_optimiser == "sgd" else torch.optim.Adam
    options: dict[str, Any] = {"weight_decay": r.weight_decay}
    options |= {"momentum": r.momentum} if r.server_optimiser == "sgd" else {}
    top = kind([p for n, p in own.items() if not on_client(n, world)], lr=r.lr_server, **options)
    for t in range(ROUNDS):
        bottom = kind([p for n, p in own.items() if on_client(n, world)], lr=r.lr_client, **options)
        for rows in world.batch_rows(0, t, world.plan(t).steps[0]):
            x, y = torch.from_numpy(world.federation.x).double()[rows], world.y[rows]
            top.zero_grad()
            bottom.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            top.step()
            bottom.step()
    return {n: p.detach() for n, p in own.items()}


def naive_pm_sfl(world: World) -> tuple[Tensor, dict[str, Tensor]]:
    """θ of the bottom and everything that is trained, after ROUNDS rounds of one client."""
    r = world.recipe
    model, own = uncut_model(world)
    names = [s.name for s in world.layout.layers(world.cut)]
    frozen = {n: own[n].detach().clone() for n in names}
    sizes = [frozen[n].numel() for n in names]
    theta = torch.sigmoid(world.initial_scores[: sum(sizes)]).clamp(r.clip, 1 - r.clip)
    trained = {n: p for n, p in own.items() if n not in frozen}
    sgd: dict[str, Any] = {"momentum": r.momentum, "weight_decay": r.weight_decay}
    top = torch.optim.SGD([p for n, p in trained.items() if not on_client(n, world)], lr=r.lr_server, **sgd)
    limit = float(torch.logit(torch.tensor(1 - r.clip, dtype=torch.float64)))
    for t in range(ROUNDS):
        scores = nn.Parameter(torch.log(theta / (1 - theta)))
        adam = torch.optim.Adam([scores], lr=r.lr_score)
        norms = torch.optim.SGD([p for n, p in trained.items() if on_client(n, world)], lr=r.lr_client, **sgd)
        for step, rows in enumerate(world.batch_rows(0, t, world.plan(t).steps[0])):
            x, y = torch.from_numpy(world.federation.x).double()[rows], world.y[rows]
            u = uniform(world.keys.client(Stream.FORWARD, 0, t, step), len(scores), torch.float64)
            mask: Tensor = Drawn.apply(scores, u, r.estimator == "paper")  # type: ignore[no-untyped-call]
            parts = torch.split(mask, sizes)
            masked = {n: frozen[n] * m.reshape(frozen[n].shape) for n, m in zip(names, parts, strict=True)}
            views = {n.removeprefix("blocks."): v for n, v in masked.items()}
            for optimiser in (top, adam, norms):
                optimiser.zero_grad()
            F.cross_entropy(torch.func.functional_call(model, views, (x,)), y).backward()  # type: ignore[no-untyped-call]
            for optimiser in (top, adam, norms):
                optimiser.step()
            scores.data.clamp_(-limit, limit)
        u = uniform(world.keys.client(Stream.UPLOAD, 0, t), len(scores), torch.float64)
        theta = (u < torch.sigmoid(scores.detach())).double().clamp(r.clip, 1 - r.clip)
    return theta, {n: p.detach() for n, p in trained.items()}


def one_client(**changes: Any) -> World:
    base: dict[str, Any] = {"cohort": 1, "aggregate": "sampled", "personal_ratio": 0.0, "lr_schedule": "constant"}
    return tiny_world(tiny_federation(sizes=(20,)), **(base | changes))


@pytest.mark.parametrize("executor", [CohortExecutor, ReferenceExecutor])
@pytest.mark.parametrize(
    ("optimiser", "depth", "labels"),
    [
        ("sgd", "1", "shared"),
        ("sgd", "2", "shared"),
        ("sgd", "4", "shared"),
        ("adam", "2", "shared"),
        ("sgd", "2", "u-shape"),
        ("adam", "3", "u-shape"),
    ],
)
def test_splitfed_with_one_client_is_ordinary_training(
    executor: type[CohortExecutor] | type[ReferenceExecutor], optimiser: str, depth: str, labels: str
) -> None:
    rate = 0.1 if optimiser == "sgd" else 1e-2
    world = one_client(
        method="splitfed",
        depths=depth,
        labels=labels,
        client_optimiser=optimiser,
        server_optimiser=optimiser,
        lr_client=rate,
        lr_server=rate,
    )
    state, _, _ = play(world, executor, ROUNDS)
    ours = world.layout.bottom(state.shared, state.plain, world.model.depth + 1)
    for name, value in naive_splitfed(world).items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("executor", [CohortExecutor, ReferenceExecutor])
@pytest.mark.parametrize("estimator", ["plain", "paper"])
def test_pm_sfl_with_one_client_is_mask_training_of_the_uncut_model(
    executor: type[CohortExecutor] | type[ReferenceExecutor], estimator: str
) -> None:
    world = one_client(estimator=estimator)
    state, _, _ = play(world, executor, ROUNDS)
    theta, trained = naive_pm_sfl(world)
    assert torch.equal(state.shared[: len(theta)], theta)  # every uploaded bit
    ours = world.layout.bottom(state.shared, state.plain, world.model.depth + 1)
    for name, value in trained.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-9, msg=name)


# --- the union


def without_norms(*_: object) -> SplitModel:
    blocks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 6)), *(nn.Sequential(nn.Tanh(), nn.Linear(6, 6)) for _ in "ab")]
    return SplitModel(blocks, nn.Linear(6, 4))


@pytest.mark.parametrize("depths", ["1", "1,2,3,1,2"])
def test_the_union_returns_each_client_its_own_mean_gradient(depths: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmsfl.engine.world.make_model", without_norms)
    world = tiny_world(method="splitfed", depths=depths, cohort=5, lr_server=0.0)
    server = Server(world, State.initial(world), world.plan(0), world.clock(0))
    groups = world.plan(0).groups
    batch = world.recipe.batch
    smashed = {
        d: normal(root(d, Stream.NOISE), len(g) * batch * 6).reshape(len(g), batch, 6) for d, g in groups.items()
    }
    labels = {d: (torch.arange(len(g) * batch) % 4).reshape(len(g), batch) for d, g in groups.items()}
    returned = server.step(smashed, labels)

    views = world.layout.top(server.rows.masked[0], server.rows.plain[0], world.cut)
    weights = {n: v.detach().clone().requires_grad_() for n, v in views.items()}
    total = {n: torch.zeros_like(v) for n, v in weights.items()}
    for d, q in smashed.items():
        for i in range(len(q)):
            alone = q[i].clone().requires_grad_()
            loss = F.cross_entropy(torch.func.functional_call(world.model, weights, (alone, d)), labels[d][i])
            wanted, *grads = torch.autograd.grad(loss, [alone, *weights.values()], materialize_grads=True)
            torch.testing.assert_close(returned[d][i], wanted)
            for n, g in zip(weights, grads, strict=True):
                total[n] += g / sum(map(len, smashed.values()))
    # With lr 0 nothing moved, and momentum holds exactly the first gradient (plus weight decay's share).
    first = world.layout.top(server.rows.masked_optimiser.first[0], server.rows.plain_optimiser.first[0], world.cut)
    for n, g in total.items():
        torch.testing.assert_close(first[n], g + world.recipe.weight_decay * weights[n])


def test_the_server_steps_once_per_union_or_once_per_client_batch() -> None:
    for schedule, wanted in (("parallel", max), ("sequential", sum)):
        world = tiny_world(schedule=schedule, server_optimiser="adam", lr_server=1e-3)
        state, _, (metrics,) = play(world, rounds=1)
        assert float(state.plain_optimiser.steps) == wanted(world.plan(0).steps)
        assert metrics.samples == 6 * sum(world.plan(0).steps)


def test_the_sequential_server_serves_clients_in_an_order_that_changes() -> None:
    world = tiny_world(schedule="sequential", lr_server=0.5, cohort=5)
    server = Server(world, State.initial(world), world.plan(0), world.clock(0))
    q = {2: normal(root(0, Stream.NOISE), 6 * 8 * 4).reshape(1, 6, 8, 2, 2).repeat(5, 1, 1, 1, 1)}
    y = {2: (torch.arange(6) % 4).repeat(5, 1)}
    firsts = set()
    for _ in range(8):
        size = server.step(q, y)[2].flatten(1).norm(dim=1)  # equal batches: gradients shrink turn by turn
        firsts.add(int(size.argmax()))
        server.clock.step += 1
    assert len(firsts) > 1


def test_a_client_that_is_done_leaves_the_union() -> None:
    world = tiny_world(tiny_federation(sizes=(30, 6)), cohort=2, method="splitfed")
    _, _, (metrics,) = play(world, rounds=1)
    assert metrics.samples == 30 + 6
    plan = world.plan(0)
    assert plan.steps == (5, 1)
    short = bottoms_of(world, State.initial(world), list(plan.clients), list(plan.steps))
    before = short.rows.trained.clone()
    short.clock.step += 3
    first = short.first(1)
    q, _ = first.forward()
    first.backward(torch.ones_like(q))
    assert torch.equal(short.rows.trained[1], before[1])
    assert not torch.equal(short.rows.trained[0], before[0])
