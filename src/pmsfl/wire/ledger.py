"""Every byte that travelled, by kind of message and direction."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from pmsfl.errors import PmsflError
from pmsfl.wire.messages import Direction, Kind

_TOTAL = "total"
_KEYS = frozenset(f"{kind.name.lower()}.{direction.value}" for kind in Kind for direction in Direction)


class LedgerError(PmsflError):
    """Counts that cannot be: negative, of an unknown kind, or not adding up to their total."""


class Ledger:
    """Bytes and messages per (kind, direction), as Python ints: they never overflow."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._messages: dict[str, int] = {}

    def add(self, kind: Kind, direction: Direction, bytes: int, messages: int = 1) -> None:
        """Count `bytes` in all, sent as that many `messages`."""
        key = f"{Kind(kind).name.lower()}.{Direction(direction).value}"
        size, number = operator.index(bytes), operator.index(messages)  # numpy ints would wrap around
        if size < 0 or number < 0:
            raise LedgerError(f"cannot count {size} bytes in {number} messages for {key}")
        self._bytes[key] = self._bytes.get(key, 0) + size
        self._messages[key] = self._messages.get(key, 0) + number

    @property
    def total(self) -> int:
        """Bytes of all kinds in both directions."""
        return sum(self._bytes.values())

    def as_dict(self) -> dict[str, int]:
        """Bytes by "kind.direction", sorted, then their "total"."""
        return _with_total(self._bytes)

    def messages_as_dict(self) -> dict[str, int]:
        """Numbers of messages by "kind.direction", sorted, then their "total"."""
        return _with_total(self._messages)

    def load(self, counts: Mapping[str, int], messages: Mapping[str, int] | None = None) -> Ledger:
        """Replace what was counted by what `as_dict` (and `messages_as_dict`) gave; returns itself.

        Without `messages`, the numbers of messages begin again at zero.
        """
        sizes = _checked(counts)
        numbers = _checked(messages) if messages is not None else dict.fromkeys(sizes, 0)
        if sizes.keys() != numbers.keys():
            raise LedgerError("bytes and messages were counted for different kinds")
        self._bytes, self._messages = sizes, numbers
        return self

    def snapshot(self) -> Ledger:
        """A copy that later counting leaves alone, to take a `difference` from."""
        copy = Ledger()
        copy._bytes, copy._messages = dict(self._bytes), dict(self._messages)
        return copy

    def difference(self, earlier: Ledger) -> Ledger:
        """What was counted since the snapshot `earlier`; kinds without any message since are left out."""
        result = Ledger()
        for key in self._bytes.keys() | earlier._bytes.keys():
            size = self._bytes.get(key, 0) - earlier._bytes.get(key, 0)
            number = self._messages.get(key, 0) - earlier._messages.get(key, 0)
            if size < 0 or number < 0:
                raise LedgerError(f"{key} shrank by {-size} bytes: not a snapshot of this ledger's past")
            if size or number:
                result._bytes[key], result._messages[key] = size, number
        return result

    def __add__(self, other: Ledger) -> Ledger:
        """Both ledgers' counts together, in a new ledger."""
        result = self.snapshot()
        for key, size in other._bytes.items():
            result._bytes[key] = result._bytes.get(key, 0) + size
            result._messages[key] = result._messages.get(key, 0) + other._messages[key]
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return self._bytes == other._bytes and self._messages == other._messages

    __hash__ = None  # type: ignore[assignment]  # it changes as it counts

    def __repr__(self) -> str:
        return f"Ledger({self.as_dict()})"


def _with_total(counts: Mapping[str, int]) -> dict[str, int]:
    return {key: counts[key] for key in sorted(counts)} | {_TOTAL: sum(counts.values())}


def _checked(counts: Mapping[str, int]) -> dict[str, int]:
    unknown = sorted(counts.keys() - _KEYS - {_TOTAL})
    if unknown:
        raise LedgerError(f"unknown counts {unknown}: keys are 'kind.direction' and 'total'")
    for key, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise LedgerError(f"{key} is {value!r}, not a number of bytes or messages")
    parts = {key: value for key, value in counts.items() if key != _TOTAL}
    if counts.get(_TOTAL) != sum(parts.values()):
        raise LedgerError(f"total is {counts.get(_TOTAL)}, the counts add up to {sum(parts.values())}")
    return parts
