"""Attacks: they succeed where they must, fail where they must, and say where they cannot be tried."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pmsfl.engine.state import State
from pmsfl.errors import PmsflError
from pmsfl.privacy.attacks import ATTACKS, Attack, Budget, chosen_attacks, decoder
from pmsfl.privacy.attacks.analytic import Dense, dense_chain, recover
from pmsfl.privacy.attacks.decoder import Decoder
from pmsfl.privacy.attacks.gradient import uploaded_gradient
from pmsfl.privacy.cases import Case
from pmsfl.privacy.metrics import ssim
from pmsfl.privacy.same_view import same_view
from pmsfl.privacy.suite import Verdict, meaning, run_suite
from pmsfl.privacy.threat import ThreatModel, Transcript
from tests.privacy.helpers import SIDE, blobs, image_federation, image_world

DENSE: dict[str, Any] = {"model": "tests.privacy.dense:chain", "batch": 1, "norm": "group"}
TOY = Budget(steps=60, decoder_steps=40, decoder_batch=32, decoder_width=16, decoder_blocks=1)


def case_of(images: int = 8, **changes: Any) -> Case:
    world = image_world(**changes)
    return same_view(world, State.initial(world), images)


def attacked(case: Case, names: str, budget: Budget = TOY) -> Verdict:
    return run_suite(case, chosen_attacks(names), budget)


def score(verdict: Verdict, name: str) -> float:
    (outcome,) = [o for o in verdict.attacks if o.name == name]
    assert outcome.why_not is None, outcome.why_not
    return outcome.score


@pytest.fixture(scope="module")
def masked() -> Case:
    return case_of()


def test_a_clip_alone_stops_no_inversion() -> None:
    verdict = attacked(case_of(method="dense-frozen", cut_clip=0.1), "inversion")
    assert score(verdict, "inversion") > 0.9


def test_an_attack_that_breaks_off_costs_only_itself(masked: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Attack, view: Transcript, threat: ThreatModel) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")

    monkeypatch.setattr(ATTACKS["over-masks"], "run", broken)
    lines: list[str] = []
    verdict = run_suite(masked, chosen_attacks("over-masks,guessed-mask"), Budget(steps=2), lines.append)
    assert verdict.failed == ["over-masks"]
    assert verdict.best is not None
    assert verdict.best.name == "guessed-mask"
    assert "over-masks: it failed: CUDA out of memory. Tried to allocate" in lines
    assert meaning(verdict).endswith("The figures lack what broke off: over-masks.")


def test_a_reference_left_out_is_not_taken_for_a_bottom_without_masks(masked: Case) -> None:
    verdict = run_suite(masked, chosen_attacks("inversion,guessed-mask"), Budget(steps=2), compare=False)
    assert verdict.unmasked == ()
    assert verdict.reference is None
    assert "no random mask" not in meaning(verdict)
    bare = run_suite(case_of(method="dense-frozen"), chosen_attacks("inversion"), Budget(steps=2), compare=False)
    assert bare.best is not None
    assert bare.reference == bare.best.score


def test_layer_by_layer_counts_a_narrow_layer_among_the_dense_ones() -> None:
    world = image_world(method="splitfed", cut_channels=20, **DENSE)
    assert dense_chain(world.model, 1) == [True, False, False]
    assert len(world.layout.layers(1)) == 3


# --- the two cases that guard the suite


def test_unmasked_shallow_smashed_data_give_the_images_away() -> None:
    verdict = attacked(case_of(method="dense-frozen"), "inversion,decoder")
    assert score(verdict, "inversion") > 0.9
    assert score(verdict, "decoder") > 0.6
    assert verdict.floor < 0.3


@pytest.mark.parametrize("content", ["constant", "noise"])
def test_smashed_data_that_say_nothing_give_nothing_away(masked: Case, content: str) -> None:
    smashed = torch.full_like(masked.view.smashed, 0.3)
    if content == "noise":
        smashed = torch.rand(smashed.shape, generator=torch.Generator().manual_seed(1))
    view = Transcript("nothing", smashed, True, masked.view.labels)
    budget = Budget(steps=30, decoder_steps=20, decoder_batch=16, decoder_width=16, decoder_blocks=1)
    verdict = attacked(dataclasses.replace(masked, view=view, unmasked=None), "all", budget)
    assert {o.name for o in verdict.tried if o.role == "attack"} >= {"inversion", "joint", "decoder", "decoder-32"}
    assert all(o.score < verdict.floor + 0.15 for o in verdict.tried if o.role == "attack")


# --- masks


def test_a_mask_stops_inversion_but_not_joint_optimisation(masked: Case) -> None:
    verdict = attacked(masked, "inversion,expected-mask,guessed-mask,over-masks,joint,joint-4,oracle-mask")
    naive = max(score(verdict, n) for n in ("inversion", "expected-mask", "guessed-mask"))
    assert naive < 0.65
    assert score(verdict, "joint") > naive + 0.1
    assert score(verdict, "joint-4") > 0.85
    assert score(verdict, "oracle-mask") > 0.85
    assert verdict.best is not None
    assert verdict.best.name == "joint-4"  # the oracle is not in the maximum
    assert verdict.reference is not None
    assert verdict.reference > 0.9


def test_a_decoder_sees_through_masks_and_better_the_more_it_sees(masked: Case) -> None:
    verdict = attacked(masked, "decoder,decoder-4")
    assert verdict.floor + 0.3 < score(verdict, "decoder") < score(verdict, "decoder-4")


def test_a_decoder_brings_any_smashed_data_to_the_size_of_an_image() -> None:
    for smashed in ((8, 3, 3), (5, 7, 7), (40,), (6, 9)):
        out = Decoder(smashed, (3, 14, 13), 32, 1)(torch.zeros(2, *smashed))
        assert out.shape == (2, 3, 14, 13)


def test_a_decoder_finds_what_few_numbers_say_about_pixels_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels in a shuffled order: convolutions alone cannot put them back."""
    order = torch.randperm(SIDE * SIDE, generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(blobs(256))
    q = x.flatten(2)[:, :, order].reshape(x.shape)

    def reached() -> float:
        torch.manual_seed(0)
        model = Decoder((1, SIDE, SIDE), (1, SIDE, SIDE), 8, 1)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(40):
            optimiser.zero_grad()
            torch.autograd.backward(1.0 - ssim(model(q[:192] - 0.5), x[:192]).mean())
            optimiser.step()
        with torch.no_grad():
            return float(ssim(model(q[192:] - 0.5), x[192:]).mean())

    whole = reached()
    monkeypatch.setattr(decoder, "FEW", 0)
    assert whole > reached() + 0.3


# --- uploads


def test_gradients_of_single_images_give_them_away() -> None:
    case = case_of(6, method="splitfed", **DENSE)
    verdict = attacked(case, "gradient-l2,gradient-cosine", Budget(steps=100))
    assert score(verdict, "gradient-l2") > 0.95
    assert score(verdict, "gradient-cosine") > 0.9
    assert verdict.floor < 0.3


def test_smashed_data_and_upload_are_used_together() -> None:
    weights = attacked(case_of(method="splitfed"), "inversion,smashed-and-update")
    assert score(weights, "smashed-and-update") > 0.9
    for method in ("pm-sfl", "splitfed-pm"):
        verdict = attacked(case_of(method=method), "guessed-mask,smashed-and-update")
        assert score(verdict, "smashed-and-update") > score(verdict, "guessed-mask") + 0.1


def test_an_attacker_knows_what_shrinking_scores_took_away() -> None:
    seen = []
    for decay in (0.0, 2.0):
        case = case_of(method="splitfed-pm", score_decay=decay, lr_score=0.01)
        seen.append(uploaded_gradient(case.view.updates[0], case.threat))
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-3, atol=1e-5)


