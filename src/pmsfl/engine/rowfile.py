"""Where the bank's rows lie: in memory, or in one file. A row is written once, never changed, and may be read for
as long as somebody holds its handle.

In the file, space belongs to the handles that are alive; a new row goes into a gap between them or to the end. So
there is no list of free space to keep right: a state that is given up gives its rows up with it, and whoever wants
older rows to stay (a checkpoint on disk) holds on to their handles.

The file is read and written, not mapped. The page cache serves both ways alike, but a full disk is then an error in
the round that met it, where a mapping would kill the process; and what is read does not count as the process's own.
"""

from __future__ import annotations

import os
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from pmsfl.tensorfile import TensorFileError

SLOT = 512  # rows start and end at multiples of it: a client's next row fits where its last one was
Parts = Sequence[memoryview]  # a row's bytes, in pieces that need not be copied together


class Row(Protocol):
    """A handle of a row."""

    @property
    def size(self) -> int:
        """Its bytes."""
        ...

    def read(self) -> bytearray:
        """A copy of them, the caller's own."""
        ...


class HeldRow:
    """A row in memory."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self) -> bytearray:
        return bytearray(self.data)


class FiledRow:
    """A row in a file."""

    __slots__ = ("__weakref__", "checksum", "file", "offset", "size")

    def __init__(self, file: RowFile, offset: int, size: int, checksum: int) -> None:
        self.file, self.offset, self.size, self.checksum = file, offset, size, checksum

    @property
    def end(self) -> int:
        """Where the next row may start."""
        return self.offset + -(-self.size // SLOT) * SLOT

    def read(self) -> bytearray:
        """TensorFileError where the file no longer holds what was written."""
        return self.file.read(self)


def hold(rows: Iterable[Parts]) -> list[Row]:
    """Rows in memory. One that comes in a single piece is taken over, not copied."""
    return [HeldRow(parts[0] if len(parts) == 1 else memoryview(bytearray().join(parts))) for parts in rows]


class RowFile:
    """Rows in the file at `path`, which outlives the process; without a path in a temporary one, which does not."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._live: weakref.WeakValueDictionary[int, FiledRow] = weakref.WeakValueDictionary()
        self._file: BinaryIO | None = None
        self._writable = False

    def write(self, rows: Iterable[Parts]) -> list[Row]:
        """Write rows into free space. None of them counts before the caller takes its handle."""
        file = self._open(write=True)
        gaps = self._gaps()
        start, end = next(gaps)
        out: list[Row] = []
        for parts in rows:
            size, checksum = sum(len(p) for p in parts), 0
            for part in parts:
                checksum = zlib.crc32(part, checksum)
            row = FiledRow(self, start, size, checksum)
            while end is not None and row.end > end:
                start, end = next(gaps)
                row.offset = start
            self._live[start] = row
            start = row.end
            file.seek(row.offset)
            for part in parts:
                while part:
                    part = part[file.write(part) :]
            out.append(row)
        return out

    def claim(self, offset: int, size: int, checksum: int) -> FiledRow:
        """The handle of a row that was written earlier, maybe by another process."""
        found = self._live.get(offset)
        if found is None or (found.size, found.checksum) != (size, checksum):
            found = self._live[offset] = FiledRow(self, offset, size, checksum)
        return found

    def read(self, row: FiledRow) -> bytearray:
        """A row's bytes; TensorFileError where they are not there, or not what was written."""
        name = self.path or "the temporary bank"
        data = bytearray(row.size)
        rest = memoryview(data)
        try:
            file = self._open(write=False)
            file.seek(row.offset)
            while rest and (count := file.readinto(rest)):  # type: ignore[attr-defined]
                rest = rest[count:]
        except OSError as e:
            raise TensorFileError(f"cannot read {name}: {e.strerror or e}") from None
        if rest or zlib.crc32(data) != row.checksum:
            raise TensorFileError(f"{name} has changed at byte {row.offset}")
        return data

    def sync(self) -> None:
        """Everything written so far is on the disk."""
        if self._file is not None and self._writable:
            os.fsync(self._file.fileno())

    def _gaps(self) -> Iterator[tuple[int, int | None]]:
        """Free space as (start, end), in order; the last has no end."""
        at = 0
        for row in sorted(self._live.values(), key=lambda r: r.offset):
            if row.offset > at:
                yield at, row.offset
            at = max(at, row.end)
        yield at, None

    def _open(self, write: bool) -> BinaryIO:
        """The file, unbuffered; opened for writing only when something is written, since a run may be read-only."""
        if self._file is not None and (self._writable or not write):
            return self._file
        if self._file is not None:
            self._file.close()
        if self.path is None:
            opened: BinaryIO = tempfile.TemporaryFile(prefix="pmsfl-bank-", buffering=0)  # noqa: SIM115
        else:
            if write:
                self.path.touch()
            opened = self.path.open("r+b" if write else "rb", buffering=0)
        self._file, self._writable = opened, write or self.path is None
        weakref.finalize(self, opened.close)
        return opened
