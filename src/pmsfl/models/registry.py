"""A model by its name in a recipe."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from pmsfl.errors import PmsflError
from pmsfl.models.inspect import smashed_shape
from pmsfl.models.resnet import PoolLinear, resnet18, resnet18_lean, resnet18_tapered
from pmsfl.models.small import small_cnn
from pmsfl.models.split import SplitModel
from pmsfl.models.transformer import MeanLinear, transformer
from pmsfl.privacy.cut import guard_stage, narrow_stage, widen_stage
from pmsfl.recipe import Recipe
from pmsfl.recipe_files import nearest

DEEPER = {"resnet18-lean": resnet18_lean, "resnet18-tapered": resnet18_tapered}
NAMES = ("small-cnn", "resnet18", "resnet18-halves", *DEEPER, "transformer")


def make_model(recipe: Recipe, input_shape: tuple[int, ...], classes: int) -> SplitModel:
    """The model a recipe names, for samples of `input_shape`. Its own initial values never matter to a run:
    they are replaced by keyed ones, or built under a fixed seed that the caller's generator does not see."""
    model = _build(recipe, input_shape, classes)
    _add_stages(model, recipe, input_shape)
    if recipe.norm == "group":
        model.use_group_norm()
    return model


def _add_stages(model: SplitModel, recipe: Recipe, input_shape: tuple[int, ...]) -> None:
    """The stages at the cut that a recipe asks for."""
    narrow = bool(recipe.cut_channels or recipe.cut_pool > 1 or recipe.cut_sort)
    if not narrow and not recipe.guard:
        return
    if not recipe.depths.isdigit() or not 1 <= int(recipe.depths) <= model.depth:
        raise PmsflError(
            f"cut_channels, cut_pool, cut_sort and guard need one cut for all clients, between 1 and {model.depth}; "
            f"depths = {recipe.depths!r}"
        )
    after = int(recipe.depths)
    shape = smashed_shape(model, input_shape, after)
    if narrow:
        channels = recipe.cut_channels or (shape[0] if len(shape) == 3 else shape[-1])
        with torch.random.fork_rng(devices=[]):
            down = narrow_stage(shape, channels, recipe.cut_pool, recipe.cut_sort)
            up = widen_stage(shape, channels, recipe.cut_pool)
            model.narrow_cut(after, down, up, masked=recipe.cut_weights == "masked")
    if recipe.guard:
        with torch.random.fork_rng(devices=[]):
            crossing = smashed_shape(model, input_shape, after)
            model.add_guard(after, guard_stage(crossing, input_shape, recipe.guard_width))


def add_exits(model: SplitModel, input_shape: tuple[int, ...], classes: int) -> None:
    """A pool-and-linear classifier after every block, whatever the blocks put out: maps or token sequences."""

    def make(i: int) -> nn.Module:
        shape = smashed_shape(model, input_shape, i + 1)
        if len(shape) not in (2, 3):
            raise PmsflError(
                f"method = 'depthfl' puts classifiers behind maps [C, H, W] or sequences [T, D], but block {i + 1} "
                f"puts out {shape}; move flat layers into the head, or take another method"
            )
        return PoolLinear(shape[0], classes) if len(shape) == 3 else MeanLinear(shape[-1], classes)

    model.add_exits(make)


def _build(recipe: Recipe, input_shape: tuple[int, ...], classes: int) -> SplitModel:
    wide = {"width": recipe.width} if recipe.width else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        if ":" in recipe.model:
            return _own_model(recipe.model, input_shape, classes)
        if recipe.model == "transformer":
            return transformer(input_shape, classes, **wide)
        if recipe.model not in NAMES:
            hint = nearest(recipe.model, NAMES)
            raise PmsflError(f"model = {recipe.model!r}: {hint} (or your own as package.module:function)")
        if len(input_shape) != 3:
            raise PmsflError(
                f"model = {recipe.model!r} takes images [C, H, W], these samples have shape {input_shape}; "
                "use model = 'transformer' for sequences"
            )
        if recipe.model in DEEPER:
            return DEEPER[recipe.model](input_shape[0], classes, stem_padding=recipe.stem_padding, **wide)
        if recipe.model.startswith("resnet18"):
            halves = recipe.model == "resnet18-halves"
            return resnet18(input_shape[0], classes, stem_padding=recipe.stem_padding, halves=halves, **wide)
        return small_cnn(input_shape[0], classes, **wide)


def load_function(target: str) -> Callable[..., SplitModel]:
    """The function behind 'package.module:function'; modules in the working directory are found too."""
    module_name, _, function_name = target.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as e:  # a user's module may fail in any way while it is imported
        raise PmsflError(f"model = {target!r}: cannot import {module_name!r} ({type(e).__name__}: {e})") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise PmsflError(f"model = {target!r}: {module_name} has no function {function_name!r}")
    made: Callable[..., SplitModel] = function
    return made


def _own_model(target: str, input_shape: tuple[int, ...], classes: int) -> SplitModel:
    """A user's model. Its function may take input_shape and classes, by these names, or neither."""
    function = load_function(target)
    offered = {"input_shape": input_shape, "classes": classes}
    wanted = inspect.signature(function).parameters
    try:
        model = function(**{k: v for k, v in offered.items() if k in wanted})
    except PmsflError:
        raise
    except Exception as e:
        raise PmsflError(
            f"model = {target!r} raised {type(e).__name__}: {e} (it is called with input_shape and classes, if it "
            "takes arguments of these names)"
        ) from None
    if not isinstance(model, SplitModel):
        raise PmsflError(
            f"model = {target!r} returned {type(model).__name__}; it must return pmsfl.SplitModel(blocks, head)"
        )
    return model
