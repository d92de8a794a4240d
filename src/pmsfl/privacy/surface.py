"""A client's half as an outsider can compute it: how pixels and weights become what crosses the wire.

It holds the model, the weights and the stages at the cut, and no data: an attack may have it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from pmsfl.engine.protocol import Wire
from pmsfl.engine.state import State
from pmsfl.engine.world import World
from pmsfl.masks.bernoulli import Act, sample_mean, under
from pmsfl.methods.base import Method
from pmsfl.models.context import ForwardContext, forward_context
from pmsfl.models.split import SplitModel
from pmsfl.wire.codecs import Codec
from pmsfl.wire.tensors import round_trip


@dataclass(frozen=True)
class Surface:
    """The bottom of one cut. P masked coordinates, Q plain parameters; images are [.., C, H, W] in [0, 1]."""

    model: SplitModel
    depth: int
    weights: Tensor  # [P]: without a mask
    theta: Tensor | None  # [P]: the chance of every mask bit; None: there is no random mask
    plain: Tensor  # [Q]
    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]
    stages: Callable[[Tensor, Tensor], Tensor]  # at the cut: (smashed [A, B, ...], keys [A]) -> what leaves
    clipped: Callable[[Tensor], Tensor]  # the stages without their noise: [A, B, ...] -> same shape
    codec: Codec | None  # of the wire, where it rounds
    noisy: bool = False  # do the stages draw noise?
    act: Act = "drop"  # what a mask's 0 does to its weight
    masks: int = 1  # a forward pass runs under the mean of so many
    window: int = 0  # pixels a side of the windows that the stages sort; 0: none
    vectorised: bool = True
    frozen: Tensor | None = None  # [P]: what lies under a mask that is not random; None: `weights`
    half: bool = False  # bf16 forward passes, as the clients have them on a GPU

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.weights.device

    def unmasked(self) -> Surface:
        """The same bottom without its random mask: with every weight in its place, or, where a mask turns signs instead
        of dropping weights and no weight has a place without one, under the mean mask."""
        return replace(self, theta=None, weights=self.expected() if self.act == "flip" else self.weights)

    # --- weights

    def draw(self, groups: int, generator: torch.Generator) -> Tensor:
        """The weights of so many forward passes, each under a fresh mask: [groups, P]."""
        if self.theta is None:
            return self.weights.expand(groups, -1)
        drawn = torch.rand(groups, len(self.weights), generator=generator, device=self.device, dtype=self.weights.dtype)
        return self.under(sample_mean(self.theta, drawn, self.masks))

    def expected(self) -> Tensor:
        """The weights under the mean mask: [P]."""
        return self.weights if self.theta is None else self.under(self.theta)

    @property
    def slope(self) -> Tensor:
        """How the weights change with their mask: [P]."""
        under_mask = self.weights if self.frozen is None else self.frozen
        return under_mask if self.act == "drop" else 2.0 * under_mask

    def under(self, mask: Tensor) -> Tensor:
        """The weights under a mask [.., P], which may be relaxed: same shape."""
        return under(self.weights, mask, self.act)

    # --- forward passes

    def normalised(self, x: Tensor) -> Tensor:
        """Images in [0, 1] as the model takes them; same shape."""
        return (x - self.mean) / self.std

    def bottom(self, x: Tensor, weights: Tensor) -> Tensor:
        """Smashed data [G, B, ...] of images [G, B, C, H, W], each of G mini-batches with its own weights [G, P]:
        clipped as they leave, without noise and rounding.

        Batch norm takes the statistics of each mini-batch, as in training. Differentiable in both.
        """
        return self.clipped(self._blocks(x, weights))

    def bottom_of(self, x: Tensor, weights: Tensor) -> Tensor:
        """The same of one mini-batch [B, C, H, W] with weights [P]; twice differentiable."""
        views = self.model.layout.bottom(weights, self.plain, self.depth)
        return self.clipped(self._one(views, self.normalised(x)).unsqueeze(0)).squeeze(0)

    def _blocks(self, x: Tensor, weights: Tensor) -> Tensor:
        views = self.model.layout.bottom(weights, self.plain.expand(len(x), -1), self.depth)
        inputs = self.normalised(x)
        if self.vectorised:
            out: Tensor = vmap(self._one)(views, inputs)
            return out
        return torch.stack([self._one({n: v[i] for n, v in views.items()}, one) for i, one in enumerate(inputs)])

    def _one(self, views: dict[str, Tensor], x: Tensor) -> Tensor:
        self.model.train()
        with forward_context(ForwardContext()):
            out: Tensor = functional_call(self.model, views, (x, 0, self.depth))
        return out

    @torch.no_grad()
    def crossing(self, x: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
        """What crosses the wire [G, B, ...]: bottom, stages at the cut with fresh noise, the wire's rounding."""
        key = torch.randint(2**62, (len(x),), generator=generator, device=self.device)
        context = torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False) if self.half else nullcontext()
        with context:
            out = self.stages(self._blocks(x, weights), key)
        out = out.to(self.weights.dtype)
        return out if self.codec is None else round_trip(out, self.codec, stacked=True)


def surface_of(world: World, depth: int, trained: Tensor, plain: Tensor) -> Surface:
    """The surface of a bottom that trains `trained` [P_d] with plain parameters [Q_d]."""
    w, f = world, world.federation
    frozen = w.frozen[: len(trained)]
    random = w.method.samples_masks
    channels = {"dtype": w.dtype, "device": w.device}
    return Surface(
        w.model,
        depth,
        frozen if random else w.method.effective(trained, frozen, None).detach(),
        w.method.forward_theta(trained) if random else None,
        plain,
        torch.tensor(f.mean, **channels).reshape(-1, 1, 1),  # type: ignore[arg-type]
        torch.tensor(f.std, **channels).reshape(-1, 1, 1),  # type: ignore[arg-type]
        w.method.leaving,
        w.method.clipped,
        w.cut_codec if w.cut_codec != w.codec else None,
        type(w.method).smash is not Method.smash or w.recipe.dp_smashed != "off",
        w.recipe.mask_act,  # type: ignore[arg-type]
        w.recipe.forward_masks,
        w.recipe.cut_sort,
        w.why_looped is None,
        None if random or w.method.trains != "scores" else frozen,
        w.half,
    )


def known_surface(world: World, state: State, depth: int) -> Surface:
    """What the server knows of every client of this depth: θ (or weights) and norms as it sends them."""
    trained = world.method.start(received(world, state, depth))
    return surface_of(world, depth, trained, _plain(world, state, depth, None))


def client_surface(world: World, state: State, client: int) -> Surface:
    """What a client really runs with: what the server sends, with its own coordinates and norms laid over it."""
    depth, memory = world.depths[client], state.bank.get(client)
    trained = world.method.start(received(world, state, depth))
    if memory is not None:
        trained[memory.indices] = memory.values
    return surface_of(world, depth, trained, _plain(world, state, depth, None if memory is None else memory.plain))


def received(world: World, state: State, depth: int) -> Tensor:
    """θ (or weights) [P_d] as a client of this depth has it at the start of a round: rounded, where the wire does."""
    return Wire(world).start(world.sent(state.shared, depth), depth).shared


def _plain(world: World, state: State, depth: int, local: Tensor | None) -> Tensor:
    view = world.plain_view(depth)
    return world.client_plain(state.plain[view.sent], depth, local)[: view.bottom]
