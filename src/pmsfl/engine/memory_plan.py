"""What a run will hold in memory at its peak, planned before it starts from shapes alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from pmsfl.engine.world import World
from pmsfl.models.inspect import cut_cost
from pmsfl.models.split import SplitModel

LARGEST_IN_MEMORY = 2 << 30  # bytes of a bank that `bank = "auto"` still keeps in memory
ROW_HEADER = 300  # bytes of a row that say what the others are
# Vectors as long as a client's bottom that a step holds at once: what is trained and where it began, θ, two moments,
# the effective weights and their gradient; and while uniforms are drawn, or the optimiser steps, as many again.
CLIENT_VECTORS = 16
SERVER_VECTORS = 8  # likewise of the server's blocks: old and new state, moments, gradient
PASSING = 3  # outputs of the widest layer that a forward pass without gradients holds at once
BACKWARD = 1.5  # saved activations of a step, with the gradients that pass them, over the saved ones alone
ROWS_EVALUATED = 2048  # samples that an evaluation runs at once
LIBRARIES = 150_000_000  # what torch loads and sets aside in its first steps, on the host
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes. On the CPU, what is on the device is in the host's memory too."""

    data: int  # samples, labels, rows
    weights: int  # frozen weights, what was initial, the state
    clients: int  # rows of the sampled clients, with their optimisers
    server: int  # the top being trained, with its optimiser
    activations: int  # of a training step, all sampled clients and the top
    evaluation: int  # of a pass without gradients
    bank: int  # every client's row when it has grown
    bank_in_file: bool
    bank_file: int  # with the rows that older checkpoints still refer to; 0 without a file
    process: int  # the process as it is, before the first round
    process_peak: int  # the most it has been so far
    on_host: bool  # is the device the CPU?
    free: int | None = None  # what the device had left when this was planned; None: it does not say

    @property
    def device(self) -> int:
        """The peak on the device: training and evaluation take turns."""
        return self.data + self.weights + max(self.clients + self.server + self.activations, self.evaluation)

    @property
    def host(self) -> int:
        """The process's peak, which may lie behind it. Data and weights are there already; the rows in a file are
        the page cache's."""
        bank = 0 if self.bank_in_file else self.bank
        passing = self.device - self.data - self.weights if self.on_host else 0
        return max(self.process + LIBRARIES + bank + passing, self.process_peak)

    @property
    def fits(self) -> bool:
        """Is there room on the device for what a run adds to what is there already?"""
        more = self.host - self.process if self.on_host else self.device - self.data - self.weights
        return self.free is None or more <= self.free


def plan_memory(world: World) -> MemoryPlan:
    """The plan of a run in this world."""
    w, r = world, world.recipe
    element = w.dtype.itemsize
    cohort = w.cohort
    deepest = max(w.depths)
    rows = (w.masked_size(deepest) * CLIENT_VECTORS + w.layout.plain_size * 4) * element
    if r.client_state == "stay":
        rows += 2 * optimiser_bytes(w, deepest)  # between rounds, the last round's and the next one's
    top = w.layout.masked_size + w.layout.plain_size - w.masked_size(w.cut) - w.plain_size(w.cut)
    whole = cut_cost(w.model, w.input_shape, w.model.depth, r.batch).activation_bytes
    tensors = [w.x, w.y, *w.train_rows, *w.test_rows]
    in_file = bank_in_file(w)
    return MemoryPlan(
        data=sum(_bytes(t) for t in tensors),
        weights=(w.layout.masked_size + w.layout.plain_size) * 6 * element,
        clients=cohort * rows,
        server=top * SERVER_VECTORS * element,
        activations=int(cohort * whole * BACKWARD),
        evaluation=widest_output(w.model, w.input_shape) * PASSING * ROWS_EVALUATED * element,
        bank=bank_bytes(w),
        bank_in_file=in_file,
        bank_file=_file_bytes(w, cohort) if in_file else 0,
        process=process_bytes(),
        process_peak=peak_process_bytes(),
        on_host=w.device.type == "cpu",
        free=free_bytes(w.device),
    )


