"""Half precision is for GPUs and single-precision runs."""

from __future__ import annotations

import pytest
import torch

from pmsfl.engine.settings import uses_half
from pmsfl.errors import PmsflError

from ..conftest import tiny_recipe, tiny_world

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bf16_on_a_cpu_is_refused_with_what_to_take(dtype: str) -> None:
    with pytest.raises(PmsflError, match=r"precision = 'bf16' needs a GPU and dtype = 'float32'; take .*'auto'"):
        tiny_world(precision="bf16", dtype=dtype)


def test_bf16_in_double_precision_is_refused_on_a_gpu_too() -> None:
    with pytest.raises(PmsflError, match="dtype = 'float32'"):
        uses_half(tiny_recipe(precision="bf16", dtype="float64"), GPU)


@pytest.mark.parametrize(
    ("precision", "dtype", "device", "half"),
    [
        ("auto", "float32", GPU, True),
        ("bf16", "float32", GPU, True),
        ("full", "float32", GPU, False),
        ("auto", "float64", GPU, False),
        ("full", "float64", GPU, False),
        ("auto", "float32", CPU, False),
        ("full", "float32", CPU, False),
    ],
)
def test_who_runs_in_halves(precision: str, dtype: str, device: torch.device, half: bool) -> None:
    assert uses_half(tiny_recipe(precision=precision, dtype=dtype), device) is half


def test_a_world_in_full_precision_leaves_autocast_off() -> None:
    world = tiny_world(dtype="float32")
    assert not world.half
    with world.precision():
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("half", "share", "told"), [(True, "40", True), (True, "100", False), (True, None, False), (False, "40", False)]
)
def test_half_precision_on_a_share_of_a_gpu_is_told_of(
    half: bool, share: str | None, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = tiny_world(dtype="float32")
    world.half = half  # as on a GPU
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", raising=False)
    if share is not None:
        monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share)
    lines = [line for line in world.notes() if "precision=full" in line]
    assert [line.startswith("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40: ") for line in lines] == [True] * told
