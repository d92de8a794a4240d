"""What a recorded round really sent (`-c record=true`): mini-batches as the client drew them, augmented, each with the
batch statistics and the mask it had, the uploads of a whole round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pmsfl.engine.transcribe import told
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream
from pmsfl.privacy.cases import (
    LINKED,
    Case,
    augmentation,
    check_attackable,
    local_step,
    pixels,
    public_images,
    without_mask,
)
from pmsfl.privacy.surface import Surface, surface_of
from pmsfl.privacy.threat import ThreatModel, Transcript, Update
from pmsfl.tensorfile import read_tensors


@dataclass(frozen=True)
class Recording:
    """One client's messages of one round: see engine/transcribe.py."""

    round: int  # from 0
    client: int
    depth: int
    steps: int  # of the round; fewer may have been kept
    tensors: dict[str, Tensor]

    @property
    def kept(self) -> int:
        """How many steps are there."""
        return len(self.tensors["smashed"]) if "smashed" in self.tensors else 0


def recordings(folder: Path) -> list[Path]:
    """The files of a run's transcript, oldest round first."""
    return sorted(folder.glob("round-*-client-*.safetensors"))


def read_recording(file: Path, device: torch.device | str = "cpu") -> Recording:
    """One file of a transcript."""
    tensors, metadata = read_tensors(file)
    try:
        about = json.loads(metadata["pmsfl"])
        round_, client, depth, steps = (int(about[key]) for key in ("round", "client", "depth", "steps"))
    except (KeyError, ValueError, TypeError) as e:
        raise PmsflError(f"{file} is no transcript of a round: {e}") from None
    return Recording(round_, client, depth, steps, {name: t.to(device) for name, t in tensors.items()})


def as_recorded(world: World, folder: Path, images: int, seed: int = 0) -> Case:
    """The case of the first mini-batches in the newest recorded round: θ is known best there."""
    check_attackable(world)
    files = recordings(folder)
    if not files:
        raise PmsflError(
            f"{folder} holds no recording: train with -c record=true (and record_rounds, record_clients), or attack "
            "with --observations same-view"
        )
    record = read_recording(files[-1], world.device)
    groups = min(-(-images // world.recipe.batch), record.kept)
    if not groups:
        raise PmsflError(f"{files[-1]} has no steps: record_mb = {world.recipe.record_mb} was full; raise it")
    rows = world.batch_rows(record.client, record.round, record.steps)[: record.kept]
    truth = _truth(world, record, rows[:groups])
    surface, t = _known(world, record), record.tensors
    observed = _linked(world, t["smashed"].to(world.dtype), rows, groups)
    last = f"{groups} of {record.kept}" if record.kept < record.steps else f"{groups}"
    view = Transcript(
        f"as recorded: {told(record.round + 1, world.recipe.merges)}, client {record.client}, steps 1 to {last}",
        observed,
        False,
        t["labels"][:groups] if "labels" in t else None,
        t["gradient"][:groups].to(world.dtype),
        _update(world, record),
    )
    threat = ThreatModel(
        surface,
        world.input_shape,
        local_step(world, record.round),
        view.linked,
        view.labels is not None,
        public_images(world, record.client, rows, seed + 2),
        augmentation(world.recipe.augment),
        None,
        seed,
    )
    generator = torch.Generator(world.device).manual_seed(seed + 1)
    notes = []
    if groups * rows.shape[1] != images:
        notes.append(f"{truth.shape[0] * truth.shape[1]} images: whole mini-batches")
    if world.recipe.merges > 1:
        notes.append(
            f"one turn of {world.recipe.merges} in its round: the server saw more of these images, same-view counts it"
        )
    return Case(view, threat, truth.flatten(0, 1), without_mask(surface, truth, generator), tuple(notes))


def _truth(world: World, record: Recording, rows: Tensor) -> Tensor:
    """The images behind the first steps [G, B, C, H, W], cropped and turned as the client did: drawn again from its
    keys, because a transcript has no images."""
    ids = torch.tensor([record.client], device=world.device)
    views = []
    for step, batch in enumerate(rows):
        keys = world.keys.client(Stream.AUGMENT, ids, record.round, step)
        views.append(pixels(world, batch.unsqueeze(0), keys).squeeze(0))
    return torch.stack(views)


def _known(world: World, record: Recording) -> Surface:
    w, t = world, record.tensors
    sent = t.get("start.shared", w.initial_shared[: w.masked_size(record.depth)])
    plain = w.client_plain(t["start.plain"], record.depth, None)[: w.plain_view(record.depth).bottom]
    return surface_of(w, record.depth, w.method.start(sent), plain)


def _linked(world: World, smashed: Tensor, rows: Tensor, groups: int) -> Tensor:
    """Observations of every image of the first mini-batches [G, B, k, ...], its own first.

    Linking is granted: which rows are the same record is taken from the simulation. Augmented views of a record are
    different images, so there it is one each.
    """
    own = smashed[:groups].unsqueeze(2)
    if world.recipe.augment != "none":
        return own
    flat, names = smashed.flatten(0, 1), rows.flatten()
    places = [(names == name).nonzero().squeeze(1) for name in rows[:groups].flatten()]
    k = min(LINKED, *(len(p) for p in places))
    batch = rows.shape[1]
    chosen = []
    for i, found in enumerate(places):
        others = found[found != i][: k - 1]
        chosen.append(torch.cat((found.new_tensor([i]), others)))
    return flat[torch.stack(chosen)].reshape(groups, batch, k, *flat.shape[1:])


def _update(world: World, record: Recording) -> tuple[Update, ...]:
    t, uploads = record.tensors, world.method.shows
    if "upload.values" not in t or uploads == "nothing":
        return ()
    values = t["upload.values"].to(world.dtype)
    masks = world.method.upload_masks
    return (Update(uploads, t["start.shared"], values, t["upload.contributes"], record.steps, masks),)
