"""`pmsfl bench wire`: how many bits each codec takes on a trained run's own messages, and how fast it is.

One more round is played from the run's newest checkpoint; its uploads, its θ, and the smashed data and gradients of
its last step are what is measured. MB/s count four bytes per parameter or value, whatever travels. Ratios to fp32
include headers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmsfl.engine.client import Finished
from pmsfl.engine.cohort import CohortExecutor
from pmsfl.engine.state import State
from pmsfl.engine.world import CODECS, THETA_CODECS, World, pick_device
from pmsfl.errors import PmsflError
from pmsfl.masks.bernoulli import entropy_bits
from pmsfl.recipe import Recipe
from pmsfl.run import Run
from pmsfl.wire.codecs import Codec
from pmsfl.wire.coded_masks import cross_entropy_bits, decode_bits, encode_bits
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.masks import decode_indices, encode_indices, pack_bits, unpack_bits
from pmsfl.wire.messages import header_bytes
from pmsfl.wire.tensors import decode_tensor, encode_tensor
from pmsfl.wire.units import decode_unit, encode_unit

ROUNDS = 6  # of the demo, where no run is given: past the agreement, so that personal indices travel
FP32_BYTES = 4


@dataclass(frozen=True)
class Sample:
    """What one round sends, from one depth."""

    theta: Tensor  # [P] as the clients received it
    done: Finished
    smashed: Tensor  # [B, ...] of one client
    gradient: Tensor  # [B, ...]


class Tapped(CohortExecutor):
    """Keeps what went over the cut in the last step, as it was before any codec."""

    def step(self, play: Any, active: dict[int, int]) -> None:
        self.seen: list[Tensor] = []
        super().step(play, active)

    def _over_wire(self, t: Tensor, codec: Codec) -> Tensor:
        self.seen.append(t.detach())
        return super()._over_wire(t, codec)


def measure_wire(path: Path | None, device: str = "auto", repeats: int = 5) -> dict[str, Any]:
    """Masks, θ, personal indices and tensors at the cut, each in every codec."""
    if repeats < 1:
        raise PmsflError(f"repeats = {repeats}: take at least 1")
    world, state, source = _trained_run(path, device) if path is not None else _trained_demo(device)
    if world.method.uploads != "bits":
        raise PmsflError(f"method = {world.recipe.method!r} uploads no mask bits: take a run of pm-sfl")
    sample = take_sample(world, state)
    r = world.recipe
    return {
        "bench": "wire",
        "source": source,
        "recipe": r.name,
        "method": r.method,
        "model": r.model,
        "data": world.federation.name,
        "device": world.device.type,
        "round": state.round,
        "repeats": repeats,
        "clients": len(sample.done.values),
        "parameters": len(sample.theta),
        "mask": measure_masks(sample, repeats),
        "indices": measure_indices(sample.done, repeats) | _in_the_run(path),
        "theta": {name: _theta(sample.theta, codec, repeats) for name, codec in THETA_CODECS.items()},
        "tensors": {name: _tensor(sample.smashed, codec, repeats) for name, codec in CODECS.items()},
        "gradients": {name: _tensor(sample.gradient, codec, repeats) for name, codec in CODECS.items()},
    }


def _trained_run(path: Path, device: str) -> tuple[World, State, str]:
    run = Run.open(path, device)
    recipe = run.recipe.replace(capture="off")  # tensors are looked at on their way
    run._world = World(recipe, pick_device(device))
    return run.world, run.state(), str(path)


def _trained_demo(device: str) -> tuple[World, State, str]:
    world = World(Recipe.load("demo", rounds=ROUNDS + 1, capture="off", agreement=0.0), pick_device(device))
    executor, state = CohortExecutor(world, Ledger()), State.initial(world)
    for _ in range(ROUNDS):
        state, _ = executor.round(state)
    return world, state, f"the demo after {ROUNDS} rounds, trained for this; give a RUN for a longer one"


def take_sample(world: World, state: State) -> Sample:
    """Play the round after a state, and keep what its clients of the deepest cut send."""
    executor = Tapped(world, Ledger())
    play = executor.begin(state)
    for active in play.plan.active:
        executor.step(play, active)
    depth = max(play.groups)
    done = play.groups[depth].finish()
    return Sample(play.starts[depth].shared, done, executor.seen[0][0], executor.seen[-1][0])


def measure_masks(sample: Sample, repeats: int) -> dict[str, Any]:
    """Coded and packed bits of all clients, beside what θ says about them. Headers, 36 bytes a client, stand apart:
    they are all that matters for a tiny model and nothing for a large one. The ratio has them in."""
    done, theta = sample.done, sample.theta.cpu()
    shared = [row.cpu() for row in done.contributes]
    known = [theta[s] for s in shared]
    bits = [values.cpu()[s] > 0.5 for values, s in zip(done.values, shared, strict=True)]
    count = sum(len(b) for b in bits)
    if not count:
        raise PmsflError("every coordinate of these clients is personal: no mask bits are left to send")
    coded = [encode_bits(b, t) for b, t in zip(bits, known, strict=True)]
    packed = [pack_bits(b) for b in bits]
    size = 8 * sum(len(p) for p in coded) / count
    header = 8 * header_bytes(1) * len(bits) / count
    least = sum(cross_entropy_bits(b, t) for b, t in zip(bits, known, strict=True)) / count
    return {
        "bits_per_parameter": size,
        "cross_entropy": least,
        "over_cross_entropy": size / least,
        "header_bits_per_parameter": header,
        "entropy": float(torch.cat([entropy_bits(t.double()) for t in known]).mean()),
        "ratio": 8 * FP32_BYTES / (size + header),
        "parameters": count,
        "packed_bits_per_parameter": 8 * sum(len(p) for p in packed) / count,
        "mb_s_encode": _speed(lambda: [encode_bits(b, t) for b, t in zip(bits, known, strict=True)], count, repeats),
        "mb_s_decode": _speed(lambda: [decode_bits(p, t) for p, t in zip(coded, known, strict=True)], count, repeats),
        "mb_s_encode_packed": _speed(lambda: [pack_bits(b) for b in bits], count, repeats),
        "mb_s_decode_packed": _speed(
            lambda: [unpack_bits(p, len(b)) for p, b in zip(packed, bits, strict=True)], count, repeats
        ),
    }


def measure_indices(done: Finished, repeats: int) -> dict[str, Any]:
    """New personal coordinates of all clients in this round; only their number where there are none."""
    pairs = []
    for fresh, contributes in zip(done.fresh.cpu(), done.contributes.cpu(), strict=True):
        space = fresh | contributes
        pairs.append((fresh[space].nonzero().squeeze(1), int(space.sum())))
    number, space_size = sum(len(i) for i, _ in pairs), sum(n for _, n in pairs)
    if not number:
        return {"indices": 0}
    payloads = [encode_indices(i, n) for i, n in pairs]
    mask_bytes = sum(header_bytes(1) + (int(c.sum()) + 7) // 8 for c in done.contributes)
    size = sum(header_bytes(1) + len(p) for p in payloads)
    entropy = sum(n * float(entropy_bits(torch.tensor(len(i) / max(n, 1), dtype=torch.float64))) for i, n in pairs)
    return {
        "indices": number,
        "bits_per_index": 8 * size / number,
        "entropy_per_index": entropy / number,
        "of_packed_mask": size / mask_bytes,
        "mb_s_encode": _speed(lambda: [encode_indices(i, n) for i, n in pairs], space_size, repeats),
        "mb_s_decode": _speed(
            lambda: [decode_indices(p, n) for p, (_, n) in zip(payloads, pairs, strict=True)], space_size, repeats
        ),
    }


def _in_the_run(path: Path | None) -> dict[str, float]:
    """What personal indices took of the mask's bytes over all rounds of a run, and in its last quarter."""
    lines = [] if path is None else Run.open(path).metrics
    parts = {"of_mask_in_run": lines, "of_mask_in_last_quarter": lines[-(len(lines) // 4) :]}
    out = {}
    for name, part in parts.items():
        masks = sum(line["bytes"].get("mask.up", 0) for line in part)
        if masks:
            out[name] = sum(line["bytes"].get("personal.up", 0) for line in part) / masks
    return out


def _theta(theta: Tensor, codec: Codec, repeats: int) -> dict[str, float]:
    theta, n = theta.cpu(), len(theta)
    payload = encode_unit(theta, codec)
    received = decode_unit(payload, n, codec, theta.dtype)
    size = header_bytes(1) + len(payload)
    return {
        "bits_per_parameter": 8 * size / n,
        "ratio": FP32_BYTES * n / size,
        "max_error": float((received - theta).abs().max()),
        "mb_s_encode": _speed(lambda: encode_unit(theta, codec), n, repeats),
        "mb_s_decode": _speed(lambda: decode_unit(payload, n, codec, theta.dtype), n, repeats),
    }


def _tensor(tensor: Tensor, codec: Codec, repeats: int) -> dict[str, float]:
    t, shape = tensor.cpu().float(), tuple(tensor.shape)
    payload = encode_tensor(t, codec)
    received = decode_tensor(payload, shape, codec, torch.float32)
    size = header_bytes(len(shape)) + len(payload)
    error = received - t
    return {
        "bits_per_value": 8 * size / t.numel(),
        "ratio": (header_bytes(len(shape)) + FP32_BYTES * t.numel()) / size,
        "max_error": float(error.abs().max()),
        "relative_error": float(error.norm() / t.norm().clamp_min(1e-30)),
        "mb_s_encode": _speed(lambda: encode_tensor(t, codec), t.numel(), repeats),
        "mb_s_decode": _speed(lambda: decode_tensor(payload, shape, codec), t.numel(), repeats),
    }


def _speed(work: Callable[[], object], values: int, repeats: int) -> float:
    """MB/s of float32 values, the median of some repeats after one to warm up."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return FP32_BYTES * values / max(float(np.median(seconds)), 1e-9) / 1e6