def bank_in_file(world: World) -> bool:
    """Do the clients' memories go into a file?"""
    choice = world.recipe.bank
    return choice == "file" or (choice == "auto" and bank_bytes(world) > LARGEST_IN_MEMORY)


def bank_bytes(world: World) -> int:
    """The bank when every client's personal set has grown, or when the run ends before all have taken part."""
    r = world.recipe
    holders = [c for c, size in enumerate(world.sizes) if size]
    each = {d: row_bytes(world, d) for d in set(world.depths)}
    whole = sum(each[world.depths[c]] for c in holders)
    ever = min(len(holders), r.rounds * world.cohort)
    return whole * ever // max(len(holders), 1)


def row_bytes(world: World, depth: int) -> int:
    """A client's row at its largest."""
    r = world.recipe
    element = world.dtype.itemsize
    size = world.masked_size(depth)
    view = world.plain_view(depth)
    personal = int(world.kept_from_start(depth).sum())
    if world.method.personalises:
        personal = max(personal, int(r.personal_ratio * size))
    values = personal * (2 if r.bank_dtype == "fp16" else element)
    out = ROW_HEADER + min(-(-size // 8), 4 * personal) + values + int(view.local.sum()) * element
    return out + (optimiser_bytes(world, depth) if r.client_state == "persistent" else 0)


def optimiser_bytes(world: World, depth: int) -> int:
    """What a client's optimisers keep."""
    plain_moments = 2 if world.recipe.client_optimiser == "adam" else 1
    moments = 2 if world.method.trains == "scores" else plain_moments
    numbers = world.masked_size(depth) * moments + len(world.plain_view(depth).index) * plain_moments
    return numbers * world.dtype.itemsize


def _file_bytes(world: World, cohort: int) -> int:
    """A bank file: every row, and what was rewritten since the oldest checkpoint that is kept."""
    r = world.recipe
    holders = max(sum(size > 0 for size in world.sizes), 1)
    older = min(r.keep_checkpoints * r.checkpoint_every * cohort, r.keep_checkpoints * holders)
    largest = row_bytes(world, max(world.depths))
    return bank_bytes(world) + older * largest


def widest_output(model: SplitModel, input_shape: tuple[int, ...]) -> int:
    """Elements of the largest output that any layer has for one sample."""
    sizes = [1]

    def note(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() // 2)

    parameter = next(model.parameters())
    x = torch.zeros(2, *input_shape, dtype=parameter.dtype, device=parameter.device)
    hooks = [m.register_forward_hook(note) for m in model.modules()]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)


def _bytes(t: Tensor) -> int:
    return t.numel() * t.element_size()


def free_bytes(device: torch.device) -> int | None:
    """What a process may still take of the device's memory without swapping; None where the system does not say."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu" or not MEMINFO.exists():
        return None
    free = _numbers(MEMINFO).get("MemAvailable:")
    return None if free is None else min(free * 1024, _left_in_container())


def _left_in_container() -> int:
    """What a container's own limit leaves; without one, as much as one likes."""
    try:
        limit, used = int((CGROUP / "memory.max").read_text()), _numbers(CGROUP / "memory.stat")["anon"]
    except (OSError, ValueError, KeyError):
        return sys.maxsize
    return max(limit - used, 0)


def _numbers(file: Path) -> dict[str, int]:
    """A file of the system's with a word and a number in every line."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def ran_out(error: BaseException) -> bool:
    """Does this say that memory ran out? Not every part of torch, nor every library below it, has an error for it."""
    words = ("out of memory", "ALLOC_FAILED", "DefaultCPUAllocator")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(w in str(error) for w in words)


def process_bytes() -> int:
    """What this process has in memory now; its peak so far where only that is known, 0 where not even that."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        import resource

        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return peak_process_bytes()


def peak_process_bytes() -> int:
    """The most this process has had in memory; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux counts in `getrusage` what the process was a copy of before it became this one
        high = [line.split() for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        if high:
            return int(high[0][1]) * 1024
    try:
        import resource
    except ImportError:  # not on this system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
