"""The clients' memories between their rounds, off the device: only the rows of sampled clients go there.

A row is its client's Memory as a small safetensors document: which coordinates are personal as packed bits or, where
they are few, as indices; their values in the run's dtype or in half precision. Rows never change, so a bank with new
rows is a new index over mostly the same ones, and the old bank stays valid.

A bank in memory goes into every checkpoint, row by row, without being copied. A bank in a file is not written again:
the file is the durable store, a checkpoint holds its index (client, offset, size, checksum), and rows that a
checkpoint on disk refers to are not written over (run.py holds their handles). Whole checkpoints would cost the size
of the bank each time, and as much disk for every one that is kept: for 10 000 clients, 14 GB and a minute of an
ordinary disk, to save what a few rounds changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pmsfl.engine.memory_plan import bank_in_file
from pmsfl.engine.rowfile import FiledRow, HeldRow, Parts, Row, RowFile, hold
from pmsfl.engine.world import World
from pmsfl.tensorfile import decode, encode, split_header

INDEX = "bank.index"  # in a checkpoint, int64 [clients, 4]: client, offset, size, checksum
ROW = "client."  # in a checkpoint, uint8 [size]: the row of the client with this number
GUEST = "guest."  # in a checkpoint: guest.CLIENT.NAME, a tensor of the optimiser of a client whose cohort stays


@dataclass(frozen=True)
class Memory:
    """What one client keeps between its rounds: only its personal coordinates, not a whole row."""

    indices: Tensor  # int64, sorted: its personal coordinates
    values: Tensor  # what it trains there (scores or weights)
    participations: int = 0  # since the initial agreement ended
    plain: Tensor | None = None  # its own norms, where norms are local
    optimiser: dict[str, Tensor] = field(default_factory=dict)  # where client_state says that it goes on


class Entry(NamedTuple):
    """What a bank knows of a row without reading it."""

    row: Row
    own: bool  # does the client evaluate with anything of its own?


class Bank(Mapping[int, Memory]):
    """client -> Memory on the world's device, made anew with every look.

    guests: optimisers of the cohort while it stays (`client_state = stay`). They are wanted again in the next round
    and are many times as large as all else, so that they do not leave the device.
    """

    def __init__(
        self,
        world: World,
        file: RowFile | None,
        entries: dict[int, Entry],
        guests: dict[int, dict[str, Tensor]] | None = None,
    ) -> None:
        self._world, self._file, self._entries, self._guests = world, file, entries, guests or {}

    @staticmethod
    def empty(world: World, path: Path | None = None) -> Bank:
        """A bank without rows. path: where its file goes, if it has one; temporary unless told."""
        return Bank(world, RowFile(path) if bank_in_file(world) else None, {})

    # --- a mapping

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __contains__(self, client: object) -> bool:
        return client in self._entries

    def __getitem__(self, client: int) -> Memory:
        data = self._entries[client].row.read()
        memory = _read_memory(memoryview(data), self._world)
        return replace(memory, optimiser=self._guests[client]) if client in self._guests else memory

    def __or__(self, memories: Mapping[int, Memory]) -> Bank:
        """A new bank with these memories in place of older ones; this one keeps what it has."""
        guests: dict[int, dict[str, Tensor]] = {}
        if self._world.recipe.client_state == "stay":
            new = {c: m.optimiser for c, m in memories.items() if m.optimiser}
            guests = self._guests | new if new else {}  # the cohort stays, or leaves as a whole
            memories = {c: replace(m, optimiser={}) for c, m in memories.items()}
        written = self._write(self._parts(client, m) for client, m in memories.items())
        rows = {
            client: Entry(row, len(m.indices) > 0 or (m.plain is not None and self._evaluates_plain(client)))
            for (client, m), row in zip(memories.items(), written, strict=True)
        }
        return Bank(self._world, self._file, self._entries | rows, guests)

    @property
    def personalised(self) -> bool:
        """Does any client evaluate with something of its own? Known without reading a row."""
        return any(e.own for e in self._entries.values())

    @property
    def bytes(self) -> int:
        """All rows together, wherever they are."""
        return sum(e.row.size for e in self._entries.values())

    def _evaluates_plain(self, client: int) -> bool:
        """Are the plain parameters that it keeps part of its model?"""
        return self._world.plain_view(self._world.depths[client]).evaluates_own

    def _own(self, client: int, data: memoryview) -> bool:
        header, _ = split_header(data)
        return ("plain" in header and self._evaluates_plain(client)) or header["values"]["shape"] != [0]

    def _parts(self, client: int, memory: Memory) -> Parts:
        w = self._world
        return _write_memory(memory, w.masked_size(w.depths[client]), w.recipe.bank_dtype == "fp16")

    def _write(self, rows: Iterable[Parts]) -> list[Row]:
        return hold(rows) if self._file is None else self._file.write(rows)

    # --- checkpoints

    @property
    def is_durable(self) -> bool:
        """Do the rows themselves outlive the process, so that a checkpoint need only say where they are?"""
        return self._file is not None and self._file.path is not None

    def sync(self) -> None:
        """What a checkpoint will refer to is on the disk."""
        if self._file is not None:
            self._file.sync()

    def to_tensors(self, whole: bool = False) -> dict[str, Tensor]:
        """For a checkpoint: an index, or, where the rows do not outlive the process, the rows themselves.

        whole: the rows in any case, for a process that cannot look into the file.
        """
        guests = {f"{GUEST}{c}.{k}": t for c, tensors in self._guests.items() for k, t in tensors.items()}
        if whole or not self.is_durable:
            return guests | {f"{ROW}{c}": _as_tensor(e.row) for c, e in self._entries.items()}
        rows = [(c, e.row) for c, e in self._entries.items()]
        index = [(c, r.offset, r.size, r.checksum) for c, r in rows if isinstance(r, FiledRow)]
        return guests | {INDEX: torch.tensor(index, dtype=torch.int64).reshape(-1, 4)}

    def restored(self, tensors: Mapping[str, Tensor]) -> Bank:
        """The bank that `to_tensors` described, its rows where this one has its own. ValueError where rows are bad."""
        guests: dict[int, dict[str, Tensor]] = {}
        for name, t in tensors.items():
            if name.startswith(GUEST):
                client, _, key = name.removeprefix(GUEST).partition(".")
                guests.setdefault(int(client), {})[key] = t.to(self._world.device)
        if INDEX in tensors:
            rows: dict[int, Row] = dict(self.claims(tensors))
            entries = {c: Entry(r, self._own(c, memoryview(r.read()))) for c, r in rows.items()}
            return Bank(self._world, self._file, entries, guests)
        found = {int(n.removeprefix(ROW)): t.numpy().data for n, t in tensors.items() if n.startswith(ROW)}
        written = self._write([data] for data in found.values())
        entries = {c: Entry(row, self._own(c, data)) for (c, data), row in zip(found.items(), written, strict=True)}
        return Bank(self._world, self._file, entries, guests)

    def claims(self, tensors: Mapping[str, Tensor]) -> dict[int, FiledRow]:
        """Handles of the rows in the file that a checkpoint refers to: nobody writes over them while these live."""
        if INDEX not in tensors:
            return {}
        if self._file is None or self._file.path is None:
            raise ValueError("its clients' rows are in a bank file that this run does not have")
        return {c: self._file.claim(*where) for c, *where in tensors[INDEX].tolist()}


# --- a row's bytes


def pack_memory(memory: Memory, world: World, depth: int) -> bytes:
    """A memory as the bank keeps it, for another process."""
    return b"".join(_write_memory(memory, world.masked_size(depth), world.recipe.bank_dtype == "fp16"))


def unpack_memory(data: bytes, world: World) -> Memory:
    """The inverse, on the world's device."""
    return _read_memory(memoryview(data), world)


