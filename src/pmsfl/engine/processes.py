"""The processes of a run: one, or as many as torchrun started. Every collective is here.

With one process every method gives back what it got. All processes must call the same ones in the same order.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pmsfl.errors import PmsflError

CPU = torch.device("cpu")
PATIENCE = timedelta(minutes=15)  # with a process that no longer answers; the first may be writing a large checkpoint


@dataclass(frozen=True)
class Processes:
    """This process among those of a run. device: where collectives want their tensors."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    def deal(self, places: Sequence[int], turn: int) -> list[int]:
        """This process's share. Of clients sorted by their steps, those at work stay the first ones. turn: who begins;
        where there are many small groups, each should begin with another process."""
        return list(places[(self.rank - turn) % self.size :: self.size])

    def total(self, t: Tensor) -> Tensor:
        """The sum over processes; bool: whether any has it."""
        if self.size == 1:
            return t
        out = (t.to(torch.uint8) if t.dtype == torch.bool else t).to(self.device, copy=True).contiguous()
        dist.all_reduce(out)
        return out.to(t.device, t.dtype)

    def gather(self, t: Tensor) -> Tensor:
        """A tensor of every process, of one shape: [processes, ...]."""
        if self.size == 1:
            return t.unsqueeze(0)
        mine = t.to(self.device).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(parts, mine)
        return torch.stack(parts).to(t.device)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Some bytes of every process, each as many as it likes."""
        sizes = self.gather(torch.tensor([len(data)])).flatten().tolist()
        padded = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else padded[:0]
        return [part[:n].numpy().tobytes() for part, n in zip(self.gather(padded), sizes, strict=True)]

    def tell(self, what: Any = None) -> Any:
        """Something small of the first process, for all."""
        if self.size == 1:
            return what
        held = [what]
        dist.broadcast_object_list(held, device=self.device)
        return held[0]

    def tell_tensors(self, tensors: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Named tensors of the first process, for all, on the host: one after another, however many there are."""
        own = tensors or {}
        out = {}
        for name, shape, dtype in self.tell([(n, t.shape, t.dtype) for n, t in own.items()]):
            t = own[name].to(self.device).contiguous() if own else torch.empty(shape, dtype=dtype, device=self.device)
            dist.broadcast(t, 0)
            out[name] = t.cpu()
        return out


def launched() -> int:
    """How many processes the launcher says there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leads() -> bool:
    """Is this the process that writes and speaks?"""
    return launched() == 1 or int(os.environ.get("RANK", "0")) == 0


def own_device(device: torch.device) -> torch.device:
    """With several processes on a machine, each has a GPU of its own."""
    if launched() == 1 or device.type != "cuda":
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise PmsflError(
            f"{torch.cuda.device_count()} GPUs are too few for the processes on this machine: each needs its own; "
            "start fewer with --nproc-per-node, or use --device cpu"
        )
    return torch.device("cuda", local)


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Ctrl-C reaches a process twice, from the terminal and from torchrun: the second must not stop it saving."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _lost(error: RuntimeError) -> bool:
    """Is it that another process went away, or no longer answers? Gloo tells it in words alone."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in text or "connection" in text


@contextmanager
def together(device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun started, connected; just this one where it did not. A group that is there already
    is used and left as it is."""
    if launched() == 1:
        yield Processes()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    found = dist.is_initialized()
    if not found:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        with _interrupted_once():
            yield Processes(dist.get_rank(), dist.get_world_size(), device)
    except RuntimeError as e:
        if not _lost(e):
            raise
        line = str(e).strip().splitlines()[0][:200]
        raise PmsflError(f"process {dist.get_rank()} lost another one, whose own message says why: {line}") from e
    finally:
        if not found:
            dist.destroy_process_group()
