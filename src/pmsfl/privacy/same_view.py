"""The upper bound: chosen images of one client through the trained bottom, the same view each time, fresh masks, and
an upload after one local step on them. No training shows a server its victims so well.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.optim import RowOptimiser
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.masks.random import Stream
from pmsfl.privacy.cases import LINKED, Case, check_attackable, local_step, pixels, public_images, without_mask
from pmsfl.privacy.surface import client_surface, known_surface, received
from pmsfl.privacy.threat import ThreatModel, Transcript, Update
from pmsfl.wire.tensors import round_trip


def same_view(world: World, state: State, images: int, seed: int = 0) -> Case:
    """The case of about so many images (whole mini-batches) of the client with most data."""
    check_attackable(world)
    client = max(range(len(world.sizes)), key=lambda c: (int(world.sizes[c]), -c))
    rows = _victims(world, client, images)
    truth = pixels(world, rows)
    generator = torch.Generator(world.device).manual_seed(seed + 1)
    real = client_surface(world, state, client)
    weights = real.draw(len(rows), generator)
    looks = [real.crossing(truth, weights, generator)]
    if real.theta is not None or real.noisy:
        looks += [real.crossing(truth, real.draw(len(rows), generator), generator) for _ in range(LINKED - 1)]
    labels = None if world.u_shape else world.public_y[rows]
    gradient, updates = None, tuple[Update, ...]()
    if labels is not None:
        gradient = torch.stack([_sent_back(world, state, client, q, y) for q, y in zip(looks[0], labels, strict=True)])
        updates = tuple(_one_step(world, state, client, x, g) for x, g in zip(truth, gradient, strict=True))
    view = Transcript(
        f"same view of client {client} after {state.round} rounds: chosen images, none augmented",
        torch.stack(looks, 2),
        True,
        labels,
        gradient,
        updates if world.method.uploads != "nothing" else (),
    )
    threat = ThreatModel(
        known_surface(world, state, world.depths[client]),
        world.input_shape,
        local_step(world, state.round),
        view.linked,
        view.labels is not None,
        public_images(world, client, rows, seed + 2),
        None,
        weights if real.theta is not None else None,
        seed,
    )
    notes = () if rows.numel() == images else (f"{rows.numel()} images instead of {images}: whole mini-batches",)
    return Case(view, threat, truth.flatten(0, 1), without_mask(real, truth, generator), notes)


def _victims(world: World, client: int, images: int) -> Tensor:
    """Rows of a client's first images, in mini-batches [G, B]."""
    held = world.train_rows[client]
    batch = max(1, min(world.recipe.batch, images, len(held)))
    groups = max(1, min(-(-images // batch), len(held) // batch))
    return held[: groups * batch].reshape(groups, batch)


def _sent_back(world: World, state: State, client: int, smashed: Tensor, labels: Tensor) -> Tensor:
    """dL/dq [B, ...] that the server's top gives for one mini-batch, as the client receives it."""
    w, depth = world, world.depths[client]
    p, q = w.masked_size(depth) - w.masked_size(w.cut), w.plain_size(depth) - w.plain_size(w.cut)
    masked = Evaluator(w).top_weights(state, 0)[p:]
    views = w.layout.top(masked, state.plain[w.plain_size(w.cut) :][q:], depth)
    inputs = smashed.detach().requires_grad_()
    w.model.train()
    logits = functional_call(w.model, views, (inputs, depth))
    loss = F.cross_entropy(logits, labels, label_smoothing=w.recipe.label_smoothing)
    (gradient,) = torch.autograd.grad(loss, inputs)
    return gradient if w.gradient_codec == w.codec else round_trip(gradient, w.gradient_codec)


def _one_step(world: World, state: State, client: int, x: Tensor, gradient: Tensor) -> Update:
    """The upload of a client whose whole round was one step on images x [B, C, H, W], as the engine takes it."""
    w, depth, memory = world, world.depths[client], state.bank.get(client)
    shared = received(w, state, depth)
    start, contributes = w.method.start(shared).unsqueeze(0), ~w.kept_from_start(depth)
    if memory is not None:
        start[0, memory.indices] = memory.values
        contributes[memory.indices] = False
    generator = torch.Generator(w.device).manual_seed(client)
    drawn = torch.rand(2, *start.shape, generator=generator, device=w.device, dtype=w.dtype)
    trained, step = start.clone(), local_step(w, state.round)
    if w.method.trains != "nothing":
        leaf = start.clone().requires_grad_()
        effective = w.method.effective(leaf, w.frozen[: len(shared)], drawn[0])
        out = client_surface(w, state, client).bottom_of(x, effective[0])
        (slope,) = torch.autograd.grad(out, leaf, gradient)
        RowOptimiser.fresh(step.optimiser, trained, weight_decay=step.weight_decay).step(trained, slope, step.lr)
        w.method.project(trained)
    keys = w.keys.client(Stream.NOISE, torch.tensor([client], device=w.device), state.round, -1)
    after = w.method.upload(w.method.protect_update(start, trained, contributes.unsqueeze(0), keys), drawn[1])[0]
    uploads = w.method.uploads
    kind = "weights" if uploads == "nothing" else uploads
    return Update(kind, shared, torch.where(contributes, after, 0.0), contributes, 1)
