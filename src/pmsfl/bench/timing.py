"""Wall-clock times on any device: warm-up apart, candidates taking turns, medians with their spread.

Whatever runs is timed from a quiet device to a quiet device, launches included: a loop that keeps a GPU waiting has to
pay for it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from pmsfl.engine.memory_plan import peak_process_bytes

Block = Callable[[], float]  # plays one block and returns its seconds


@dataclass(frozen=True)
class Times:
    """Milliseconds per unit of work (a step, a round), one entry per block; seconds that the warm-up took."""

    ms: tuple[float, ...]
    seconds_warmup: float

    def quantile(self, q: float) -> float:
        """The q-quantile of the blocks, in ms."""
        return float(np.quantile(self.ms, q))

    @property
    def median(self) -> float:
        """The median of the blocks, in ms."""
        return self.quantile(0.5)

    def as_dict(self, name: str) -> dict[str, float]:
        """`name`, `name_p10` and `name_p90`, in ms."""
        return {name: self.median, f"{name}_p10": self.quantile(0.1), f"{name}_p90": self.quantile(0.9)}


def ratio(slow: Times, fast: Times, name: str = "ratio") -> dict[str, float]:
    """How many times `fast` fits in `slow`: of the medians, and the spread over blocks that were neighbours in time."""
    pairs = [a / b for a, b in zip(slow.ms, fast.ms, strict=True)]
    spread = {f"{name}_p10": float(np.quantile(pairs, 0.1)), f"{name}_p90": float(np.quantile(pairs, 0.9))}
    return {name: slow.median / fast.median} | spread


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of a piece of work, from a quiet device to a quiet device."""
    settle(device)
    began = time.perf_counter()
    work()
    settle(device)
    return time.perf_counter() - began


def settle(device: torch.device) -> None:
    """Wait for what is still under way on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def take_turns(blocks: Mapping[str, Block], repeats: int, units: int) -> dict[str, Times]:
    """Every candidate once to warm up, then `repeats` blocks of each, one after the other in turns, so that a machine
    that slows down or speeds up does so for all. units: how many steps or rounds a block is."""
    warmup = {}
    for name, block in blocks.items():
        began = time.perf_counter()  # the whole call: what is prepared outside the block is compiled there, too
        block()
        warmup[name] = time.perf_counter() - began
    gc.collect()
    ms: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(repeats):
        for name, block in blocks.items():
            ms[name].append(block() * 1000.0 / units)
    return {name: Times(tuple(ms[name]), warmup[name]) for name in blocks}


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new peak, on a GPU; a process on the CPU has one for its whole life."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Bytes at the peak: of the GPU since the last reset, else of the whole process; None where nobody counts."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_process_bytes() or None
