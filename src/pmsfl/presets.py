"""Presets: what a paper or a code base did, laid over a recipe's own values. `best` is the recipe as it stands."""

from __future__ import annotations

from typing import Any

PAPER_RATIO = 0.5  # the paper's personal ratio, in rows by writer and by person
FOR_MAPS = ("cut_pool",)  # keys of `private` that sequences have no use for
# `private` for ResNet-18 cut at one depth: deeper for 1.24 times the work, and only 2 × 2 places of an image cross.
# Measured on CIFAR-100 (docs/cut.md): 0.33 to the whole suite, where `private`'s other numbers leave it 0.75.
# A deep bottom needs masks that can do what weights can, means of several that flip signs, and more merges than one in
# five epochs, with optimisers that outlast them: 69.7 % after 300 rounds. Without the merges the cut has 63.1, with
# single masks that drop weights 53.6 (both with the lean network, cut after block 5).
PRIVATE_RESNET: dict[str, Any] = {
    "model": "resnet18-tapered",
    "depths": "7",
    "cut_channels": 64,
    "cut_weights": "trained",
    "frozen": "signed-masks",
    "mask_act": "flip",
    "forward_masks": 15,
    "upload_masks": 255,
    "merges": 10,
    "client_state": "stay",
    "mask_sharpness": 1.0,
    "score_spread": 1.0,
    "aggregate": "settled",
    "lr_score": 0.01,
    "score_decay": 0.02,
    "score_schedule": "late",
}


def overlay(preset: str, values: dict[str, Any]) -> dict[str, Any]:
    """A recipe's values with a preset laid over them."""
    laid = values | PRESETS[preset]
    owners = values.get("partition", "owner") == "owner"
    if preset == "paper" and owners:
        laid["personal_ratio"] = PAPER_RATIO
    if preset == "authors" and owners:
        laid["test_split"] = values.get("test_split", "matched")  # an owner's test rows are the owner's own
    if preset == "private" and values.get("model") == "resnet18" and str(values.get("depths", "2")).isdecimal():
        laid |= PRIVATE_RESNET
    if preset == "private" and values.get("model") == "transformer":
        laid = {k: v for k, v in laid.items() if k not in FOR_MAPS} | {k: values[k] for k in FOR_MAPS if k in values}
    return laid


_ADAM: dict[str, Any] = {
    "lr_score": 1e-3,
    "score_schedule": "constant",
    "client_optimiser": "adam",
    "lr_client": 1e-3,
    "server_optimiser": "adam",
    "lr_server": 1e-3,
    "lr_schedule": "constant",
    "weight_decay": 0.0,
}

# What the recipes improve for every method, as others have it.
_AS_PUBLISHED: dict[str, Any] = {
    "union_rate": "constant",
    "weights_scale": 1.0,
    "eval_mask": "sampled",
    "score_spread": 1.0,
    "mask_sharpness": 1.0,
    "upload_draw": "independent",
    "mask_act": "drop",
    "forward_masks": 1,
    "upload_masks": 1,
}

PRESETS: dict[str, dict[str, Any]] = {
    "best": {"preset": "best"},
    # The paper's text: Adam at 1e-3 for everything, Eq. 4's estimator, Eq. 5's plain mean.
    "paper": {
        "preset": "paper",
        **_AS_PUBLISHED,
        "estimator": "paper",
        "frozen": "kaiming",
        "aggregate": "sampled",
        **_ADAM,
        "schedule": "parallel",
    },
    # The authors' public code: one server step per client batch, a hidden damping of K/N, unpadded stem, test
    # labels drawn apart from training labels, no personalisation. Its running-average batch norm is not kept:
    # every method here is evaluated with the same statistics.
    "authors": {
        "preset": "authors",
        **_AS_PUBLISHED,
        "estimator": "paper",
        "frozen": "kaiming",
        "aggregate": "damped",
        "damping": 0.0,  # K/N: stale clients weigh as much as the sampled ones
        **_ADAM,
        "schedule": "sequential",
        "stem_padding": 0,
        "test_split": "independent",
        "personal_ratio": 0.0,
        "compensation": False,
    },
    # FedPM: signed-constant weights, Beta posterior with a prior that is reset, scores at 0.1.
    "fedpm": {
        "preset": "fedpm",
        **_AS_PUBLISHED,
        "estimator": "paper",
        "aggregate": "beta",
        "frozen": "signed",
        "lr_score": 0.1,
        "score_schedule": "constant",
        "personal_ratio": 0.0,
    },
    # The recommended stages at the cut: little crosses it. A guard costs accuracy and hides next to nothing.
    "private": {
        "preset": "private",
        "cut_channels": 8,
        "cut_pool": 2,
        "cut_codec": "int4",
        "gradient_codec": "int8",
    },
}
