"""The ledger counts every byte once, survives a restart, and refuses counts that cannot be."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.wire.ledger import Ledger, LedgerError
from pmsfl.wire.messages import Direction, Kind

relaxed = settings(deadline=None, max_examples=100)
entries = st.lists(
    st.tuples(st.sampled_from(Kind), st.sampled_from(Direction), st.integers(0, 2**70), st.integers(1, 9)),
    max_size=12,
)
Entries = list[tuple[Kind, Direction, int, int]]


def counted(parts: Entries) -> Ledger:
    ledger = Ledger()
    for kind, direction, size, messages in parts:
        ledger.add(kind, direction, size, messages)
    return ledger


def test_bytes_are_counted_by_kind_and_direction_in_sorted_order() -> None:
    ledger = Ledger()
    ledger.add(Kind.SMASHED, Direction.UP, 10)
    ledger.add(Kind.GRADIENT, Direction.DOWN, 7)
    ledger.add(Kind.SMASHED, Direction.UP, 5, messages=3)
    ledger.add(Kind.SMASHED, Direction.DOWN, 1)
    expected = {"gradient.down": 7, "smashed.down": 1, "smashed.up": 15, "total": 23}
    assert list(ledger.as_dict().items()) == list(expected.items())
    assert ledger.total == 23
    assert ledger.messages_as_dict() == {"gradient.down": 1, "smashed.down": 1, "smashed.up": 4, "total": 6}


def test_an_empty_ledger_has_only_a_zero_total() -> None:
    assert Ledger().as_dict() == {"total": 0}


@relaxed
@given(entries)
def test_load_is_the_inverse_of_as_dict_through_json(parts: Entries) -> None:
    ledger = counted(parts)
    stored, numbers = (json.loads(json.dumps(d)) for d in (ledger.as_dict(), ledger.messages_as_dict()))
    resumed = Ledger().load(stored, numbers)
    assert resumed == ledger
    assert resumed.as_dict() == ledger.as_dict()
    assert Ledger().load(stored).as_dict() == ledger.as_dict()


def test_load_replaces_and_does_not_share_what_it_was_given() -> None:
    stored = {"theta.down": 4, "total": 4}
    ledger = counted([(Kind.MASK, Direction.UP, 9, 1)]).load(stored)
    ledger.add(Kind.THETA, Direction.DOWN, 1)
    assert ledger.as_dict() == {"theta.down": 5, "total": 5}
    assert stored == {"theta.down": 4, "total": 4}


@relaxed
@given(entries, entries)
def test_difference_from_a_snapshot_is_what_came_after(before: Entries, after: Entries) -> None:
    ledger = counted(before)
    snapshot = ledger.snapshot()
    for kind, direction, size, messages in after:
        ledger.add(kind, direction, size, messages)
    assert snapshot == counted(before)
    assert ledger.difference(snapshot) == counted(after)
    assert counted(before) + counted(after) == ledger


def test_adding_ledgers_leaves_both_alone() -> None:
    one, two = counted([(Kind.MASK, Direction.UP, 1, 1)]), counted([(Kind.MASK, Direction.UP, 2, 1)])
    assert (one + two).as_dict() == {"mask.up": 3, "total": 3}
    assert (one.total, two.total) == (1, 2)


def test_a_difference_from_another_past_is_refused() -> None:
    with pytest.raises(LedgerError, match=r"mask\.up shrank by 5"):
        Ledger().difference(counted([(Kind.MASK, Direction.UP, 5, 1)]))


def test_numpy_counts_become_python_ints_that_do_not_wrap() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.add(Kind.MASK, Direction.UP, np.int64(2**63 - 1))  # type: ignore[arg-type]
    assert ledger.total == 3 * (2**63 - 1)
    assert type(ledger.as_dict()["mask.up"]) is int


@pytest.mark.parametrize(("size", "messages"), [(-1, 1), (1, -1)])
def test_negative_counts_are_refused_and_change_nothing(size: int, messages: int) -> None:
    ledger = Ledger()
    with pytest.raises(LedgerError):
        ledger.add(Kind.MASK, Direction.UP, size, messages)
    assert ledger.as_dict() == {"total": 0}


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"mask.up": 3},
        {"mask.up": 3, "total": 4},
        {"mask.up": -3, "total": -3},
        {"mask.sideways": 3, "total": 3},
        {"letter.up": 3, "total": 3},
        {"mask.up": 3.0, "total": 3},
        {"mask.up": True, "total": 1},
    ],
)
def test_loading_counts_that_cannot_be_is_refused(stored: dict[str, int]) -> None:
    ledger = counted([(Kind.MASK, Direction.UP, 9, 1)])
    with pytest.raises(LedgerError):
        ledger.load(stored)
    assert ledger.total == 9


def test_message_numbers_of_other_kinds_are_refused() -> None:
    with pytest.raises(LedgerError, match="different kinds"):
        Ledger().load({"mask.up": 3, "total": 3}, {"mask.down": 1, "total": 1})
