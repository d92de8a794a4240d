"""What each baseline trains, sends, merges and keeps, seen from outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pmsfl.engine.state import State
from pmsfl.errors import PmsflError
from pmsfl.methods import make_method
from pmsfl.methods.depthfl import distillation, exit_loss
from pmsfl.models.dropout import KeyedDropout
from tests.conftest import play, tiny_recipe, tiny_world
from tests.privacy.helpers import image_world


def test_standalone_never_merges_and_never_sends_its_bottom() -> None:
    world = tiny_world(method="standalone")
    state, ledger, _ = play(world)
    p = world.masked_size(2)
    assert torch.equal(state.shared[:p], State.initial(world).shared[:p])
    kinds = {k.split(".")[0] for k in ledger.as_dict()}
    assert kinds == {"smashed", "labels", "gradient", "total"}
    rows = [m.values for m in state.bank.values()]
    assert all(len(r) == p for r in rows)
    assert not torch.equal(rows[0], rows[1])


def test_standalone_keeps_the_servers_blocks_under_mixed_depths() -> None:
    world = tiny_world(method="standalone", depths="1,2,3,4,2")
    state, _, _ = play(world)
    p = world.masked_size(1)
    assert not torch.equal(state.shared[p:], State.initial(world).shared[p:])


@pytest.mark.parametrize("train", ["masks", "weights"])
def test_lg_fedavg_keeps_the_lower_half(train: str) -> None:
    world = tiny_world(method="lg-fedavg", train=train)
    state, _, _ = play(world)
    lower = world.masked_size(1)
    initial = State.initial(world)
    assert torch.equal(state.shared[:lower], initial.shared[:lower])
    assert not torch.equal(state.shared[lower : world.masked_size(2)], initial.shared[lower : world.masked_size(2)])
    assert all(torch.equal(m.indices, torch.arange(lower)) for m in state.bank.values())


def test_lg_fedavg_keeps_the_lower_halfs_norms_too() -> None:
    world = tiny_world(method="lg-fedavg")
    state, _, _ = play(world)
    lower, upper = world.plain_size(1), world.plain_size(2)
    assert torch.equal(state.plain[:lower], world.initial_plain[:lower])
    assert not torch.equal(state.plain[lower:upper], world.initial_plain[lower:upper])


def test_exit_loss_is_cross_entropy_plus_pairwise_divergence() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 5, 4, dtype=torch.float64)  # 2 clients, 3 exits, 5 samples, 4 classes
    labels = torch.randint(0, 4, (2, 5))
    expected = torch.zeros((), dtype=torch.float64)
    for a in range(2):
        for i in range(3):
            expected += F.cross_entropy(logits[a, i], labels[a])
            for j in range(3):
                if i != j:
                    student, teacher = logits[a, i].log_softmax(-1), logits[a, j].softmax(-1)
                    expected += F.kl_div(student, teacher, reduction="batchmean") / 2
    assert exit_loss(logits, labels, distillation(99, 100)).item() == pytest.approx(expected.item(), rel=1e-12)


def test_distillation_is_ramped_and_teachers_get_no_gradient() -> None:
    logits = torch.tensor([[[[2.0, 0.0]], [[0.0, 1.0]]]], dtype=torch.float64, requires_grad=True)
    labels = torch.zeros(1, 1, dtype=torch.int64)
    early, late = (exit_loss(logits, labels, distillation(r, 100)) for r in (0, 90))
    assert late > early
    (grad,) = torch.autograd.grad(late, logits)
    student, teacher = logits[0, 0, 0].softmax(-1), logits[0, 1, 0].softmax(-1)
    one_hot = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert torch.allclose(grad[0, 0, 0], (student - one_hot) + (student - teacher))


def test_depthfl_trains_a_classifier_after_every_block() -> None:
    world = tiny_world(method="depthfl")
    state, _, _ = play(world)
    exits = [s for s in world.layout.plain if s.name.startswith("exits.") and s.block < 2]
    assert len(exits) == 4  # weight and bias after each of two blocks
    for s in exits:
        part = slice(s.offset, s.offset + s.size)
        assert not torch.equal(state.plain[part], world.initial_plain[part])


def test_splitfed_dp_as_in_the_paper_says_it_guarantees_nothing() -> None:
    world = tiny_world(method="splitfed-dp")
    assert any("guarantee: none" in line for line in world.notes())


def test_sound_dp_refuses_batch_statistics_and_unnoised_norms() -> None:
    with pytest.raises(PmsflError, match="norm = 'group'"):
        make_method(tiny_recipe(method="splitfed-dp", dp_calibration="sound"))
    with pytest.raises(PmsflError, match="norms = 'shared'"):
        make_method(tiny_recipe(method="splitfed-dp", dp_calibration="sound", norm="group"))


@pytest.mark.parametrize(("mechanism", "order"), [("gaussian", 2), ("laplace", 1)])
def test_sound_dp_clips_before_it_adds_noise(mechanism: str, order: int) -> None:
    changes = {"dp_calibration": "sound", "norm": "group", "norms": "local", "dp_mechanism": mechanism}
    method = make_method(
        tiny_recipe(method="splitfed-dp", dp_epsilon_smashed=1e9, dp_clip_smashed=0.5, dp_delta=1e-5, **changes)
    )
    smashed = 100.0 * torch.ones(1, 2, 3, dtype=torch.float64)  # so little noise that only the clip shows
    out = method.smash(smashed, torch.zeros(1, dtype=torch.int64))
    assert torch.linalg.vector_norm(out, order, dim=2).max().item() == pytest.approx(0.5, rel=1e-2)


def test_sound_dp_prints_what_repeated_releases_add_up_to() -> None:
    world = tiny_world(
        method="splitfed-dp", dp_calibration="sound", norm="group", norms="local", dp_epsilon_smashed=1.0
    )
    lines = world.notes()
    assert any(line.startswith("guarantee, smashed data: gaussian noise, ε = 1 per release") for line in lines)
    assert any(line.startswith("guarantee, weights: clip and gaussian noise, ε = 5 per upload") for line in lines)


def test_less_epsilon_means_more_noise_in_the_papers_calibration() -> None:
    smashed = torch.linspace(0, 1, 12, dtype=torch.float64).reshape(1, 2, 6)
    key = torch.zeros(1, dtype=torch.int64)

    def spread(epsilon: float) -> float:
        method = make_method(tiny_recipe(method="splitfed-dp", dp_epsilon_smashed=epsilon))
        return (method.smash(smashed, key) - smashed).abs().mean().item()

    assert spread(0.1) == pytest.approx(10 * spread(1.0), rel=1e-9)


def test_merge_all_blends_the_servers_copy_in() -> None:
    naive = play(tiny_world(method="splitfed", depths="1,2,3,4,2"))[0]
    blended = play(tiny_world(method="splitfed", depths="1,2,3,4,2", merge="all"))[0]
    p = tiny_world(method="splitfed", depths="1,2,3,4,2").masked_size(1)
    assert not torch.equal(naive.shared[p:], blended.shared[p:])


def test_compensation_changes_only_layers_some_clients_do_not_hold() -> None:
    changes: dict[str, Any] = {"depths": "1,2,3,4,2", "cohort": 5, "personal_ratio": 0.0}
    with_it = play(tiny_world(compensation=True, **changes), rounds=1)[0]
    without = play(tiny_world(compensation=False, **changes), rounds=1)[0]
    held_by_all = tiny_world(**changes).masked_size(1)
    assert torch.equal(with_it.shared[:held_by_all], without.shared[:held_by_all])
    assert not torch.equal(with_it.shared[held_by_all:], without.shared[held_by_all:])


def test_depthfl_shares_its_classifiers_even_where_norms_stay() -> None:
    world = tiny_world(method="depthfl", norms="local")
    state, _, _ = play(world)
    s = next(s for s in world.layout.plain if s.name == "exits.0.linear.weight")
    part = slice(s.offset, s.offset + s.size)
    assert not torch.equal(state.plain[part], world.initial_plain[part])


def test_depthfl_keeps_a_users_dropout() -> None:
    x = torch.ones(1, 6, 1, 8, 8, dtype=torch.float64)
    world = tiny_world(method="depthfl")
    world.model.blocks[0].append(KeyedDropout(0.5))  # type: ignore[operator]
    world.model.train()
    p, q = world.masked_size(1), world.plain_size(1)

    def smashed(key: int) -> torch.Tensor:
        views = world.layout.bottom(world.frozen[None, :p], world.initial_plain[None, :q], 1)
        return world.run_blocks(views, x, 0, 1, torch.tensor([key]))[0]

    assert (smashed(1) == 0).double().mean() > 0.3
    assert not torch.equal(smashed(1), smashed(2))


def test_a_standalone_client_never_gets_the_servers_blocks() -> None:
    world = tiny_world(method="standalone", depths="1,2,3,4,2")
    state, _, _ = play(world)
    assert torch.equal(world.sent(state.shared, 4), State.initial(world).shared)


def test_sound_dp_refuses_a_head_that_would_go_up_without_noise() -> None:
    with pytest.raises(PmsflError, match="u-shape"):
        make_method(
            tiny_recipe(method="splitfed-dp", dp_calibration="sound", norm="group", norms="frozen", labels="u-shape")
        )


def test_depthfl_is_refused_where_a_block_puts_out_flat_vectors() -> None:
    with pytest.raises(PmsflError, match=r"depthfl.*block 1 puts out \(40,\)"):
        image_world(method="depthfl", model="tests.privacy.dense:chain", norm="group")


def test_labels_are_smoothed_for_depthfls_classifiers_as_for_everybody() -> None:
    logits, labels = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.randint(4, (2, 5))
    smooth = 0.9 * F.one_hot(labels, 4).double() + 0.1 / 4
    wanted = -(smooth.unsqueeze(1) * logits.log_softmax(-1)).sum(-1).mean(2).sum()
    assert torch.allclose(exit_loss(logits, labels, 0.0, 0.1), wanted)
    plain, smoothed = (play(tiny_world(method="depthfl", label_smoothing=s), rounds=1)[0] for s in (0.0, 0.1))
    exits = [s for s in tiny_world(method="depthfl").layout.plain if s.name.startswith("exits.0")]
    assert exits
    assert all(not torch.equal(*(v.plain[s.offset : s.offset + s.size] for v in (plain, smoothed))) for s in exits)