def _write_memory(m: Memory, size: int, half: bool) -> Parts:
    """size: how many coordinates the client has, personal or not."""
    few = 32 * len(m.indices) < size  # four bytes each, or one bit for every coordinate
    tensors = {"indices": m.indices.to(torch.int32)} if few else {"bits": pack_bits(m.indices, size)}
    tensors["values"] = m.values.half() if half else m.values
    if m.plain is not None:
        tensors["plain"] = m.plain
    tensors |= {f"optimiser.{k}": v for k, v in m.optimiser.items()}
    return encode(tensors, {"participations": str(m.participations)}, checksum=False)


def _read_memory(data: memoryview, world: World) -> Memory:
    raw, metadata = decode(data)
    t = {name: value.to(world.device) for name, value in raw.items()}
    values = t["values"].to(world.dtype)
    return Memory(
        t["indices"].long() if "indices" in t else unpack_bits(t["bits"], len(values)),
        values,
        int(metadata["participations"]),
        t.get("plain"),
        {n.removeprefix("optimiser."): v for n, v in t.items() if n.startswith("optimiser.")},
    )


def _as_tensor(row: Row) -> Tensor:
    """A row's bytes, uint8 [size]; one in memory is not copied, and not to be written to."""
    return torch.frombuffer(row.data if isinstance(row, HeldRow) else row.read(), dtype=torch.uint8)


# Eight flags of a byte each are one integer. A product brings them together in its highest byte; and a byte that is
# repeated eight times keeps in each the bit of that place. (Shifting and adding flag by flag takes ten times as long.)
_GATHER = 0x0102040810204080
_REPEAT = 0x0101010101010101
_PLACES = 0x8040201008040201 - (1 << 64)  # as a signed integer


def pack_bits(indices: Tensor, size: int) -> Tensor:
    """Which of `size` coordinates are among the indices: uint8 [⌈size / 8⌉], the lowest bit first. Packed where the
    indices are, so that an eighth of a byte per coordinate leaves the device."""
    flags = torch.zeros(-(-size // 8) * 8, dtype=torch.uint8, device=indices.device).index_fill_(0, indices, 1)
    return ((flags.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)


def unpack_bits(bits: Tensor, count: int) -> Tensor:
    """The inverse, int64 [count]. The count is known, so the host need not wait for the device to tell it."""
    flags = ((bits.long() * _REPEAT) & _PLACES).view(torch.uint8)
    if flags.is_cuda:
        return torch.nonzero_static(flags, size=count).squeeze(1)
    return torch.from_numpy(np.flatnonzero(flags.numpy()))  # torch's own takes ten times as long on a CPU
