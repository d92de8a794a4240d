"""Augmented images are windows of the padded image, the same for a client alone and in a cohort."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pmsfl.engine.augment import PADDING, augment
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, fold, root

from ..conftest import play, tiny_federation, tiny_world

KEYS = fold(root(0, Stream.AUGMENT), torch.arange(3))
X = torch.arange(3 * 8 * 2 * 6 * 5, dtype=torch.float32).reshape(3, 8, 2, 6, 5) + 1  # all different, none 0


def windows(image: Tensor, flip: bool) -> list[Tensor]:
    """Every crop of a padded image [C, H, W], flipped or not."""
    _, h, w = image.shape
    padded = F.pad(image, (PADDING,) * 4)
    crops = [padded[:, a : a + h, b : b + w] for a in range(2 * PADDING + 1) for b in range(2 * PADDING + 1)]
    return crops + ([c.flip(-1) for c in crops] if flip else [])


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_image_is_a_window_of_its_padded_self(flip: bool, dtype: torch.dtype) -> None:
    x = (X % 251).to(dtype)
    out = augment(x, KEYS, flip)
    assert out.shape == x.shape
    assert out.dtype == dtype
    for image, changed in zip(x.flatten(0, 1), out.flatten(0, 1), strict=True):
        assert any(torch.equal(changed, w) for w in windows(image, flip))


def test_a_client_sees_the_same_alone_and_in_a_cohort() -> None:
    together = augment(X, KEYS, True)
    for i in range(3):
        assert torch.equal(augment(X[i : i + 1], KEYS[i : i + 1], True)[0], together[i])


def test_places_are_spread_and_half_of_the_images_are_flipped() -> None:
    ramp = torch.arange(1.0, 50.0).reshape(1, 1, 1, 7, 7).expand(1, 2000, 1, 7, 7)
    out = augment(ramp, KEYS[:1], True)[0, :, 0]
    middle = out[:, 3]
    rising = (middle.diff(dim=1) >= 0).float().mean(1)
    assert 0.4 < float((rising > 0.5).float().mean()) < 0.75  # two crops in three have a rising middle when unflipped
    assert len({tuple(o.flatten().tolist()) for o in out}) == 2 * 9 * 9


def test_augmentation_changes_training_and_can_be_off() -> None:
    losses = {a: play(tiny_world(augment=a), rounds=1)[2][0].loss for a in ("none", "crop", "crop-flip")}
    assert len(set(losses.values())) == 3


def test_augmenting_sequences_is_refused_with_a_reason() -> None:
    federation = tiny_federation(shape=(5, 6))
    with pytest.raises(PmsflError, match="augment"):
        play(tiny_world(federation, model="transformer", width=4, augment="crop"), rounds=1)
