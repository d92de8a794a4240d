"""What a site keeps on its own disk: its secret, what it agreed to at enrolment, its personal coordinates.

secret          32 bytes, mode 600           pins.json   run -> hash of the manifest it enrolled with
RUN/rounds.json      how often each round was played
RUN/memory-000012.safetensors    its Memory after that round. Several are kept: the server may go back.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

from pmsfl.deploy import secret
from pmsfl.deploy.roster import Manifest
from pmsfl.engine.bank import pack_memory, unpack_memory
from pmsfl.engine.plan import round_of
from pmsfl.engine.state import Memory
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError


class Store:
    """A site's folder. Every file is written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def secret(self) -> bytes:
        """This site's secret, made at the first look."""
        return secret.load_or_create(self.folder / "secret")

    def pin(self, m: Manifest) -> None:
        """Remember what this run is at the first enrolment; PmsflError where a later manifest differs."""
        file = self.folder / "pins.json"
        pins: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        found = hashlib.sha256(json.dumps(m.as_dict(), sort_keys=True).encode()).hexdigest()
        known = pins.setdefault(m.run, found)
        if known != found:
            raise PmsflError(
                f"run {m.run!r} is not what this site enrolled in (recipe, frozen weights, sites or normalisation "
                f"have changed); ask whoever runs the server. To accept it, remove {m.run!r} from {file}"
            )
        secret.write(file, json.dumps(pins, indent=1).encode())

    def memory(self, world: World, run: str, round_: int) -> Memory | None:
        """What the site kept after the newest round up to `round_`; None before its first."""
        past = [(r, f) for r, f in self._memories(run) if r <= round_]
        if not past:
            return None
        number, file = past[-1]
        memory, r = unpack_memory(file.read_bytes(), world), world.recipe
        if r.client_state == "stay" and round_of(r, number - 1) != round_of(r, round_):
            return replace(memory, optimiser={})  # of a round that this site did not see the end of
        return memory

    def remember(self, world: World, depth: int, run: str, round_: int, memory: Memory, oldest: int) -> None:
        """Keep a memory; those that no checkpoint of the server can need any more go."""
        folder = self.folder / safe_name(run)
        folder.mkdir(exist_ok=True)
        secret.write(folder / f"memory-{round_:06d}.safetensors", pack_memory(memory, world, depth))
        before = [(r, f) for r, f in self._memories(run) if r <= oldest]
        for _, file in before[:-1]:
            file.unlink(missing_ok=True)

    def count_round(self, run: str, round_: int) -> int:
        """How often this round has been begun, this time included."""
        file = self.folder / safe_name(run) / "rounds.json"
        file.parent.mkdir(exist_ok=True)
        counts: dict[str, int] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        counts[str(round_)] = counts.get(str(round_), 0) + 1
        secret.write(file, json.dumps(counts).encode())
        return counts[str(round_)]

    def _memories(self, run: str) -> list[tuple[int, Path]]:
        found = []
        for file in (self.folder / safe_name(run)).glob("memory-*.safetensors"):
            if match := re.fullmatch(r"memory-(\d+)\.safetensors", file.name):
                found.append((int(match[1]), file))
        return sorted(found)


def safe_name(run: str) -> str:
    """A run's name comes from the server: it must not lead out of the folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", run):
        raise PmsflError(f"run {run!r}: letters, digits, '.', '_' and '-' only")
    return run
