"""What a model starts from: the same on every host with the same seed (conformance 9)."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
import torch

from pmsfl.errors import PmsflError
from pmsfl.models.initial import frozen_weights, initial_scores, load_pretrained, plain_parameters
from pmsfl.models.small import small_cnn
from pmsfl.tensorfile import write_tensors

from ..conftest import distinct, tiny_federation, tiny_world


def test_one_seed_gives_the_same_frozen_weights_everywhere() -> None:
    first = frozen_weights(small_cnn(1, 4, width=4), 7, "kaiming")
    torch.manual_seed(99)  # the global generator has no say
    assert torch.equal(frozen_weights(small_cnn(1, 4, width=4), 7, "kaiming"), first)
    assert not torch.equal(frozen_weights(small_cnn(1, 4, width=4), 8, "kaiming"), first)
    assert len(distinct(first)) > 0.99 * first.numel()


def test_frozen_weights_are_pinned_to_the_last_bit() -> None:
    weights = frozen_weights(small_cnn(1, 4, width=4), 0, "kaiming").float().numpy().astype("<f4")
    assert hashlib.sha256(weights.tobytes()).hexdigest()[:16] == "4e2590b628ed7b7d"


def test_single_and_double_precision_runs_share_their_frozen_weights() -> None:
    assert torch.equal(tiny_world(dtype="float32").frozen.double(), tiny_world(dtype="float64").frozen)


def test_kaiming_weights_have_their_deviation_layer_by_layer() -> None:
    model = small_cnn(1, 4, width=16)
    weights = frozen_weights(model, 0, "kaiming")
    for s in model.layout.masked[1:]:
        part = weights[s.offset : s.offset + s.size]
        expected = math.sqrt(2 / math.prod(s.shape[1:]))
        assert float(part.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * s.size))


def test_signed_weights_have_one_magnitude_and_both_signs() -> None:
    model = small_cnn(1, 4, width=8)
    weights = frozen_weights(model, 0, "signed")
    for s in model.layout.masked:
        part = weights[s.offset : s.offset + s.size]
        assert distinct(part.abs()) == pytest.approx([math.sqrt(2 / math.prod(s.shape[1:]))])
        assert abs(float(part.sign().mean())) < 4 / math.sqrt(s.size)


@pytest.mark.parametrize(
    ("method", "depths", "signed_blocks"),
    [
        ("pm-sfl", "2", 2),
        ("frozen-mask", "2", 2),
        ("pm-sfl", "1:1:1:1", 4),
        ("splitfed", "2", 0),
        ("splitfed", "1:1:1:1", 0),
    ],
)
def test_signed_masks_are_signs_where_weights_stay_frozen_and_kaiming_where_they_are_trained(
    method: str, depths: str, signed_blocks: int
) -> None:
    world = tiny_world(method=method, depths=depths, frozen="signed-masks")
    end = world.masked_size(signed_blocks)
    kaiming, signed = (frozen_weights(world.model, world.recipe.seed, kind) for kind in ("kaiming", "signed"))
    assert torch.equal(world.frozen.double(), torch.cat((signed[:end], kaiming[end:])))


@pytest.mark.parametrize(
    ("method", "bottom", "top"),
    [("pm-sfl", 2.0, 1.0), ("frozen-mask", 2.0, 1.0), ("dense-frozen", 1.0, 1.0), ("splitfed", 1.0, 1.0)],
)
def test_without_norms_only_weights_under_masks_make_up_for_the_masked_half(
    method: str, bottom: float, top: float
) -> None:
    world = tiny_world(tiny_federation(shape=(4, 4)), model="transformer", width=8, frozen="signed", method=method)
    first, last = world.layout.masked[0], world.layout.masked[-1]
    assert float(world.frozen[0].abs()) == pytest.approx(math.sqrt(bottom * 2 / first.shape[1]))
    assert float(world.frozen[-1].abs()) == pytest.approx(math.sqrt(top * 2 / last.shape[1]))


def test_scores_start_normal_or_at_zero() -> None:
    model = small_cnn(1, 4, width=16)
    scores = initial_scores(model, 0, "normal")
    assert abs(float(scores.mean())) < 0.1
    assert float(scores.std()) == pytest.approx(1.0, abs=0.1)
    assert not initial_scores(model, 0, "constant").any()
    assert len(scores) == model.layout.masked_size


def test_norms_start_at_one_biases_at_zero_and_the_head_at_its_fan_in() -> None:
    model = small_cnn(1, 50, width=16)
    plain = plain_parameters(model, 0)
    parts = {s.name: plain[s.offset : s.offset + s.size] for s in model.layout.plain}
    assert parts["blocks.0.1.weight"].tolist() == [1.0] * 16
    assert not parts["blocks.0.1.bias"].any()
    assert not parts["head.linear.bias"].any()
    assert float(parts["head.linear.weight"].std()) == pytest.approx(1 / 8, rel=0.1)


def saved(path: Path, leave_out: str = "", bend: str = "") -> Path:
    state = {n: t.clone() for n, t in small_cnn(1, 4, width=4).state_dict().items() if n != leave_out}
    if bend:
        state[bend] = state[bend][:1]
    write_tensors(path, state, {})
    return path


def test_pretrained_weights_come_back_as_they_were_saved(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    model = small_cnn(1, 4, width=4)
    write_tensors(file, model.state_dict(), {})
    world = tiny_world(pretrained=str(file))
    views = world.layout.bottom(world.frozen, world.initial_plain, world.model.depth + 1)
    for name, value in model.named_parameters():
        assert torch.equal(views[name], value.detach().double())


def test_plain_parameters_may_be_missing_and_keep_their_start(tmp_path: Path) -> None:
    model = small_cnn(1, 4, width=4)
    frozen, plain = frozen_weights(model, 0, "kaiming"), plain_parameters(model, 0)
    file = saved(tmp_path / "w.safetensors", leave_out="head.linear.weight")
    new_frozen, new_plain = load_pretrained(model, str(file), frozen, plain)
    head = next(s for s in model.layout.plain if s.name == "head.linear.weight")
    where = slice(head.offset, head.offset + head.size)
    assert torch.equal(new_plain[where], plain[where])
    assert not torch.equal(new_frozen, frozen)


@pytest.mark.parametrize(
    ("leave_out", "bend", "message"),
    [
        ("blocks.1.0.weight", "", "no tensor named 'blocks.1.0.weight'"),
        ("", "blocks.1.0.weight", r"blocks.1.0.weight has shape \(1, 4, 3, 3\), the model wants \(8, 4, 3, 3\)"),
    ],
)
def test_a_pretrained_file_that_does_not_fit_is_refused(
    tmp_path: Path, leave_out: str, bend: str, message: str
) -> None:
    file = saved(tmp_path / "w.safetensors", leave_out, bend)
    with pytest.raises(PmsflError, match=message):
        tiny_world(pretrained=str(file))


def test_a_missing_pretrained_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PmsflError, match=r"nowhere\.safetensors"):
        tiny_world(pretrained=str(tmp_path / "nowhere.safetensors"))
