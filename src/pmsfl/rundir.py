"""One run directory: the resolved recipe, versions, metrics.jsonl, checkpoints, the result.

recipe.toml     every knob, resolved        versions.json   software, hardware, the data's fingerprint
metrics.jsonl   one line per round          checkpoints/    round-000040.safetensors, the last few
result.json     written when the run is complete
transcript/     what crossed the wire in recorded rounds, where the recipe wants it
bank.bin        what the clients keep, where that is too much for memory; the checkpoints refer to it
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pmsfl._version import __version__
from pmsfl.errors import PmsflError
from pmsfl.locks import only_one
from pmsfl.recipe import Recipe
from pmsfl.tensorfile import TensorFileError, read_tensors, write_tensors

RUNS = Path("runs")
ROSTER = "roster.json"  # a deployment's sites; a simulation has none
T = TypeVar("T")


class RunDirectory:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # --- creating and opening

    @staticmethod
    def create(recipe: Recipe, out: Path | None) -> RunDirectory:
        """A new directory; `out` must be empty or absent, without it a free name under runs/ is taken."""
        path = out or _free_name(RUNS / f"{recipe.name}-{recipe.method}-s{recipe.seed}")
        if (path / "recipe.toml").exists():
            raise PmsflError(f"{path} holds a run already; continue it with --resume, or choose another --out")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise PmsflError(f"{path} exists and is not an empty directory; choose another --out")
        run = RunDirectory(path)
        with run.writing("recipe.toml"):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            (path / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
            (path / "metrics.jsonl").touch()
        return run

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """An existing run."""
        if not (path / "recipe.toml").is_file():
            raise PmsflError(f"{path} is no run directory (it has no recipe.toml); `pmsfl ls` lists the runs")
        return RunDirectory(path)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Turn a full or read-only disk into a message that says what is still safe."""
        try:
            yield
        except OSError as e:
            if not (self.path / "metrics.jsonl").exists():
                raise PmsflError(f"cannot create {self.path}: {e.strerror or e}; choose another --out") from e
            kept = self.checkpoints()
            safe = f"the checkpoint of round {kept[-1][0]} is intact" if kept else "no checkpoint was written yet"
            raise PmsflError(
                f"cannot write {what} in {self.path}: {e.strerror or e}; {safe}. Free some space, then resume "
                f"with: pmsfl run --resume --out {self.path}"
            ) from e

    @property
    def tells_turns(self) -> bool:
        """Does metrics.jsonl have a line for every merge, as a deployment's has, and not for every round?"""
        return (self.path / ROSTER).is_file()

    # --- small files

    def recipe(self) -> Recipe:
        """The resolved recipe."""
        text = (self.path / "recipe.toml").read_text(encoding="utf-8")
        return Recipe.from_toml(text, str(self.path / "recipe.toml"))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run, None if it is not there."""
        file = self.path / name
        if not file.exists():
            return None
        try:
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as e:
            raise PmsflError(f"{file} is damaged: {e}") from None
        return content

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file atomically."""
        with self.writing(name):
            write_whole(self.path / name, json.dumps(content, indent=1, allow_nan=True) + "\n")

    # --- metrics

    def append_metrics(self, line: dict[str, Any]) -> None:
        """One more line, on disk before the next round starts."""
        with self.writing("metrics.jsonl"), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as f:
            f.write(json.dumps(line) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """Every complete line; a last line cut off by a crash is left out."""
        file = self.path / "metrics.jsonl"
        lines: list[dict[str, Any]] = []
        for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            try:
                line = json.loads(text)
            except ValueError:
                break
            if not isinstance(line, dict) or not {"round", "bytes", "loss"} <= line.keys():
                raise PmsflError(f"{file} is damaged at line {len(lines) + 1}: it is no round of a run")
            lines.append(line)
        return lines

    def cut_metrics(self, rounds: int) -> None:
        """Cut metrics.jsonl back to a checkpoint: lines of later rounds go."""
        kept = [line for line in self.metrics() if line["round"] <= rounds]
        with self.writing("metrics.jsonl"):
            write_whole(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))

    # --- checkpoints

    @property
    def bank_file(self) -> Path:
        """Where the clients' memories go, should they need a file."""
        return self.path / "bank.bin"

    @property
    def transcript_folder(self) -> Path:
        """Where what crossed the wire in recorded rounds lies."""
        return self.path / "transcript"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(round, file) of every checkpoint, oldest first."""
        found = []
        for file in (self.path / "checkpoints").glob("round-*.safetensors"):
            if match := re.fullmatch(r"round-(\d+)\.safetensors", file.name):
                found.append((int(match[1]), file))
        return sorted(found)

    def save_checkpoint(self, rounds: int, tensors: dict[str, Tensor], metadata: dict[str, Any], keep: int) -> None:
        """Write a checkpoint atomically, then drop the oldest beyond `keep`."""
        file = self.path / "checkpoints" / f"round-{rounds:06d}.safetensors"
        with self.writing(file.name):
            file.parent.mkdir(exist_ok=True)
            write_tensors(file, tensors, {"pmsfl": json.dumps(metadata)})
        for _, old in self.checkpoints()[:-keep]:
            old.unlink(missing_ok=True)

    def locked(self) -> AbstractContextManager[int]:
        """Nobody else may train in this directory meanwhile. The lock goes with the process, however it ends."""
        return only_one(self.path / ".lock", f"another process is training in {self.path}; wait for it, or stop it")

    def load_checkpoint(
        self,
        build: Callable[[dict[str, Tensor], dict[str, Any]], T],
        note: Callable[[str], None] = lambda line: None,
    ) -> T | None:
        """What `build` makes of the newest checkpoint that is whole (tensors, metadata); None where there is none."""
        problems = []
        for _, file in reversed(self.checkpoints()):
            try:
                tensors, metadata = read_tensors(file)
                return build(tensors, json.loads(metadata["pmsfl"]))
            except (TensorFileError, KeyError, ValueError, RuntimeError, TypeError) as e:
                problems.append(f"{file.name}: {e}")
                note(f"checkpoint passed over: {problems[-1]}")
        if problems:
            raise PmsflError("no checkpoint can be read: " + "; ".join(problems))
        return None


def write_whole(path: Path, text: str) -> None:
    """Write a text file that is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _free_name(path: Path) -> Path:
    if not path.exists():
        return path
    n = 2
    while (numbered := path.with_name(f"{path.name}-{n}")).exists():
        n += 1
    return numbered


def versions(device: torch.device, fingerprint: str) -> dict[str, Any]:
    """What the figures of a run depend on besides its recipe."""
    on_gpu = device.type == "cuda"
    return {
        "pmsfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.machine(),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "data": fingerprint,
    }


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Lines on what has changed since a run began, so that it may not go on bit for bit."""
    if then.get("data") != now.get("data"):
        raise PmsflError("the data is not what this run began with (its fingerprint differs); restore it to resume")
    return [
        f"{key} was {then[key]}, is {now[key]}: later rounds may differ in the last bits"
        for key in now
        if key in then and then[key] != now[key]
    ]
