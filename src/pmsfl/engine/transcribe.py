"""What crossed the wire, kept: the rounds and clients that a recipe wants recorded, as one tensor file each.

transcript/round-000040-client-000007.safetensors holds, of one client in one round,
  start.shared [P], start.plain [q]            what came down first
  smashed, gradient [S, B, ...], labels [S, B]  S steps, as the other side received them
  upload.values [P], upload.contributes [P], upload.plain [q]
Nothing of it is secret from the server, and nothing else is in it: no image, no mask, no score. Rounds and steps
count from 1 in names and messages, from 0 in tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pmsfl.engine.plan import RoundPlan, round_of
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.tensorfile import write_tensors
from pmsfl.wire.codecs import Codec

_KEPT_AS = {Codec.BF16: torch.bfloat16, Codec.FP16: torch.float16}  # exact, and half as large


class ClientTape:
    """One client's messages of one round, until they are written."""

    def __init__(self, client: int, depth: int, steps: int) -> None:
        self.client, self.depth, self.planned = client, depth, steps
        self.tensors: dict[str, Tensor] = {}
        self.steps: list[dict[str, Tensor]] = []

    def whole(self) -> dict[str, Tensor]:
        """Everything under its name in the file."""
        names = list(self.steps[0]) if self.steps else []
        return self.tensors | {name: torch.stack([s[name] for s in self.steps]) for name in names}


