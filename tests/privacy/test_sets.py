"""Windows that cross the cut sorted, and the decoder that takes them as sets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pmsfl.engine.state import State
from pmsfl.errors import PmsflError
from pmsfl.models.inspect import cut_cost
from pmsfl.models.registry import make_model
from pmsfl.privacy.attacks import Budget, chosen_attacks
from pmsfl.privacy.attacks.sets import SetDecoder
from pmsfl.privacy.cut import SortWindows
from pmsfl.privacy.same_view import same_view
from pmsfl.privacy.suite import run_suite
from pmsfl.recipe import Recipe

from .helpers import image_world


def _shuffled(q: Tensor, window: int) -> Tensor:
    """Maps [B, C, H, W], the vectors of each window in a random order of each sample's own."""
    out = torch.empty_like(q)
    for sample, mixed in zip(q, out, strict=True):
        for i in range(0, q.shape[2], window):
            for j in range(0, q.shape[3], window):
                part = sample[:, i : i + window, j : j + window]
                order = torch.randperm(part[0].numel())
                mixed[:, i : i + window, j : j + window] = part.flatten(1)[:, order].reshape(part.shape)
    return out


@pytest.mark.parametrize("window", [1, 2, 3, 99])
def test_windows_are_sorted_by_the_first_number_of_their_vectors(window: int) -> None:
    q = torch.randn(4, 3, 5, 7).mul(2.0).round()  # many first numbers are equal: those keep their order
    out = SortWindows(window)(q)
    for i in range(0, 5, window):
        for j in range(0, 7, window):
            before, after = (t[:, :, i : i + window, j : j + window].flatten(2) for t in (q, out))
            for mine, found in zip(before, after, strict=True):
                assert found.T.tolist() == sorted(mine.T.tolist(), key=lambda v: v[0])


def test_nothing_is_left_of_the_order_in_a_window_and_gradients_find_their_places() -> None:
    q = torch.randn(4, 3, 6, 7, dtype=torch.float64, requires_grad=True)
    sort = SortWindows(3)
    out = sort(q)
    mixed = _shuffled(q.detach(), 3)
    assert not torch.equal(mixed, q)
    assert torch.equal(sort(mixed), out)
    (back,) = torch.autograd.grad(out, q, out.detach())
    assert torch.equal(back, q)


def test_sorting_costs_a_client_next_to_nothing() -> None:
    deeper = Recipe(model="resnet18-halves", depths="5", cut_channels=8)
    plain, ordered = (make_model(deeper.replace(cut_sort=w), (3, 32, 32), 100) for w in (0, 4))
    before, after = (cut_cost(m, (3, 32, 32), 5, 2).flops_per_sample for m in (plain, ordered))
    assert before < after < 1.001 * before


def test_sorting_is_for_maps() -> None:
    with pytest.raises(PmsflError, match="cut_sort = 2 is for maps"):
        make_model(Recipe(model="transformer", cut_sort=2, depths="1"), (6, 5), 3)


@pytest.mark.parametrize("window", [2, 3, 99])
def test_a_set_decoder_does_not_mind_orders(window: int) -> None:
    torch.manual_seed(0)
    decoder = SetDecoder((3, 5, 4), (1, 10, 8), window, 8, 1).eval()
    q = torch.randn(8, 3, 5, 4)
    looks, mixed, moved = (t.reshape(2, 4, 3, 5, 4) for t in (q, _shuffled(q, window), q.roll(1, 1)))
    torch.testing.assert_close(decoder(mixed), decoder(looks), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(decoder(moved), decoder(looks), rtol=1e-2)


def test_sorting_hides_images_and_both_decoders_are_tried_on_what_is_left() -> None:
    def scores(window: int) -> dict[str, float]:
        world = image_world(cut_channels=8, cut_sort=window, method="splitfed")
        case = same_view(world, State.initial(world), 8)
        verdict = run_suite(case, chosen_attacks("decoder,set-decoder"), Budget(1, 40, 32, 16, 1))
        return {o.name: o.score for o in verdict.attacks if o.why_not is None}

    plain, ordered = scores(0), scores(3)
    assert "set-decoder" not in plain
    assert plain["grey"] + 0.1 < max(ordered["decoder"], ordered["set-decoder"]) < plain["decoder"] - 0.1
