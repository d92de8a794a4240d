"""Text for people and JSON for programs.

On a terminal tables are drawn by rich, where it is installed; elsewhere they are aligned plain text. A reader who
hangs up (`pmsfl run | head`) is no reason to stop: what is left to say is dropped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from pmsfl.errors import PmsflError

MISSING = "-"  # what stands where there is no number


class UsageError(PmsflError):
    """A command line that cannot be meant: exit code 2."""


# --- writing


def say(text: str = "", stream: TextIO | None = None) -> None:
    """Write lines to a stream (stdout unless told), at once. Never raises."""
    target = stream or sys.stdout
    if target is None:  # started with a closed descriptor
        return
    try:
        _write(target, text + "\n")
    except (OSError, ValueError):
        hang_up(target)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a terminal without θ and ±
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def hang_up(stream: TextIO) -> None:
    """Lead what is still to come nowhere, or Python complains about the broken pipe when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def flush() -> None:
    """Write what is still buffered, or drop it where nobody reads."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                hang_up(stream)


def complain(message: str, code: int) -> int:
    """An error on stderr; returns the exit code."""
    say(f"error: {message}", sys.stderr)
    return code


def note(line: str) -> None:
    """A remark on stderr."""
    say(f"note: {line}", sys.stderr)


def emit_json(content: Any) -> None:
    """One JSON object on one line of stdout; what is not a number becomes null. Output that is lost is an error."""
    if sys.stdout is None:
        return
    try:
        _write(sys.stdout, json.dumps(plain(content), ensure_ascii=False, allow_nan=False) + "\n")
    except BrokenPipeError:
        hang_up(sys.stdout)  # the reader has gone: there is nobody to tell
    except OSError as e:
        hang_up(sys.stdout)
        raise PmsflError(f"cannot write to standard output: {e.strerror or e}") from None


def plain(value: Any) -> Any:
    """The value in types that JSON has; NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


# --- tables


def fancy(stream: TextIO | None) -> bool:
    """Is it a terminal that rich can draw on?"""
    if stream is None or stream.closed or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    return sys.modules.get("rich", ...) is not None and importlib.util.find_spec("rich") is not None


def table(title: str, headers: Sequence[str], rows: Iterable[Sequence[Any]], stream: TextIO | None = None) -> None:
    """A table; columns of numbers are aligned to the right. An empty title is left out."""
    target = stream or sys.stdout
    cells = [["" if c is None else str(c) for c in row] for row in rows]
    if fancy(target):
        try:
            return _rich_table(title, headers, cells, target)
        except (OSError, ValueError):
            return hang_up(target)
    return say(_plain_table(title, headers, cells), target)


def _rich_table(title: str, headers: Sequence[str], cells: list[list[str]], stream: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    drawn = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for header, right in zip(headers, _right_aligned(headers, cells), strict=True):
        drawn.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*row)
    console.print(drawn)


def _plain_table(title: str, headers: Sequence[str], cells: list[list[str]]) -> str:
    right = _right_aligned(headers, cells)
    everything = [list(headers), *cells]
    widths = [max(len(row[i]) for row in everything) for i in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    lines = [title] if title else []
    lines += [line(headers), line(["-" * w for w in widths]), *map(line, cells)]
    return "\n".join(lines) + "\n"


def _right_aligned(headers: Sequence[str], cells: list[list[str]]) -> list[bool]:
    """Which columns hold numbers, signs and gaps only."""

    def numeric(cell: str) -> bool:
        return cell in ("", MISSING) or cell.lstrip("+-−<").lstrip()[:1].isdigit()

    return [bool(cells) and all(numeric(row[i]) for row in cells) for i in range(len(headers))]


def pairs(title: str, items: Iterable[tuple[str, Any]], stream: TextIO | None = None) -> None:
    """Names and values, one pair per line; pairs without a value are left out."""
    kept = [(name, str(value)) for name, value in items if value is not None]
    width = max((len(name) for name, _ in kept), default=0)
    lines = [title] if title else []
    say("\n".join(lines + [f"  {name:<{width}}  {value}" for name, value in kept]), stream)


# --- numbers


def gap(value: float | None) -> bool:
    """Is there no number?"""
    return value is None or not math.isfinite(value)


def percent(value: float | None, spread: float | None = None) -> str:
    """81.25 → '81.2 %', with a spread '81.2 ± 0.4 %'; a spread of exactly 0 is one of a single value."""
    if value is None or gap(value):
        return MISSING
    return f"{value:.1f} %" if not spread or gap(spread) else f"{value:.1f} ± {spread:.1f} %"


def number(value: float | None, digits: int = 2) -> str:
    """A number with that many decimals."""
    return MISSING if value is None or gap(value) else f"{value:.{digits}f}"


def human(value: float | None, unit: str) -> str:
    """1234567 and B → '1.23 MB'; whole numbers below 1000 as they are."""
    if value is None or gap(value):
        return MISSING
    size, prefixes = float(value), iter(("", "k", "M", "G", "T", "P", "E"))
    prefix = next(prefixes)
    while abs(size) >= 999.5 and (larger := next(prefixes, None)):
        size, prefix = size / 1000.0, larger
    text = f"{size:.0f}" if (not prefix and size == int(size)) else f"{size:#.3g}".rstrip(".")
    return f"{text} {prefix}{unit}"


def count(value: int) -> str:
    """4752 → '4,752'."""
    return f"{value:,}"


def human_bytes(value: float | None) -> str:
    """4909844 → '4.91 MB'."""
    return human(value, "B")


def human_seconds(value: float | None) -> str:
    """0.0188 → '19 ms', 75 → '1 min 15 s', 7300 → '2 h 01 min'."""
    if value is None or gap(value):
        return MISSING
    if value < 1.0:
        return f"{value * 1000.0:.0f} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def bar(share: float | None, width: int = 20) -> str:
    """A share of 1 as a bar."""
    return "" if share is None or gap(share) else "#" * round(min(max(share, 0.0), 1.0) * width)


def shape(sizes: Iterable[int]) -> str:
    """(3, 32, 32) → '3x32x32'."""
    return "x".join(map(str, sizes))


def byte_rows(sent: Mapping[str, int]) -> list[tuple[str, str, str, str]]:
    """A ledger's dictionary as rows: kind, up, down, both; the total last."""
    kinds = sorted({key.partition(".")[0] for key in sent if key != "total"})
    amounts = [(kind, sent.get(f"{kind}.up", 0), sent.get(f"{kind}.down", 0)) for kind in kinds]
    amounts.sort(key=lambda a: -(a[1] + a[2]))
    amounts.append(("total", sum(a[1] for a in amounts), sum(a[2] for a in amounts)))
    return [
        (kind, human_bytes(up) if up else MISSING, human_bytes(down) if down else MISSING, human_bytes(up + down))
        for kind, up, down in amounts
    ]