def chain_gradients(seed: int, single: bool) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Weights and gradients of a random masked dense chain, dL/dy of its last layer, and its input."""
    rng = torch.Generator().manual_seed(seed)
    sizes = (30, 20) if single else (30, 24, 20)
    shapes = [(o, i) for i, o in itertools.pairwise(sizes)]
    weights = [torch.randn(s, generator=rng, dtype=torch.float64) for s in shapes]
    masks = [(torch.rand(s, generator=rng) < 0.5).double() for s in shapes]
    leaves = [(w * m).requires_grad_() for w, m in zip(weights, masks, strict=True)]
    x = torch.rand(sizes[0], generator=rng, dtype=torch.float64)
    y = x
    for leaf in leaves:
        y = leaf @ y
    delta = torch.randn(sizes[-1], generator=rng, dtype=torch.float64)
    return weights, list(torch.autograd.grad(y, leaves, delta)), delta, x


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


@pytest.mark.parametrize("single", [True, False])
def test_visible_score_gradients_give_the_input_exactly(single: bool) -> None:
    weights, gradients, delta, x = chain_gradients(0, single)
    slopes = [0.25 * w for w in weights]
    layers = [Dense(w * 0.5, s, s * g, False) for w, s, g in zip(weights, slopes, gradients, strict=True)]
    found = recover(layers, delta)
    if single:
        assert torch.allclose(found, x, atol=1e-9)
    assert abs(cosine(found, x)) == pytest.approx(1.0, abs=1e-6)  # the unknown mask hides at most the scale


def test_bits_hide_what_probabilities_show() -> None:
    """One sample, a bottom of dense layers: appendix B's comparison, with uploads as the engine makes them."""
    verdicts = {m: attacked(case_of(12, method=m, **DENSE), "layer-by-layer") for m in ("splitfed-pm", "pm-sfl")}
    shown = {m: score(v, "layer-by-layer") for m, v in verdicts.items()}
    assert shown["splitfed-pm"] > 0.6  # the pixels' signs, which is all that a step of Adam shows
    assert shown["pm-sfl"] < verdicts["pm-sfl"].floor + 0.1


