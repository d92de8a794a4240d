"""A benchmark's figures for the record: the JSON object with what it depends on, the printed text beside it."""

from __future__ import annotations

import datetime
import io
import json
import os
import platform
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from pmsfl.report.console import plain
from pmsfl.rundir import versions, write_whole


def hardware(device: torch.device) -> str:
    """The machine in words."""
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    return f"{os.cpu_count()} {platform.machine()} cores, {torch.get_num_threads()} threads"


def write_record(
    directory: Path,
    result: dict[str, Any],
    words: Sequence[str],
    device: torch.device,
    show: Callable[[dict[str, Any], TextIO], None],
) -> Path:
    """Write record.json and log into a directory, which is made. words: the command line behind `pmsfl`."""
    record = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["pmsfl", *words]),
        "hardware": hardware(device),
        "versions": versions(device, str(result["data"])),
    }
    directory.mkdir(parents=True, exist_ok=True)
    log = io.StringIO()
    show(result, log)
    write_whole(directory / "log", f"$ {record['command']}\n{log.getvalue()}")
    path = directory / "record.json"
    write_whole(path, json.dumps(plain(record | result), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path
