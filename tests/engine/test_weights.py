"""What the weights of blocks begin as: their size, whoever trains or freezes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pmsfl.tensorfile import write_tensors
from tests.conftest import tiny_federation, tiny_world


@pytest.mark.parametrize("method", ["pm-sfl", "splitfed", "frozen-mask", "dense-frozen", "depthfl"])
@pytest.mark.parametrize("frozen", ["kaiming", "signed-masks"])
def test_the_weights_of_all_blocks_are_scaled_for_every_method(method: str, frozen: str) -> None:
    federation = tiny_federation(shape=(5, 6))  # no batch norm: what goes under masks is √2 larger, besides
    plain, half = (
        tiny_world(federation, model="transformer", width=8, method=method, frozen=frozen, weights_scale=scale)
        for scale in (1.0, 0.5)
    )
    assert torch.equal(half.frozen, 0.5 * plain.frozen)
    assert torch.equal(half.initial_plain, plain.initial_plain)  # embeddings, biases, norms and head are as they were
    assert torch.equal(half.initial_scores, plain.initial_scores)


def test_weights_from_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    world = tiny_world()
    kept = {s.name: torch.randn(s.shape) for s in world.layout.masked}
    write_tensors(tmp_path / "weights.safetensors", kept, {})
    given = tiny_world(pretrained=str(tmp_path / "weights.safetensors"), weights_scale=0.5)
    flat = torch.cat([kept[s.name].flatten() for s in world.layout.masked])
    assert torch.equal(given.frozen, flat.to(given.dtype))
