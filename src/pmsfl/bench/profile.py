"""Where a step's time goes: torch's profiler, kernels (or CPU operations) sorted into kinds by their names.

Names are all there is to go by: a kernel that fuses several kinds counts as the first of them in KINDS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from pmsfl.bench.timing import seconds_of

IDLE = "idle, launches, Python"
OTHER = "other"
TOP = 15  # kernels that are listed by name

# First match wins. Integer arithmetic on whole tensors is the counter-based generator: nothing else has any.
KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("keyed masks", r"bitwise|[lr]shift|philox|bernoulli|keyed|functor(_add)?<(long|int)|distribution"),
        ("optimiser", r"adam|sgd|multi_tensor|_foreach|lerp|addcmul"),
        ("convolution backward", r"dgrad|wgrad|bgrad|conv\w*backward|backward_(data|weight|filter)"),
        ("convolution forward", r"fprop|winograd"),
        ("copies and gather", r"memcpy|memset|copy|gather|scatter|index|cat|pad|fill|zero|nhwc.*nchw|nchw.*nhwc"),
        (
            "norm and pointwise",
            r"norm|bn_|welford|relu|threshold|elementwise|reduce|softmax|nll|pool|triton_(poi|red|per)",
        ),
        ("convolution forward", r"conv|gemm|xmma|cutlass|nvjet|addmm|\bb?mm\b|triton_(tem|mm)"),
        ("norm and pointwise", r"aten::(add|sub|mul|div|sum|mean|sqrt|rsqrt|sigmoid|pow|clamp|where|lt|neg|exp|var)"),
    )
)


@dataclass(frozen=True)
class Share:
    """A kernel, or a kind of them: milliseconds and calls per step."""

    name: str
    ms: float
    calls: float


@dataclass(frozen=True)
class Profile:
    """A step taken apart."""

    ms_step: float  # under the profiler, which costs time of its own
    kinds: tuple[Share, ...]  # largest first
    kernels: tuple[Share, ...]  # the largest TOP

    def as_dict(self) -> dict[str, Any]:
        """In plain types."""
        return {
            "ms_step_profiled": self.ms_step,
            "kinds": {k.name: {"ms": k.ms, "calls": k.calls} for k in self.kinds},
            "kernels": [{"name": k.name, "ms": k.ms, "calls": k.calls} for k in self.kernels],
        }


def kind_of(name: str) -> str:
    """The kind of a kernel or CPU operation."""
    return next((kind for kind, pattern in KINDS if pattern.search(name)), OTHER)


def profile_steps(play: Callable[[], object], steps: int, device: torch.device) -> Profile:
    """Profile one call of `play`, which plays that many steps."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch_profile(activities=activities) as seen:
        seconds = seconds_of(play, device)
    wanted = "CUDA" if on_gpu else "CPU"
    found = []
    for event in seen.key_averages():
        annotation = getattr(event, "is_user_annotation", False)  # spans kernels that are listed themselves
        if event.device_type.name != wanted or annotation or event.key.startswith(("Optimizer.", "ProfilerStep")):
            continue
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if spent > 0:
            found.append(Share(event.key, spent / 1000.0 / steps, event.count / steps))
    return summarise(found, seconds * 1000.0 / steps)


def summarise(found: list[Share], ms_step: float) -> Profile:
    """Kernels sorted into kinds; what is left of the step is idle."""
    kinds: dict[str, Share] = {}
    for share in found:
        kind = kind_of(share.name)
        so_far = kinds.get(kind, Share(kind, 0.0, 0.0))
        kinds[kind] = Share(kind, so_far.ms + share.ms, so_far.calls + share.calls)
    idle = Share(IDLE, max(ms_step - sum(s.ms for s in found), 0.0), 0.0)
    by_time = sorted(found, key=lambda s: -s.ms)
    return Profile(ms_step, tuple(sorted((*kinds.values(), idle), key=lambda s: -s.ms)), tuple(by_time[:TOP]))
