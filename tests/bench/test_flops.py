"""What a step cannot do without."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pmsfl.bench.flops import Floor, Speeds, Work, forward_cost, speeds_of, work_of
from pmsfl.models.inspect import cut_cost
from pmsfl.models.resnet import resnet18
from pmsfl.models.small import small_cnn

from ..conftest import tiny_federation, tiny_world


def test_ten_clients_of_32_samples_need_1_07_teraflop_with_resnet_18() -> None:
    flops, elements = forward_cost(resnet18(3, 100), (3, 32, 32))
    assert 3 * flops * 320 / 1e12 == pytest.approx(1.07, abs=0.005)
    # Stem and stage 1 put out five maps of 64 x 32 x 32; every further stage five of half the size; head and input.
    maps = 5 * 64 * 32 * 32
    assert elements == maps + maps / 2 + maps / 4 + maps / 8 + 100 + 3 * 32 * 32


def test_the_count_is_what_the_counter_sees_but_for_the_first_layers_input() -> None:
    model = small_cnn(1, 10)
    whole = cut_cost(model, (1, 28, 28), model.depth, 2).flops_per_sample
    flops, _ = forward_cost(model, (1, 28, 28))
    first = 2 * 28 * 28 * 9 * 16
    head = 2 * 64 * 10
    assert 3 * flops == whole + first + 3 * head


def test_the_model_stays_where_it_is() -> None:
    model = small_cnn(1, 10)
    forward_cost(model, (1, 28, 28))
    assert next(model.parameters()).device.type == "cpu"


@pytest.mark.parametrize(("optimiser", "kept"), [("sgd", 2), ("adam", 3)])
def test_work_grows_with_clients_and_counts_each_byte_once(optimiser: str, kept: int) -> None:
    def world(clients: int, **changes: Any) -> Any:
        federation = tiny_federation(sizes=(12,) * clients)
        return tiny_world(federation, cohort=clients, server_optimiser=optimiser, **changes)

    one, three = work_of(world(1)), work_of(world(3))
    assert three.flops == 3 * one.flops
    w = world(1)
    p, q = w.masked_size(2), w.plain_size(2)
    server = w.layout.masked_size - p + w.layout.plain_size - q
    _, elements = forward_cost(w.model, w.input_shape)
    assert three.bytes - one.bytes == 2 * 8 * (2 * elements * 6 * 2 + 2 * (3 * p + 2 * q))
    assert one.bytes - (three.bytes - one.bytes) // 2 == 8 * (2 * kept * server + p)


def test_the_floor_is_the_slower_of_both() -> None:
    work = Work(flops=2 * 10**12, bytes=10**9)
    assert Floor(work, Speeds(1e12, 1e12)).ms == pytest.approx(2000.0)
    assert Floor(work, Speeds(1e15, 1e9)).ms == pytest.approx(1000.0)
    found = Floor(work, Speeds(1e12, 1e12)).as_dict(4000.0)
    assert found["fraction_of_floor"] == pytest.approx(0.5)
    assert found["tflops"] == pytest.approx(0.5)


def test_speeds_are_measured_here() -> None:
    speeds = speeds_of(torch.device("cpu"))
    assert 1e8 < speeds.flops_per_second < 1e15
    assert 1e7 < speeds.bytes_per_second < 1e13
