"""Secret orders and fixed noise at the cut, and the decoder that does not mind orders."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pmsfl.deploy.sitting import Sitting
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.passes import Inputs
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.models.registry import make_model
from pmsfl.privacy.attacks import Budget, chosen_attacks
from pmsfl.privacy.attacks.sets import SetDecoder
from pmsfl.privacy.blur import noised, orders, sample_keys, shuffled
from pmsfl.privacy.cut import SortWindows
from pmsfl.privacy.same_view import same_view
from pmsfl.privacy.suite import run_suite
from pmsfl.recipe import Recipe

from ..conftest import tiny_world
from .helpers import image_world

KEYS = torch.tensor([11, 12])


def _sets(maps: Tensor, window: int) -> list[list[tuple[float, ...]]]:
    """Each window's vectors, in an order that says nothing, for maps [C, H, W]."""
    c, h, w = maps.shape
    parts = [
        maps[:, i : i + window, j : j + window].reshape(c, -1).T
        for i in range(0, h, window)
        for j in range(0, w, window)
    ]
    return [sorted(map(tuple, part.tolist())) for part in parts]


@pytest.mark.parametrize("window", [1, 2, 3, 99])
def test_vectors_stay_whole_and_in_their_window(window: int) -> None:
    q = torch.arange(2.0 * 3 * 2 * 5 * 7).reshape(2, 3, 2, 5, 7)
    out = shuffled(q, window, sample_keys(KEYS, 3))
    assert torch.equal(out, q) == (window == 1)
    for before, after in zip(q.flatten(0, 1), out.flatten(0, 1), strict=True):
        assert _sets(before, window) == _sets(after, window)


def test_gradients_return_to_where_their_vectors_came_from() -> None:
    q = torch.randn(2, 3, 2, 4, 4, requires_grad=True)
    out = shuffled(q, 2, sample_keys(KEYS, 3))
    (back,) = torch.autograd.grad(out, q, out.detach())
    assert torch.equal(back, q)


def test_every_sample_has_an_order_of_its_own_and_every_order_is_as_likely() -> None:
    drawn = orders(sample_keys(KEYS, 3000), 2, 2, 2).flatten(0, 1)
    numbers = (drawn * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = torch.bincount(numbers)
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert counts.float().sub(250.0).square().sum() / 250.0 < 60.0  # χ² of 23 degrees of freedom: p < 1e-4 beyond
    other = orders(sample_keys(KEYS + 1, 3000), 2, 2, 2).flatten(0, 1)
    assert (drawn == other).all(1).float().mean() < 0.1


def test_noise_has_its_deviation_and_differs_among_samples() -> None:
    out = noised(torch.zeros(2, 3, 5000), 0.5, sample_keys(KEYS, 3)).flatten(0, 1)
    torch.testing.assert_close(out.std(1), torch.full((6,), 0.5), rtol=0.05, atol=0.0)
    assert torch.corrcoef(out).fill_diagonal_(0.0).abs().max() < 0.06


def _crossing(world: World, nonce: int | None = None) -> Tensor:
    """What an evaluation sends of two clients' first rows [2, 3, ...]."""
    state = State.initial(world)
    rows = torch.stack([r[:3] for r in world.train_rows[:2]])
    n = world.masked_size(world.cut)
    plain = state.plain[: world.plain_size(world.cut)]
    inputs = Inputs(world.frozen[:n], plain, plain, plain, rows, None, {}, {})
    inputs.nonce = None if nonce is None else torch.tensor(nonce)
    world.model.train()
    with torch.no_grad():
        q: Tensor = Evaluator(world).passes.bottom(world.cut, False, inputs, None)[0]
    return q


def test_evaluations_are_sent_as_training_is() -> None:
    plain, secret = (_crossing(tiny_world(cut_shuffle=w)) for w in (0, 2))
    assert not torch.equal(plain, secret)
    for before, after in zip(plain.flatten(0, 1), secret.flatten(0, 1), strict=True):
        assert _sets(before, 2) == _sets(after, 2)
    assert not torch.equal(_crossing(tiny_world(cut_noise=0.1)), plain)


def test_a_site_never_sends_a_sample_twice_in_one_order() -> None:
    world = tiny_world(cut_shuffle=99)
    start = State.initial(world)
    view = world.plain_view(world.depths[0])
    sitting = Sitting(world, 0, 1, start.shared, start.plain[view.sent], None)
    masked, plain = sitting._weights(0, 0)
    world.model.train()
    with torch.no_grad():
        first, again = (sitting._bottom(masked, plain, world.train_rows[0][:4], {}, False)[0] for _ in range(2))
    assert not torch.equal(first, again)
    torch.testing.assert_close(first.mean((2, 3)), again.mean((2, 3)))


@pytest.mark.parametrize("window", [1, 2, 3, 99])
def test_windows_are_sorted_by_the_first_number_of_their_vectors(window: int) -> None:
    q = torch.randn(4, 3, 5, 7).mul(2.0).round()  # many first numbers are equal: those keep their order
    out = SortWindows(window)(q)
    step = min(window, 7)
    for i in range(0, 5, step):
        for j in range(0, 7, step):
            before, after = (t[:, :, i : i + step, j : j + step].flatten(2) for t in (q, out))
            for mine, found in zip(before, after, strict=True):
                columns = sorted(mine.T.tolist(), key=lambda v: v[0])
                assert found.T.tolist() == columns


def test_sorting_takes_a_shuffle_back_and_gradients_to_their_places() -> None:
    q = torch.randn(1, 4, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    sort = SortWindows(3)
    out = sort(q[0])
    assert torch.equal(out, sort(shuffled(q, 3, sample_keys(KEYS[:1], 4))[0]))
    (back,) = torch.autograd.grad(out, q, out.detach())
    assert torch.equal(back, q)


def test_orders_are_for_maps() -> None:
    with pytest.raises(PmsflError, match="cut_sort = 2 is for maps"):
        make_model(Recipe(model="transformer", cut_sort=2, depths="1"), (6, 5), 3)
    with pytest.raises(PmsflError, match="cut_shuffle = 2 is for maps"):
        make_model(Recipe(model="transformer", cut_shuffle=2, depths="1"), (6, 5), 3)


@pytest.mark.parametrize("window", [2, 3, 99])
def test_a_set_decoder_does_not_mind_orders(window: int) -> None:
    torch.manual_seed(0)
    decoder = SetDecoder((3, 5, 4), (1, 10, 8), window, 8, 1).eval()
    q = torch.randn(2, 4, 3, 5, 4)
    other = shuffled(q, window, sample_keys(KEYS, 4))
    assert not torch.equal(q, other)
    torch.testing.assert_close(decoder(other), decoder(q), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(decoder(shuffled(q, window + 3, sample_keys(KEYS, 4))), decoder(q)) or window == 99


def test_shuffling_hides_images_and_a_set_decoder_sees_more_of_them_than_a_plain_one() -> None:
    names, budget = "decoder,set-decoder", Budget(1, 40, 32, 16, 1)

    def scores(window: int) -> dict[str, float]:
        world = image_world(cut_shuffle=window, method="splitfed")
        verdict = run_suite(same_view(world, State.initial(world), 8), chosen_attacks(names), budget)
        return {o.name: o.score for o in verdict.attacks if o.why_not is None}

    open_, secret = scores(0), scores(2)
    assert "set-decoder" not in open_
    assert secret["decoder"] < secret["set-decoder"] < open_["decoder"]
