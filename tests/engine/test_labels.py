"""Labels that stay with the client, and labels that are randomised."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.notes import label_honesty
from pmsfl.errors import PmsflError
from pmsfl.wire.ledger import Ledger
from tests.conftest import play, tiny_federation, tiny_world


def test_in_the_u_shape_no_label_crosses_the_wire() -> None:
    _, ledger, _ = play(tiny_world(labels="u-shape"))
    sent = ledger.as_dict()
    assert "labels.up" not in sent
    assert sent["features.down"] == sent["feature_gradient.up"] > 0


def test_the_u_shape_needs_a_block_on_the_server() -> None:
    with pytest.raises(PmsflError, match="take at most 3"):
        tiny_world(labels="u-shape", depths="4")


def test_with_one_client_the_u_shape_trains_like_one_network() -> None:
    """K = 1, plain SGD everywhere: moving the head to the client must change nothing in the first step."""
    same = {"cohort": 1, "method": "splitfed", "momentum": 0.0, "weight_decay": 0.0, "lr_schedule": "constant"}
    federation = tiny_federation(sizes=(6,))
    server_head = play(tiny_world(federation, **same, aggregate="sampled"), rounds=1)[0]
    client_head = play(tiny_world(federation, **same, aggregate="sampled", labels="u-shape"), rounds=1)[0]
    assert torch.allclose(server_head.shared, client_head.shared, atol=1e-12)
    assert torch.allclose(server_head.plain, client_head.plain, atol=1e-12)


def test_the_u_shapes_head_is_averaged_and_used_at_evaluation() -> None:
    world = tiny_world(labels="u-shape")
    state, _, _ = play(world)
    start = world.layout.plain_ends[world.model.depth]
    assert not torch.equal(state.plain[start:], world.initial_plain[start:])
    assert math.isfinite(Evaluator(world).evaluate(state).accuracy)


def test_head_gradients_are_means_over_each_clients_own_batch() -> None:
    world = tiny_world(labels="u-shape", cohort=2, method="splitfed")
    from pmsfl.engine.state import State

    state = State.initial(world)
    bottoms = CohortExecutor(world, Ledger()).begin(state).groups[2]
    bottoms.forward()
    features = torch.randn(2, 6, 16, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradient, _ = bottoms.answer(features, [0, 1])
    head = world.layout.head(state.plain[world.layout.plain_ends[4] :])
    for i in range(2):
        f = features[i].clone().requires_grad_()
        loss = F.cross_entropy(functional_call(world.model, head, (f, 4)), world.y[bottoms.rows.batches[i, 0]])
        (expected,) = torch.autograd.grad(loss, f)
        assert torch.allclose(gradient[i], expected, atol=1e-12)


def test_randomised_response_tells_the_truth_as_often_as_its_epsilon_says() -> None:
    federation = tiny_federation(sizes=(4000,), tests=4)
    world = tiny_world(federation, labels="randomised", label_epsilon=1.0, cohort=1)
    honest = label_honesty(1.0, 4)
    assert honest == pytest.approx(math.e / (math.e + 3))
    assert (world.public_y == world.y).double().mean().item() == pytest.approx(honest, abs=0.03)
    wrong = world.public_y[world.public_y != world.y]
    assert set(wrong.tolist()) <= set(range(4))


def test_a_label_is_randomised_once_so_that_its_epsilon_does_not_grow() -> None:
    one, two = (tiny_world(labels="randomised", label_epsilon=0.5) for _ in range(2))
    assert torch.equal(one.public_y, two.public_y)
    assert any("ε = 0.5 per label for the whole run" in line for line in one.notes())


def test_evaluation_uses_the_true_labels() -> None:
    world = tiny_world(labels="randomised", label_epsilon=0.01)
    assert not torch.equal(world.public_y, world.y)
    assert torch.equal(world.y, torch.from_numpy(world.federation.y))


@pytest.mark.parametrize("norms", ["local", "frozen", "shared"])
def test_the_u_shapes_head_is_shared_whatever_becomes_of_the_norms(norms: str) -> None:
    world = tiny_world(labels="u-shape", norms=norms)
    state, _, _ = play(world)
    start = world.layout.plain_ends[world.model.depth]
    assert not torch.equal(state.plain[start:], world.initial_plain[start:])
