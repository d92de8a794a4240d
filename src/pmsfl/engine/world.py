"""Everything a run does not change: recipe, data on the device, model, frozen weights, keys, depths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pmsfl.data.federation import Federation
from pmsfl.engine.augment import augment
from pmsfl.engine.budget import depths_by_budget
from pmsfl.engine.claims import check_claims
from pmsfl.engine.memory import keep_freed_memory
from pmsfl.engine.notes import label_honesty, notes_of
from pmsfl.engine.plain import PlainView
from pmsfl.engine.plan import Keys, RoundPlan, assign_depths, batch_positions, cohort_size, plan_round
from pmsfl.engine.rows import Clock
from pmsfl.engine.settings import (
    CODECS,
    DTYPES,
    MASK_CODECS,
    NATIVE,
    THETA_CODECS,
    federation_of,
    kind_of_weights,
    learning_rate,
    uses_half,
)
from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, fold, integers, turned, uniform
from pmsfl.methods import Method, make_method
from pmsfl.methods.depthfl import distillation
from pmsfl.models.context import ForwardContext, forward_context
from pmsfl.models.initial import frozen_weights, initial_scores, load_pretrained, plain_parameters
from pmsfl.models.inspect import check_forward, has_norm, smashed_shape, why_not_vectorised
from pmsfl.models.norm import StaticBN
from pmsfl.models.registry import add_exits, make_model
from pmsfl.models.split import SplitModel
from pmsfl.recipe import Recipe
from pmsfl.wire import ans
from pmsfl.wire.tensors import label_codec


class World:
    """The fixed surroundings of a run, on one device."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device | str = "cpu",
        federation: Federation | None = None,
        keys: Keys | None = None,
    ) -> None:
        """keys: of a site with a secret of its own; otherwise all come from the recipe's seed."""
        self.recipe = recipe
        self.device = torch.device(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.dtype = DTYPES[recipe.dtype]
        self.half = uses_half(recipe, self.device)
        self.federation = federation or federation_of(recipe)
        self.method: Method = make_method(self._with_damping(recipe))
        self.keys = keys or Keys.of_seed(recipe.seed, self.device)
        self.input_shape = tuple(self.federation.x.shape[1:])
        self.model: SplitModel = make_model(recipe, self.input_shape, self.federation.classes)
        if self.method.exits:
            add_exits(self.model, self.input_shape, self.federation.classes)
        self.model.to(self.device, self.dtype)
        self.layout = self.model.layout
        self._check_fit()
        # One clipped, noised score gradient per sample?
        self.noises_gradients = recipe.score_gradient_noise > 0.0
        check_claims(recipe, self.method, self.model)
        self.u_shape = recipe.labels == "u-shape"
        self.depths = self._assign_depths()
        self.mixed = len(set(self.depths)) > 1
        # With mixed depths the server's blocks are the deep clients' blocks: they must be of one kind.
        self.shares_top = self.mixed or (recipe.masked_top and self.method.trains != "weights")
        self.codec = NATIVE[recipe.dtype]
        self.cut_codec = CODECS.get(recipe.cut_codec, self.codec)
        self.gradient_codec = (
            self.cut_codec if recipe.gradient_codec == "same" else CODECS.get(recipe.gradient_codec, self.codec)
        )
        self.theta_codec = THETA_CODECS.get(recipe.theta_codec, self.codec)
        self.mask_codec = MASK_CODECS[recipe.mask_codec]
        if self.method.upload_masks > 1 and recipe.mask_codec != "packed":
            raise PmsflError(
                f"mask_codec = {recipe.mask_codec!r} with upload_masks = {recipe.upload_masks}: only single masks are "
                "coded against θ; use mask_codec = 'packed' or upload_masks = 1"
            )
        for key in ("mask_codec", "theta_codec"):
            if getattr(recipe, key) == "entropy":
                ans.library(f"{key} = 'entropy'")  # now, not at the end of the first round
        self.label_codec = label_codec(self.federation.classes)
        self._plain_views: dict[int, PlainView] = {}
        self._kept: dict[int, Tensor] = {}
        self._load_data()
        self._initialise()
        self._exit_runner = ExitRunner(self.model)

    @cached_property
    def why_looped(self) -> str | None:
        """Why clients cannot run all at once, None if they can. Found out when somebody wants to know: it takes a
        trial of the model."""
        return why_not_vectorised(self.model, self.input_shape, max(self.depths))

    def _check_fit(self) -> None:
        """PmsflError where recipe, data and model do not go together: before anything is written."""
        if self.recipe.augment != "none" and len(self.input_shape) != 3:
            raise PmsflError(
                f"augment = {self.recipe.augment!r} is for images [C, H, W]; these have shape {self.input_shape}"
            )
        check_forward(self.model, self.input_shape, self.federation.classes, f"model = {self.recipe.model!r}")
        if self.recipe.batch < 2 and any(isinstance(m, StaticBN) for m in self.model.modules()):
            raise PmsflError("batch = 1 leaves batch norm nothing to average; take at least 2, or norm = 'group'")
        cohort_size(self.recipe, sum(size > 0 for size in self.federation.sizes))  # it says what is wrong

    def _with_damping(self, recipe: Recipe) -> Recipe:
        """The recipe a method sees: a damping of 0 stands for K/N, which is known only with the data at hand."""
        if recipe.damping > 0.0:
            return recipe
        holders = sum(size > 0 for size in self.federation.sizes)
        return recipe.replace(damping=cohort_size(recipe, max(holders, 1)) / max(self.federation.clients, 1))

    def _assign_depths(self) -> tuple[int, ...]:
        r, f = self.recipe, self.federation
        if r.depths == "auto":
            depths = depths_by_budget(r, self.model, self.input_shape, f.sizes)
        else:
            depths = assign_depths(r.depths, f.clients, self.model.depth)
        if self.u_shape and max(depths) >= self.model.depth:
            raise PmsflError(
                f"labels = 'u-shape' needs a block on the server, but depths = {r.depths!r} cuts after block "
                f"{max(depths)} of {self.model.depth}; take at most {self.model.depth - 1}"
            )
        return depths

    def _load_data(self) -> None:
        f = self.federation
        self.x = torch.from_numpy(f.x).to(self.device)
        self.y = torch.from_numpy(f.y).to(self.device)
        self.public_y = self._public_labels()
        self.train_rows = [torch.from_numpy(rows).to(self.device) for rows in f.train]
        self.test_rows = [torch.from_numpy(rows).to(self.device) for rows in f.test]
        self.sizes = f.sizes
        along = (-1, *(1,) * (f.x.ndim - 2)) if f.x.ndim == 4 else (1, -1)
        scale = 255.0 if f.x.dtype.kind == "u" else 1.0
        self.mean = (torch.tensor(f.mean, dtype=self.dtype) * scale).reshape(along).to(self.device)
        self.std = (torch.tensor(f.std, dtype=self.dtype) * scale).reshape(along).to(self.device)

    def _initialise(self) -> None:
        r = self.recipe
        frozen = self._initial_weights() * r.weights_scale
        plain = plain_parameters(self.model, r.seed)
        if r.pretrained:
            frozen, plain = load_pretrained(self.model, r.pretrained, frozen, plain)
        scores = initial_scores(self.model, r.seed, r.score_init) * r.score_spread
        self.frozen = self._scaled_for_masks(frozen).to(self.device, self.dtype)
        self.initial_plain = plain.to(self.device, self.dtype)
        self.initial_scores = scores.to(self.device, self.dtype)
        drawn = uniform(self.keys.at(Stream.CONTROL), self.layout.masked_size, self.dtype)
        self.initial_shared = self.method.initial(self.frozen, self.initial_scores, drawn)

    def _initial_weights(self) -> Tensor:
        """Of every block: what stays under masks, and what trained blocks start from."""
        kind, seed = kind_of_weights(self.recipe.frozen, self.method.trains), self.recipe.seed
        if kind != "signed-masks":
            return frozen_weights(self.model, seed, kind)
        end = self._never_trained
        signed, trained = (frozen_weights(self.model, seed, k) for k in ("signed", "kaiming"))
        return torch.cat((signed[:end], trained[end:]))

    @property
    def _never_trained(self) -> int:
        """Where the weights end that a method which trains none in the bottom never trains."""
        return self.layout.masked_size if self.shares_top else self.masked_size(self.cut)

    def _scaled_for_masks(self, frozen: Tensor) -> Tensor:
        """Where no norm follows, half of the weights vanish under the masks and the signal with them, so masked
        weights get 1/√E[θ] (E[θ] = 1/2 at the start). Weights that are trained, or run without masks, do not."""
        if not self.method.masks or has_norm(self.model):
            return frozen
        end = self._never_trained
        return torch.cat((frozen[:end] * math.sqrt(2.0), frozen[end:]))

    def _public_labels(self) -> Tensor:
        """The labels that leave the clients. Randomised response is drawn once per sample, so that a label that
        goes out in every epoch costs its ε once."""
        if self.recipe.labels != "randomised":
            return self.y
        classes = self.federation.classes
        key = self.keys.at(Stream.LABELS)
        honest = label_honesty(self.recipe.label_epsilon, classes)
        keep = uniform(fold(key, 0), len(self.y), torch.float64) < honest
        other = (self.y + 1 + integers(fold(key, 1), len(self.y), classes - 1)) % classes
        return torch.where(keep, self.y, other)

    # --- parts of the model

    def sent(self, shared: Tensor, depth: int) -> Tensor:
        """The shared vector a client of this depth starts a round from [P_d]: what the server sends, or, where a
        method never sends its bottom, what everybody began with."""
        whole = self.initial_shared if self.method.uploads == "nothing" else shared
        return whole[: self.masked_size(depth)]

    @property
    def cohort(self) -> int:
        """K: how many clients a round samples."""
        return cohort_size(self.recipe, sum(size > 0 for size in self.federation.sizes))

    @property
    def cut(self) -> int:
        """The shallowest cut: the server's vectors start there."""
        return min(self.depths)

    def server_masks(self) -> bool:
        """Does the server run its blocks as the method does (masks, say), rather than as trained weights?"""
        return self.shares_top and self.method.trains != "weights"

    def masked_size(self, depth: int) -> int:
        """P_d."""
        return self.layout.masked_ends[depth]

    def plain_size(self, depth: int) -> int:
        """Q_d."""
        return self.layout.plain_ends[depth]

    @property
    def server_plain_end(self) -> int:
        """Where the server's plain parameters end: before the head, if the clients have it."""
        return self.layout.plain_ends[self.model.depth] if self.u_shape else self.layout.plain_size

    def plain_view(self, depth: int) -> PlainView:
        """Which plain parameters a client of this depth has, and what becomes of each."""
        if depth not in self._plain_views:
            self._plain_views[depth] = PlainView.of(self, depth)
        return self._plain_views[depth]

    def kept_from_start(self, depth: int) -> Tensor:
        """Coordinates that a client of this depth keeps to itself by design: bool [P_d]. Not to be written to."""
        if depth not in self._kept:
            kept = self.method.personal_at_start(self.layout.layers(depth), self.masked_size(depth))
            self._kept[depth] = kept.to(self.device)
        return self._kept[depth]

    def client_plain(self, shared: Tensor, depth: int, local: Tensor | None) -> Tensor:
        """A client's plain parameters [q]: as built, with what the server sent and what the client kept put in."""
        view = self.plain_view(depth)
        plain = self.initial_plain[view.index]
        plain[view.shared_places] = shared
        if local is not None:
            plain[view.local_places] = local
        return plain

    @cached_property
    def smashed_shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of one sample's smashed data after each block."""
        return {d: smashed_shape(self.model, self.input_shape, d) for d in range(1, self.model.depth + 1)}

    def clock(self, round_: int) -> Clock:
        """The beginning of a round."""
        r = self.recipe
        plain = learning_rate(r.lr_client, r.lr_schedule, round_, r.turns, r.rest_from)
        scores = learning_rate(r.lr_score, r.score_schedule, round_, r.turns, r.rest_from)
        server = learning_rate(r.lr_server, r.lr_schedule, round_, r.turns, r.rest_from)
        rates = (
            scores if self.method.trains == "scores" else plain,
            plain,
            scores if self.server_masks() else server,
            server,
            distillation(round_, r.turns),
        )
        times = torch.tensor([round_, 0], device=self.device)
        return Clock(*times.unbind(), *torch.tensor(rates, dtype=torch.float64, device=self.device).unbind())

    def precision(self) -> AbstractContextManager[object]:
        """The arithmetic of forward passes: bf16 for convolutions and products where the recipe wants it."""
        if not self.half:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    # --- data

    def plan(self, round_: int) -> RoundPlan:
        """Who takes part in a round."""
        return plan_round(self.recipe, self.keys, round_, self.sizes, self.depths)

    def upload_chance(self, clients: Tensor, round_: int, size: int) -> Tensor:
        """The uniform numbers that clients' uploads are drawn with: [len(clients), size]."""
        if self.recipe.upload_draw == "independent":
            return self.own_chance(clients, round_, size)
        turns = self.plan(round_).even_turns
        return self.common_chance([turns[c] for c in clients.tolist()], round_, size)

    def own_chance(self, clients: Tensor, round_: int, size: int) -> Tensor:
        """Each client's own numbers: [len(clients), size]."""
        return uniform(self.keys.client(Stream.UPLOAD, clients, round_), size, self.dtype)

    def common_chance(self, turns: Sequence[float], round_: int, size: int) -> Tensor:
        """The cohort's numbers, moved on by each of these turns: [len(turns), size]."""
        moved = torch.tensor(turns, dtype=self.dtype, device=self.device)
        return turned(uniform(self.keys.at(Stream.UPLOAD, round_), size, self.dtype), moved)

    def batch_rows(self, client: int, round_: int, steps: int) -> Tensor:
        """Rows of x for every mini-batch of a client's round: int64 [steps, batch]."""
        rows = self.train_rows[client]
        key = self.keys.client(Stream.BATCHES, client, round_)
        return rows[batch_positions(key, len(rows), steps, self.recipe.batch)]

    def inputs(self, rows: Tensor, augment_keys: Tensor | None = None, source: Tensor | None = None) -> Tensor:
        """Normalised samples of rows [...]: [..., *sample]; augmented where keys [K] are given for rows [K, B].

        source: other samples on the same scale, instead of the federation's.
        """
        x = (self.x if source is None else source)[rows]
        if augment_keys is not None and self.recipe.augment != "none":
            x = augment(x, augment_keys, flip=self.recipe.augment == "crop-flip")
        return (x.to(self.dtype) - self.mean) / self.std

    # --- forward passes

    def run_blocks(
        self, views: dict[str, Tensor], x: Tensor, first: int, last: int, dropout_keys: Tensor, vectorised: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Blocks first+1..last of A clients on their own inputs: views [A, ...], x [A, B, ...], keys [A] →
        [A, B, ...], and the logits [A, last − first, B, classes] of the classifiers after them, where there are any.
        """
        runner, prefix = (self._exit_runner, "model.") if self.method.exits else (self.model, "")
        named = {prefix + name: view for name, view in views.items()}

        def one(named: dict[str, Tensor], x: Tensor, key: Tensor) -> Any:
            with forward_context(ForwardContext(dropout_key=key)):
                return functional_call(runner, named, (x, first, last))

        with self.precision():
            out = self.over_clients(one, (named, x, dropout_keys), vectorised)
        return out if self.method.exits else (out, None)

    def run_guards(self, views: dict[str, Tensor], smashed: Tensor, vectorised: bool) -> Tensor:
        """A clients' own decoders on their smashed data [A, B, ...]: images [A, B, ...]."""
        mine = {n.removeprefix("guard."): v for n, v in views.items() if n.startswith("guard.")}

        def one(views: dict[str, Tensor], q: Tensor) -> Any:
            return functional_call(self.model.guard, views, (q,))

        with self.precision():
            images: Tensor = self.over_clients(one, (mine, smashed), vectorised)
        return images

    def over_clients(self, function: Callable[..., Any], args: Sequence[object], vectorised: bool) -> Any:
        """function applied to each client's slice of the arguments, results stacked."""
        if vectorised:
            return vmap(function)(*args)
        count = next(len(a) for a in args if isinstance(a, Tensor))
        results = [function(*(_slice(a, i) for a in args)) for i in range(count)]
        if isinstance(results[0], tuple):
            return tuple(torch.stack(part) for part in zip(*results, strict=True))
        return torch.stack(results)

    def notes(self) -> list[str]:
        """Lines a user should know: depths, promises, how batches and clients fit, a GPU that is not whole."""
        return notes_of(self)


class ExitRunner(nn.Module):
    """Gives functional_call a forward that returns the exits' logits too."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        return self.model.blocks_with_exits(x, first, last)


def _slice(argument: object, i: int) -> object:
    if isinstance(argument, dict):
        return {k: v[i] for k, v in argument.items()}
    assert isinstance(argument, Tensor)
    return argument[i]