def test_an_uploaded_sgd_step_of_one_sample_gives_it_away_exactly() -> None:
    case = case_of(4, method="splitfed", **DENSE)
    assert score(attacked(case, "layer-by-layer"), "layer-by-layer") > 0.999


def test_layer_by_layer_takes_dense_chains_of_one_sample() -> None:
    world = image_world(model="tests.privacy.dense:chain", norm="group")
    assert dense_chain(world.model, 1) == [True, False]
    assert dense_chain(image_world().model, 1) is None


# --- what an attack needs


def test_attacks_that_lack_something_say_what() -> None:
    verdict = attacked(case_of(method="splitfed"), "all", Budget(1, 1, 8, 8, 1))
    reasons = {o.name: o.why_not for o in verdict.attacks if o.why_not}
    assert reasons == {
        "expected-mask": "there is no random mask",
        "guessed-mask": "there is no random mask",
        "over-masks": "there is no random mask",
        "joint": "there is no random mask",
        "joint-4": "no mini-batch was seen whole 4 times",
        "oracle-mask": "there is no random mask",
        "layer-by-layer": "it takes an upload of a single sample (batch = 1)",
        "decoder-4": "only 1 observations of each image can be linked",
        "decoder-32": "only 1 observations of each image can be linked",
        "set-decoder": "nothing is sorted",
        "set-decoder-32": "nothing is sorted",
    }
    assert verdict.attacks[-1].why_not is not None  # those that were tried come first


def test_a_server_that_cannot_link_averages_nothing(masked: Case) -> None:
    threat = dataclasses.replace(masked.threat, linked=1)
    for name in ("decoder-4", "decoder-32", "joint-4"):
        assert ATTACKS[name](TOY).why_not(masked.view, masked.threat) is None
        assert ATTACKS[name](TOY).why_not(masked.view, threat) is not None


def test_without_public_images_no_decoder_can_be_trained() -> None:
    world = image_world(image_federation(clients=1), cohort=1)
    verdict = attacked(same_view(world, State.initial(world), 8), "decoder", Budget(1, 1, 8, 8, 1))
    assert {o.name: o.why_not for o in verdict.attacks if o.why_not} == {
        "decoder": "no public images",
        "mean-image": "no public images",
    }
    assert verdict.best is None


def test_unknown_attacks_are_refused_with_the_nearest() -> None:
    with pytest.raises(PmsflError, match="joint"):
        chosen_attacks("jiont")
    assert [a.name for a in chosen_attacks("joint")] == ["grey", "mean-image", "joint"]
    assert len(chosen_attacks("all")) == len(ATTACKS)


def test_every_attack_gives_images_in_range(masked: Case) -> None:
    for name, kind in ATTACKS.items():
        attack = kind(Budget(2, 2, 8, 8, 1))
        if attack.why_not(masked.view, masked.threat) is None:
            out = attack.run(masked.view, masked.threat)
            assert out.shape == (8, 1, SIDE, SIDE), name
            assert 0.0 <= float(out.min()) <= float(out.max()) <= 1.0, name
            assert torch.equal(out, kind(attack.budget).run(masked.view, masked.threat)), name  # and again the same
            assert ssim(out, masked.truth).shape == (8,)


@pytest.mark.parametrize("smashed", [(6, 1, 1), (6, 2, 2), (3, 7, 7), (600, 4, 4)])
def test_a_decoder_draws_on_no_fewer_places_than_a_quarter_of_the_image(smashed: tuple[int, ...]) -> None:
    """Of 1 × 1 maps every pixel could only be drawn alike but for the padding."""
    net = decoder.Decoder(smashed, (1, 28, 28), 8, 1)
    seen: list[torch.Size] = []
    net.body.register_forward_hook(lambda _module, _inputs, out: seen.append(out.shape[-2:]))
    q = torch.randn(2, *smashed, requires_grad=True)
    drawn = net(q)
    assert (drawn.shape, seen) == ((2, 1, 28, 28), [(7, 7)])
    assert (net.spread is None) == (smashed[1:] == (7, 7) or math.prod(smashed) > decoder.FEW)
    drawn[0].sum().backward()
    assert q.grad is not None
    assert bool((q.grad[0] != 0).all())
    assert not bool(q.grad[1].any())


@pytest.mark.parametrize("steps", [20, 57, 1200])
def test_a_decoders_rate_goes_through_one_cycle(steps: int) -> None:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, decoder.PEAK_LR, total_steps=steps, pct_start=decoder.RISE, cycle_momentum=False
    )
    wanted = []
    for _ in range(steps):
        wanted.append(cycle.get_last_lr()[0])
        optimiser.step()
        if len(wanted) < steps:
            cycle.step()
    assert decoder.one_cycle(steps).tolist() == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_training_has_a_rate_for_every_step(steps: int) -> None:
    rates = decoder.one_cycle(steps)
    assert len(rates) == steps
    assert (rates > 0.0).all()
    assert (rates <= decoder.PEAK_LR).all()