class RoundTape:
    """Listens to one round. Executors tell it everything; it keeps what is wanted and fits."""

    def __init__(self, world: World, folder: Path, plan: RoundPlan, room: int, note: Callable[[str], None]) -> None:
        self.world, self.folder, self.plan, self.note = world, folder, plan, note
        self.room = room  # bytes left
        self.smashed_as = _KEPT_AS.get(world.cut_codec, world.dtype)
        self.gradient_as = _KEPT_AS.get(world.gradient_codec, world.dtype)
        self.tapes: dict[int, ClientTape] = {}

    def open(self, client: int) -> None:
        """Keep this client's messages."""
        i = self.plan.clients.index(client)
        self.tapes[client] = ClientTape(client, self.plan.depths[i], self.plan.steps[i])

    def start(self, client: int, shared: Tensor, plain: Tensor) -> None:
        """The shared vector and the norms went down."""
        if (tape := self.tapes.get(client)) is not None:
            sent = {"start.plain": plain}
            if self.world.method.uploads != "nothing":
                sent["start.shared"] = shared
            tape.tensors |= self._kept(sent)

    def step(self, client: int, smashed: Tensor, labels: Tensor, gradient: Tensor) -> None:
        """Smashed data [B, ...] and labels [B] came up, dL/dq [B, ...] went down."""
        tape = self.tapes.get(client)
        if tape is None:
            return
        cut = {"smashed": smashed.to(self.smashed_as), "gradient": gradient.to(self.gradient_as)}
        if not self.world.u_shape:
            cut["labels"] = labels
        if sum(t.numel() * t.element_size() for t in cut.values()) <= self.room:
            tape.steps.append(self._kept(cut))
        else:
            self.room = -1  # a later, smaller one must not leave a hole before it

    def upload(self, client: int, values: Tensor, contributes: Tensor, plain: Tensor) -> None:
        """The end of the client's round came up."""
        if (tape := self.tapes.get(client)) is None:
            return
        sent = {"upload.plain": plain}
        if self.world.method.uploads != "nothing":
            bits = self.world.method.shows == "bits"
            shown = torch.where(contributes, values, 0.0)  # what stays personal never crossed
            sent |= {"upload.values": shown.to(torch.uint8) if bits else shown, "upload.contributes": contributes}
        tape.tensors |= self._kept(sent)

    def _kept(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        copies = {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
        self.room -= sum(t.numel() * t.element_size() for t in copies.values())
        return copies

    def close(self) -> None:
        """Write one file per client, and say what was left out."""
        self.folder.mkdir(exist_ok=True)
        number = self.plan.round + 1
        for client, tape in self.tapes.items():
            about = {
                "round": self.plan.round,
                "client": client,
                "depth": tape.depth,
                "steps": tape.planned,
                "uploads": self.world.method.shows,
            }
            file = self.folder / f"round-{number:06d}-client-{client:06d}.safetensors"
            write_tensors(file, tape.whole(), {"pmsfl": json.dumps(about)})
            if (kept := len(tape.steps)) < tape.planned:
                when = told(number, self.world.recipe.merges)
                self.note(
                    f"record: {when}, client {client}: steps {kept + 1} to {tape.planned} left out, "
                    f"record_mb = {self.world.recipe.record_mb} is full; raise it, or record fewer rounds or clients"
                )


def told(turn: int, merges: int) -> str:
    """A turn, counted from 1, in words: 'round 3', or with several merges 'round 3, turn 2'."""
    round_, part = divmod(turn - 1, merges)
    return f"round {round_ + 1}, turn {part + 1}" if merges > 1 else f"round {round_ + 1}"


class Transcriber:
    """Decides what of a run is recorded, within its limit."""

    def __init__(self, world: World, folder: Path, note: Callable[[str], None] = lambda line: None) -> None:
        self.world, self.folder, self.note = world, folder, note
        r = world.recipe
        self.rounds = wanted_rounds(r.record_rounds, r.rounds)
        self.clients = wanted_clients(r.record_clients, world.federation.clients)

    def of_round(self, plan: RoundPlan) -> RoundTape | None:
        """A tape for this round, None where nothing of it is wanted. Recorded rounds are played as they are: no step
        of theirs is replayed from a recording."""
        if round_of(self.world.recipe, plan.round) not in self.rounds:
            return None
        wanted = list(plan.clients) if self.clients is None else [c for c in plan.clients if c in self.clients]
        if self.world.recipe.record_clients == "first":
            wanted = list(plan.clients[:1])
        if not wanted:
            self.note(f"record: {told(plan.round + 1, self.world.recipe.merges)}: none of record_clients takes part")
            return None
        mine = f"round-{plan.round + 1:06d}-"
        used = sum(f.stat().st_size for f in self.folder.glob("round-*") if not f.name.startswith(mine))
        room = self.world.recipe.record_mb * 10**6 - used
        tape = RoundTape(self.world, self.folder, plan, room, self.note)
        for client in wanted:
            tape.open(client)
        return tape


def check_recording(world: World) -> None:
    """PmsflError where record_rounds or record_clients name what there is not: before anything is written."""
    wanted_rounds(world.recipe.record_rounds, world.recipe.rounds)
    wanted_clients(world.recipe.record_clients, world.federation.clients)


def wanted_rounds(spec: str, rounds: int) -> set[int]:
    """The rounds, from 0, that 'last', 'all' or '1,5,10' (from 1) name."""
    if spec == "all":
        return set(range(rounds))
    if spec == "last":
        return {rounds - 1}
    numbers = _numbers("record_rounds", spec, "last, all, or numbers: 1,5,10")
    if bad := [n for n in numbers if not 1 <= n <= rounds]:
        raise PmsflError(f"record_rounds = {spec!r}: there is no round {bad[0]}; the run has rounds 1 to {rounds}")
    return {n - 1 for n in numbers}


def wanted_clients(spec: str, clients: int) -> set[int] | None:
    """The clients that '3,7' names; None for 'first' and 'all', which depend on the round."""
    if spec in ("first", "all"):
        return None
    numbers = _numbers("record_clients", spec, "first, all, or numbers: 3,7")
    if bad := [n for n in numbers if not 0 <= n < clients]:
        raise PmsflError(f"record_clients = {spec!r}: there is no client {bad[0]}; take 0 to {clients - 1}")
    return numbers


def _numbers(key: str, spec: str, allowed: str) -> set[int]:
    try:
        return {int(n) for n in spec.split(",")}
    except ValueError:
        raise PmsflError(f"{key} = {spec!r}: write {allowed}") from None
