"""A model in two halves: flat vectors, cuts, and the models that ship."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from pmsfl.errors import PmsflError
from pmsfl.models.inspect import cut_cost, smashed_shape, why_not_vectorised
from pmsfl.models.registry import make_model
from pmsfl.models.resnet import resnet18, resnet18_lean, resnet18_tapered
from pmsfl.models.small import small_cnn
from pmsfl.models.split import SplitModel
from pmsfl.models.transformer import transformer
from pmsfl.recipe import Recipe

SHIPPED: dict[str, tuple[Callable[[], SplitModel], tuple[int, ...]]] = {
    "small-cnn": (lambda: small_cnn(1, 4, width=4), (1, 8, 8)),
    "resnet18": (lambda: resnet18(3, 4, width=4), (3, 8, 8)),
    "resnet18-lean": (lambda: resnet18_lean(3, 4, width=4), (3, 8, 8)),
    "resnet18-tapered": (lambda: resnet18_tapered(3, 4, width=4), (3, 8, 8)),
    "transformer-sequence": (lambda: transformer((5, 6), 4, width=8), (5, 6)),
    "transformer-map": (lambda: transformer((2, 5, 3), 4, width=8), (2, 5, 3)),
}


@pytest.fixture(params=SHIPPED)
def shipped(request: pytest.FixtureRequest) -> tuple[SplitModel, Tensor]:
    make, shape = SHIPPED[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().double()
        return model, torch.randn(6, *shape, dtype=torch.float64)


def vectors(model: SplitModel) -> tuple[Tensor, Tensor]:
    parameters = dict(model.named_parameters())

    def flat(slots: tuple[object, ...]) -> Tensor:
        return torch.cat([parameters[s.name].detach().reshape(-1) for s in slots])  # type: ignore[attr-defined]

    return flat(model.layout.masked), flat(model.layout.plain)


# --- sizes


def test_resnet_blocks_have_the_papers_sizes() -> None:
    with torch.device("meta"):
        layout = resnet18(3, 100).layout
    per_block = [b - a for a, b in zip(layout.masked_ends[:-2], layout.masked_ends[1:-1], strict=True)]
    assert per_block == [149_184, 524_288, 2_097_152, 8_388_608]
    assert layout.masked_ends[1:5] == (149_184, 673_472, 2_770_624, 11_159_232)
    assert layout.masked_ends[5] == layout.masked_ends[4]  # the head carries no masks


def test_a_lean_resnet_moves_work_to_its_end() -> None:
    image = (3, 32, 32)
    lean, usual = (make_model(Recipe(model=name), image, 100) for name in ("resnet18-lean", "resnet18"))
    paper, deeper = cut_cost(usual, image, 2, 1), cut_cost(lean, image, 5, 1)
    assert (paper.smashed_shape, deeper.smashed_shape) == ((128, 16, 16), (512, 4, 4))
    assert 1.1 < deeper.flops_per_sample / paper.flops_per_sample < 1.2
    whole = [cut_cost(model, image, model.depth, 1).flops_per_sample for model in (lean, usual)]
    assert 0.97 < whole[0] / whole[1] < 1.03


def test_a_tapered_resnet_is_deeper_for_a_quarter_more_work() -> None:
    image = (3, 32, 32)
    tapered, usual = (make_model(Recipe(model=name), image, 100) for name in ("resnet18-tapered", "resnet18"))
    paper, deeper = cut_cost(usual, image, 2, 1), cut_cost(tapered, image, 7, 1)
    assert deeper.smashed_shape == (512, 4, 4)
    assert 1.2 < deeper.flops_per_sample / paper.flops_per_sample < 1.25


def test_stem_padding_changes_the_smashed_size_alone() -> None:
    padded, bare = resnet18(1, 2, width=2), resnet18(1, 2, width=2, stem_padding=0)
    assert padded.layout == bare.layout
    assert smashed_shape(padded, (1, 8, 8), 1) == (2, 8, 8)
    assert smashed_shape(bare, (1, 8, 8), 1) == (2, 6, 6)


# --- the layout


def test_every_parameter_has_one_place(shipped: tuple[SplitModel, Tensor]) -> None:
    model, _ = shipped
    shapes = {s.name: s.shape for s in (*model.layout.masked, *model.layout.plain)}
    assert shapes == {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert model.layout.masked_size + model.layout.plain_size == sum(p.numel() for p in model.parameters())
    for slots in (model.layout.masked, model.layout.plain):
        assert [s.offset for s in slots] == [sum(t.size for t in slots[:i]) for i in range(len(slots))]
        assert [s.block for s in slots] == sorted(s.block for s in slots)


def test_bottom_and_top_views_are_the_model_itself(shipped: tuple[SplitModel, Tensor]) -> None:
    model, _ = shipped
    masked, plain = vectors(model)
    for d in range(1, model.depth + 1):
        p, q = model.layout.masked_ends[d], model.layout.plain_ends[d]
        bottom = model.layout.bottom(masked[:p], plain[:q], d)
        top = model.layout.top(masked[p:], plain[q:], d)
        assert not bottom.keys() & top.keys()
        views = bottom | top
        assert views.keys() == dict(model.named_parameters()).keys()
        for name, value in model.named_parameters():
            assert torch.equal(views[name], value)
        assert {s.name for s in model.layout.layers(d)} <= bottom.keys()


def test_gradients_through_views_equal_direct_gradients(shipped: tuple[SplitModel, Tensor]) -> None:
    model, x = shipped
    masked, plain = (v.requires_grad_() for v in vectors(model))
    views = model.layout.bottom(masked, plain, model.depth + 1)
    through = torch.autograd.grad(functional_call(model, views, (x,)).square().sum(), [masked, plain])
    model(x).square().sum().backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    for found, slots in zip(through, (model.layout.masked, model.layout.plain), strict=True):
        direct = [grads[s.name] for s in slots]
        torch.testing.assert_close(found, torch.cat([g.reshape(-1) for g in direct if g is not None]))


def test_only_convolutions_and_linear_layers_of_blocks_carry_masks() -> None:
    model = SplitModel(
        [nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), nn.ModuleDict({"in": nn.Linear(3, 3)})],
        nn.Linear(3, 2),
        unmasked=("blocks.2.in",),
    )
    assert [s.name for s in model.layout.masked] == ["blocks.0.weight", "blocks.1.0.weight"]


def test_the_transformers_embedding_carries_no_masks() -> None:
    names = [s.name for s in transformer((5, 6), 4, width=8).layout.masked]
    assert len(names) == 4 * 4
    assert not any("project" in n or "position" in n for n in names)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(PmsflError, match="blocks is empty"):
        SplitModel([], nn.Linear(1, 1))


# --- cutting and joining


def test_a_cut_anywhere_equals_no_cut(shipped: tuple[SplitModel, Tensor]) -> None:
    model, x = shipped
    whole = model(x)
    for d in range(1, model.depth + 1):
        torch.testing.assert_close(model(model(x, 0, d), d), whole)


def test_rows_join_at_their_own_depth_and_leave_at_the_end(shipped: tuple[SplitModel, Tensor]) -> None:
    model, x = shipped
    model.eval()
    parts = [x[:2], x[2:3], x[3:]]
    depths = [1, 3, model.depth]
    smashed = {d: model(p, 0, d) for d, p in zip(depths, parts, strict=True)}
    out = model(smashed[1], 1, None, {d: smashed[d] for d in depths[1:]})
    torch.testing.assert_close(out, model(x))


def test_measured_shapes_are_the_real_ones(shipped: tuple[SplitModel, Tensor]) -> None:
    model, x = shipped
    for d in range(1, model.depth + 1):
        cost = cut_cost(model, tuple(x.shape[1:]), d, 6)
        assert cost.smashed_shape == smashed_shape(model, tuple(x.shape[1:]), d) == tuple(model(x, 0, d).shape[1:])
        assert (cost.masked, cost.plain) == (model.layout.masked_ends[d], model.layout.plain_ends[d])


def test_a_linear_bottom_costs_what_counting_by_hand_says() -> None:
    cost = cut_cost(SplitModel([nn.Linear(3, 5, bias=False)], nn.Linear(5, 2)), (3,), 1, batch=4)
    assert cost.flops_per_sample == 2 * 15 * 2  # forward, and the gradient of the weight; inputs need none
    assert cost.memory_bytes() >= 4 * 6 * 15


# --- vectorising


def test_shipped_models_are_vectorised(shipped: tuple[SplitModel, Tensor]) -> None:
    model, x = shipped
    for d in range(1, model.depth + 1):
        assert why_not_vectorised(model, tuple(x.shape[1:]), d) is None


class Branching(nn.Module):
    """Control flow that depends on the data: vmap cannot follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out if float(out.sum()) > 0 else -out


