"""Rows in a file: what is alive stays, what is given up makes room."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest

from pmsfl.engine.rowfile import SLOT, FiledRow, Row, RowFile, hold
from pmsfl.tensorfile import TensorFileError


def parts(fill: int, size: int) -> list[memoryview]:
    data = bytes([fill]) * size
    return [memoryview(data[: size // 3]), memoryview(data[size // 3 :])]


def offsets(rows: list[Row]) -> list[int]:
    return [r.offset for r in rows if isinstance(r, FiledRow)]


@pytest.mark.parametrize("named", [True, False])
def test_rows_come_back_as_they_went(named: bool, tmp_path: Path) -> None:
    file = RowFile(tmp_path / "bank.bin" if named else None)
    rows = file.write([parts(1, 700), parts(2, 3), parts(3, SLOT)])
    assert [bytes(r.read()) for r in rows] == [b"\1" * 700, b"\2" * 3, b"\3" * SLOT]
    assert [r.size for r in rows] == [700, 3, SLOT]
    assert offsets(rows) == [0, 2 * SLOT, 3 * SLOT]


def test_a_row_in_memory_is_the_reader_s_own_copy() -> None:
    (row,) = hold([parts(1, 10)])
    row.read()[0] = 9
    assert bytes(row.read()) == b"\1" * 10
    assert row.size == 10


def test_space_of_rows_nobody_holds_is_used_again_and_no_other(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "bank.bin")
    rows = file.write([parts(i, 600) for i in range(4)])
    kept = [rows[0], rows[2]]
    del rows
    new = file.write([parts(8, 1000), parts(9, 1000), parts(10, 1000)])
    assert offsets(new) == [2 * SLOT, 6 * SLOT, 8 * SLOT]
    assert [bytes(r.read())[:1] for r in (*kept, *new)] == [b"\0", b"\2", b"\10", b"\11", b"\12"]
    assert (tmp_path / "bank.bin").stat().st_size == 8 * SLOT + 1000


def test_a_row_too_large_for_a_gap_goes_elsewhere(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "bank.bin")
    rows = file.write([parts(i, SLOT) for i in range(3)])
    del rows[1]
    large = file.write([parts(7, SLOT + 1), parts(8, 1)])
    assert offsets(large) == [3 * SLOT, 5 * SLOT]
    assert offsets(file.write([parts(9, 1)])) == [SLOT]


def test_a_later_process_claims_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "bank.bin"
    first, second = RowFile(path).write([parts(1, 600), parts(2, 600)])
    assert isinstance(second, FiledRow)
    file = RowFile(path)
    claimed = file.claim(second.offset, second.size, second.checksum)
    assert file.claim(second.offset, second.size, second.checksum) is claimed
    assert offsets(file.write([parts(3, 600), parts(4, 600)])) == [0, 4 * SLOT]
    assert bytes(claimed.read()) == b"\2" * 600
    with pytest.raises(TensorFileError, match=r"bank\.bin has changed at byte 0"):
        first.read()


def test_bytes_that_are_gone_or_changed_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "bank.bin"
    (row,) = RowFile(path).write([parts(1, 600)])
    assert isinstance(row, FiledRow)
    where = (row.offset, row.size, row.checksum)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TensorFileError, match="has changed"):
        RowFile(path).claim(*where).read()
    path.unlink()
    with pytest.raises(TensorFileError, match=r"cannot read .*No such file"):
        RowFile(path).claim(*where).read()


def test_a_full_disk_costs_no_row_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    file = RowFile(tmp_path / "bank.bin")
    (row,) = file.write([parts(1, 600)])
    with monkeypatch.context() as patch:
        patch.setattr(file, "_open", lambda write: Full())
        with pytest.raises(OSError, match="No space left"):
            file.write([parts(2, 600)])
    assert bytes(row.read()) == b"\1" * 600
    assert offsets(file.write([parts(3, 600)])) == [2 * SLOT]
