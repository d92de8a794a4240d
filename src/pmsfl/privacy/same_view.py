"""The upper bound: chosen images of one client through the trained bottom, the same view each time, fresh masks, and
an upload after one local step on them. No training shows a server its victims so well.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from pmsfl.engine.client import Bottoms
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.plan import round_of
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.masks.bernoulli import mask_of, stand_in
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
    labels = world.y[rows] if world.u_shape else world.public_y[rows]
    gradient = torch.stack([_sent_back(world, state, client, q, y) for q, y in zip(looks[0], labels, strict=True)])
    updates = tuple(one_step(world, state, client, *seen) for seen in zip(rows, weights, gradient, strict=True))
    done = round_of(world.recipe, state.round)
    view = Transcript(
        f"same view of client {client} after {done} rounds: chosen images, none augmented",
        torch.stack(looks, 2),
        True,
        None if world.u_shape else labels,  # a U's labels stay; the gradients at the cut are the server's all the same
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


class _OutOfTurn(Bottoms):
    """A client outside of the round's plan, whose images are taken as they are."""

    def inputs(self) -> Tensor:
        return self.world.inputs(self._batch)

    def upload_chance(self) -> Tensor:
        # Even draws are dealt out to those in the plan; one alone is as random as any.
        return self.world.own_chance(self.rows.ids, self.round, self.rows.trained.shape[1])


def one_step(world: World, state: State, client: int, rows: Tensor, weights: Tensor, gradient: Tensor) -> Update:
    """The upload of a client whose whole round is one step of the engine's on rows [B].

    weights: [P], mask included, that the forward pass ran with; gradient: dL/dq [B, ...] as the client received it.
    """
    w, depth = world, world.depths[client]
    shared, plain = received(w, state, depth), state.plain[w.plain_view(depth).sent]
    clock = w.clock(min(state.round, w.recipe.turns - 1))
    vectorised = w.why_looped is None
    bottoms = _OutOfTurn(w, clock, state.round, [client], depth, [1], shared, plain, state.bank, vectorised)
    bottoms.rows.batches = rows.reshape(1, 1, -1)
    if w.method.samples_masks:  # what stands for uniforms gives the same mask again, as with one mask per round
        masks = w.recipe.forward_masks
        mean = mask_of(weights, bottoms.frozen, w.recipe.mask_act)  # type: ignore[arg-type]
        mean = torch.round(masks * mean) / masks
        bottoms.rows.round_draw = stand_in(w.method.forward_theta(bottoms.rows.trained), mean, masks)
    bottoms.forward()
    bottoms.backward(gradient.unsqueeze(0))
    done, uploads = bottoms.finish(), w.method.shows
    after, contributes = done.values[0], done.contributes[0]
    kind = "weights" if uploads == "nothing" else uploads
    return Update(kind, shared, torch.where(contributes, after, 0.0), contributes, 1, w.method.upload_masks)