class Stateful(nn.Linear):
    """Every call differs from the one before."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.parametrize("block", [Branching(), Stateful(3, 3)])
def test_a_block_that_cannot_be_vectorised_gets_a_reason(block: nn.Module) -> None:
    model = SplitModel([block], nn.Linear(3, 2))
    reason = why_not_vectorised(model, (3,), 1)
    assert reason
    assert "\n" not in reason
    assert why_not_vectorised(SplitModel([nn.Linear(3, 3), block], nn.Linear(3, 2)), (3,), 1) is None


# --- by name


def test_models_are_found_by_name_and_leave_the_callers_generator_alone() -> None:
    before = torch.get_rng_state()
    assert make_model(Recipe(width=4), (1, 8, 8), 3).layout.masked_ends[1] == 4 * 9
    for name, depth in (("resnet18", 4), ("resnet18-halves", 8), ("resnet18-lean", 8), ("resnet18-tapered", 10)):
        assert make_model(Recipe(model=name, width=2), (1, 8, 8), 3).depth == depth
    assert make_model(Recipe(model="transformer", width=4), (5, 6), 3).depth == 4
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("small-cn", (1, 8, 8), "small-cnn"),
        ("resnet18", (5, 6), "transformer"),
        ("no_such_module:f", (1, 8, 8), "cannot import"),
        ("math:nothing", (1, 8, 8), "has no function 'nothing'"),
        ("platform:system", (1, 8, 8), "must return pmsfl.SplitModel"),
    ],
)
def test_a_model_that_cannot_be_had_is_named(
    name: str, shape: tuple[int, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("")  # restores sys.path afterwards
    with pytest.raises(PmsflError, match=message):
        make_model(Recipe(model=name), shape, 3)


def test_an_own_model_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tiny_model.py").write_text(
        "from torch import nn\nimport pmsfl\n"
        "def build(classes):\n    return pmsfl.SplitModel([nn.Flatten(), nn.Linear(4, 3)], nn.Linear(3, classes))\n"
    )
    monkeypatch.syspath_prepend("")
    monkeypatch.chdir(tmp_path)
    model = make_model(Recipe(model="my_tiny_model:build"), (1, 2, 2), 7)
    assert isinstance(model.head, nn.Linear)
    assert model.head.out_features == 7
