"""What a step cannot do without: operations and bytes, over the speeds this very machine reaches.

Operations are 3 × the forward pass (2 per multiply-add; a backward pass is two forward passes), the usual count, which
charges the first layer a gradient it never needs.

Bytes are those of a perfectly fused step. An activation is the output of a convolution or linear layer (whatever stands
between two of them could be fused), or a sample; each is written once and read once forwards, and once each backwards,
in bf16 on a GPU and in the run's own arithmetic elsewhere. Scores or weights and their optimiser state are read once
and written once; frozen weights, which all clients share, are read once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pmsfl.bench.timing import seconds_of
from pmsfl.engine.world import World
from pmsfl.models.split import MASKABLE, SplitModel

TRIALS, CALLS = 8, 4  # the best of so many trials of so many calls each


@dataclass(frozen=True)
class Work:
    """One step of the whole cohort."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Speeds:
    """What the device reaches on the spot."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True)
class Floor:
    """The time no step can beat on this device."""

    work: Work
    speeds: Speeds

    @property
    def compute_ms(self) -> float:
        """All operations at the matrix product's speed."""
        return self.work.flops / self.speeds.flops_per_second * 1000.0

    @property
    def memory_ms(self) -> float:
        """All bytes at a copy's speed."""
        return self.work.bytes / self.speeds.bytes_per_second * 1000.0

    @property
    def ms(self) -> float:
        """The larger of both."""
        return max(self.compute_ms, self.memory_ms)

    def as_dict(self, ms_step: float) -> dict[str, float]:
        """The floor, and how near a step of so many milliseconds comes to it (1: it lies on it)."""
        return {
            "tflop": self.work.flops / 1e12,
            "tflops": self.work.flops / ms_step / 1e9,
            "gigabytes": self.work.bytes / 1e9,
            "peak_tflops": self.speeds.flops_per_second / 1e12,
            "peak_gigabytes_per_second": self.speeds.bytes_per_second / 1e9,
            "floor_ms_compute": self.compute_ms,
            "floor_ms_memory": self.memory_ms,
            "floor_ms": self.ms,
            "fraction_of_floor": self.ms / ms_step,
        }


def forward_cost(model: SplitModel, input_shape: tuple[int, ...]) -> tuple[float, float]:
    """(FLOPs, activation elements) of one sample's forward pass through bottom and top. Nothing is computed."""
    rows = 2  # batch norm wants more than one
    trial = copy.deepcopy(model).to("meta").train()
    elements = [rows * math.prod(input_shape)]
    layers = [m for m in trial.modules() if isinstance(m, MASKABLE)]

    def note(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        elements.append(out.numel())

    for layer in layers:
        layer.register_forward_hook(note)
    parameter = next(trial.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        trial(torch.zeros(rows, *input_shape, dtype=parameter.dtype, device="meta"))
    return counter.get_total_flops() / rows, sum(elements) / rows


def work_of(world: World) -> Work:
    """The work of a step with the whole cohort, cut at one depth."""
    r, k = world.recipe, len(world.plan(0).clients)
    flops, elements = forward_cost(world.model, world.input_shape)
    own = torch.empty((), dtype=world.dtype).element_size()
    activation = 2 if world.device.type == "cuda" and own == 4 else own
    p, q = world.masked_size(world.cut), world.plain_size(world.cut)
    state = {"sgd": 2, "adam": 3}  # the parameter itself, and what its optimiser keeps of it
    client = p * state["adam"] + q * state[r.client_optimiser]
    server = (world.layout.masked_size - p + world.layout.plain_size - q) * state[r.server_optimiser]
    moved = 4 * elements * activation * k * r.batch + (2 * (k * client + server) + p) * own
    return Work(round(3 * flops * k * r.batch), round(moved))


def speeds_of(device: torch.device) -> Speeds:
    """A large matrix product (bf16 on a GPU, fp32 elsewhere) and a large copy: the best of some trials."""
    on_gpu = device.type == "cuda"
    n = 8192 if on_gpu else 1024
    a = torch.randn(n, n, device=device).to(torch.bfloat16 if on_gpu else torch.float32)
    out = torch.empty_like(a)
    product = _best_seconds(lambda: torch.mm(a, a, out=out), device)
    source = torch.zeros((1 << 30) if on_gpu else (1 << 27), dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copied = _best_seconds(lambda: target.copy_(source), device)
    return Speeds(2.0 * n**3 / product, 2.0 * source.numel() / copied)


def _best_seconds(call: Callable[[], object], device: torch.device) -> float:
    def calls() -> None:
        for _ in range(CALLS):
            call()

    return min(seconds_of(calls, device) for _ in range(TRIALS)) / CALLS


def floor_of(world: World) -> Floor:
    """The floor of a step, measured here and now."""
    return Floor(work_of(world), speeds_of(world.device))
