"""What an upload is expected to look like before it is used."""

from __future__ import annotations

import pytest
import torch

from pmsfl.deploy.checks import chance, check_mask, mask_score
from pmsfl.deploy.settings import Bounds
from pmsfl.masks.bernoulli import sample_mean
from pmsfl.masks.random import Stream, root, uniform
from pmsfl.wire.messages import WireError


@pytest.mark.parametrize("masks", [1, 3, 15])
def test_scores_of_honest_masks_are_standard_normal(masks: int) -> None:
    theta = 0.01 + 0.98 * uniform(root(0, Stream.NOISE), 4000, torch.float64)
    scores = [
        mask_score(sample_mean(theta, uniform(root(i, Stream.UPLOAD), 4000, torch.float64), masks), theta, masks)
        for i in range(300)
    ]
    found = torch.tensor(scores, dtype=torch.float64)
    assert abs(float(found.mean())) < 0.25
    assert 0.8 < float(found.std()) < 1.2


def test_the_mean_of_several_masks_leaves_less_to_chance() -> None:
    theta = torch.full((100,), 0.3, dtype=torch.float64)
    assert chance(theta) == pytest.approx(10 * (0.3 * 0.7) ** 0.5)
    assert chance(theta, 4) == pytest.approx(10 * (0.2 * 0.8) ** 0.5 / 4)  # 4 · 0.3 = 1 + 0.2


@pytest.mark.parametrize("masks", [1, 15])
def test_a_mask_that_no_learning_explains_is_refused(masks: int) -> None:
    theta, bounds = torch.full((10_000,), 0.1, dtype=torch.float64), Bounds()
    check_mask(sample_mean(theta, uniform(root(0, Stream.UPLOAD), 10_000, torch.float64), masks), theta, bounds, masks)
    with pytest.raises(WireError, match="standard deviations"):
        check_mask(torch.ones_like(theta), theta, bounds, masks)
