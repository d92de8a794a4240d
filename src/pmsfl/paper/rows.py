"""The federations of the evaluation, and what each scale makes of them.

full: the budget of our own tables. half: half of its rounds. reduced: a small network and less of everything, with
enough rounds to compare methods, three to ten minutes a cell on a CPU core; writers and persons only. quick: minutes on
two CPU cores; a much smaller model, fewer clients, fewer rounds. It shows that everything works and never what a method
is worth. Within a scale every method of a row has the same budget. The paper's own counts are 1000 rounds (CIFAR-100),
500 (FEMNIST), 100 (HAR).
"""

from __future__ import annotations

from dataclasses import replace

from pmsfl.paper.plan import GLOBAL, Data, Place, Row

# What the cells that come with the project were played on: the samples, and how seeds 0, 1 and 2 dealt them.
_OUR_SPLIT = (
    "d36801d66eeca0deab799a2b28522d924d3d414cd5da0ecde0b60cdda0d2cbbf",
    "33ee0eac2c893909eddccd2940a2c912146204c2707de9e53894a2d9bbea1cde",
    "682d6689286cea01eb83427dc848432fb2fb26dc91dfdb1fa6b8dfe85c68db56",
    "346e02f89f61de6a15a22277b34e252d96ab36980df063989aec19f58e9b486c",
)
CIFAR100 = Data(
    (Place("cifar-100-python"),),
    "cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked",
    dict.fromkeys(
        _OUR_SPLIT,
        "cells were played on a split of our own of CIFAR-100's 60 000 images, 100 of each class for testing, because "
        "the official one was not at hand: figures of the official tests may differ a little",
    ),
)
FEMNIST = Data(
    (Place("femnist"), Place("femnist.npz", ("data=npz",))),
    "LEAF's femnist (train/*.json, test/*.json) or an .npz with x, y and writer",
)
UNIPEN = Data(
    (Place("unipen62_by_writer.npz"),),
    "UNIPEN's characters as 28x28 images: an .npz with x (uint8), y (0 to 61) and writer",
)
RADAR = Data(
    (Place("radar.npz"), Place("radar_uwb_by_person.npz")),
    "IR-UWB radar recordings (IURHA2023): an .npz with x, y, person and window",
)
MMHAR = Data(
    (Place("mmhar.npz"),),
    "it with `pmsfl simulate mmhar DIR`, or from recordings with `pmsfl prepare mmhar RAWDIR DIR/mmhar.npz`",
)
SONICHAR = Data(
    (Place("sonichar.npz"),),
    "it with `pmsfl simulate sonichar DIR`, or from recordings with `pmsfl prepare sonichar RAWDIR DIR/sonichar.npz`",
)

_CIFAR = {
    "full": ("rounds=300", "eval_every=50"),
    "half": ("rounds=150", "eval_every=50"),
    "quick": (
        *("rounds=10", "eval_every=5", "eval_masks=1", "model=small-cnn", "width=8"),
        *("clients=20", "cohort=5", "epochs=2", "batch=16", "max_samples=100"),
    ),
}
_WRITERS = {
    "full": ("rounds=300", "eval_every=50"),
    "half": ("rounds=150", "eval_every=50"),
    "reduced": (
        *("rounds=60", "eval_every=20", "model=small-cnn", "clients=40", "cohort=10", "epochs=2"),
        *("max_samples=300", "test_fraction=0.2"),
    ),
    "quick": (
        *("rounds=10", "eval_every=5", "eval_masks=1", "model=small-cnn", "width=8"),
        *("clients=20", "cohort=5", "epochs=2", "batch=16", "max_samples=100"),
    ),
}
# All 190 writers, a tenth of them in a round, with the small network.
_EVERY_WRITER = {
    "reduced": (
        *("rounds=100", "eval_every=50", "eval_masks=1", "model=small-cnn", "epochs=2"),
        *("max_samples=300", "test_fraction=0.2"),
    ),
}
# The small network's rate of the scores, and of SplitFed's clients, are each from a small grid (seed 0;
# benchmarks/records/2026-11-18_several-masks_2-cpu-cores, 2026-11-17_frozen-signs_2-cpu-cores).
_UNIPEN = _WRITERS | {"reduced": (*_WRITERS["reduced"], "lr_score=0.1")}
_GRID = "at scale reduced the rates of PM-SFL's scores and of SplitFed's clients are each from a small grid (seed 0)"
_GRIDS = "at scale reduced every rate that rates.md has is the best of three or within a point of it (seed 0)"
# Single masks, the paper's, and their settings as they were tuned: they want less chance in forward passes.
SINGLE = "pm-sfl-single"
ONE_MASK = ("mask_act=drop", "forward_masks=1", "upload_masks=1")
SHARP = ("mask_sharpness=16", "score_spread=3", "lr_score=0.1")
_NEVER_AT_REST = ("aggregate=sampled", "score_schedule=constant")
SINGLE_CIFAR_MIXED = (*SHARP, "frozen=kaiming")
SINGLE_CIFAR = (*SINGLE_CIFAR_MIXED, *_NEVER_AT_REST)
SINGLE_WRITERS = ("mask_sharpness=4", "lr_score=0.1", "frozen=kaiming", *_NEVER_AT_REST)
SINGLE_WRITERS_MIXED = ("mask_sharpness=4", "lr_score=0.3")
_PERSONS = {
    "full": ("rounds=100", "eval_every=10"),
    "half": ("rounds=50", "eval_every=10"),
    "reduced": ("rounds=40", "eval_every=10", "width=64", "epochs=2"),
    "quick": (
        *("rounds=4", "eval_every=2", "eval_masks=1", "width=32"),
        *("epochs=2", "batch=16", "max_samples=40"),
    ),
}
_DIGITS = {"quick": ("rounds=10", "eval_every=5", "eval_masks=1", "epochs=2")}
_STAND_IN = "UNIPEN's 62 classes by writer stand in for FEMNIST: the paper's figures are of other data"
_SIMULATED = "the paper's recordings are private, ours are simulated: the paper's figures are of other data"

demo = Row("demo", "demo", "digits by writer (embedded), same depths", _DIGITS)
demo_depths = Row(
    "demo-depths",
    "demo",
    "digits by writer (embedded), depths 1:1:1:1",
    {"quick": (*_DIGITS["quick"], "depths=1:1:1:1")},
)
cifar100 = Row(
    "cifar100",
    "cifar100",
    "CIFAR-100, Dirichlet(0.3), same depths",
    _CIFAR,
    CIFAR100,
    "cifar100",
    note=(
        "single masks and frozen controls lie over Kaiming's normal weights, learned masks otherwise over signs; the "
        "rates of PM-SFL's scores and of SplitFed's clients are each the best of four or five at 60 rounds (seed 0), "
        "SplitFed-PM's the best of three, the frozen mask's within 0.3 points of it, Standalone's 2.4 below (rates.md)"
    ),
    rates={
        (scale, name): settings
        for scale in _CIFAR
        for name, settings in (
            (SINGLE, SINGLE_CIFAR),
            ("frozen-mask", ("frozen=kaiming", "score_spread=3")),
            ("dense-frozen", ("frozen=kaiming",)),
        )
    },
    measure=GLOBAL,
)
# A cohort that merges ten times in its round, with optimisers that go on: what the preset `private` has, for all alike.
MERGED = ("merges=10", "client_state=stay")
FORMER_RATE = ("lr_client=0.1",)  # of SplitFed's clients, before its grid
cifar100_merged = replace(
    cifar100,
    name="cifar100-merged",
    label=f"{cifar100.label}, ten merges a round",
    scales={s: (*cifar100.scales[s], *MERGED) for s in ("full", "half")},
    published="",
    # SplitFed's rate of the recipe was chosen with one merge a round.
    rates={**cifar100.rates, **{(scale, "splitfed"): FORMER_RATE for scale in ("full", "half")}},
    note="every method merges ten times a round, with as many steps; private is the defended preset at the same "
    "budget; SplitFed's clients have a rate of 0.1, from no grid",
)
cifar100_depths = Row(
    "cifar100-depths",
    "cifar100-depths",
    "CIFAR-100, Dirichlet(0.3), depths 1:1:1:1",
    _CIFAR,
    CIFAR100,
    "cifar100-depths",
    note=(
        "single masks lie over Kaiming's normal weights, other masks over signs of one size; the rates of SplitFed's "
        "clients and of DepthFL's scores are the best of three at 60 rounds (seed 0), PM-SFL's of two, that without "
        "compensation within 0.4 points of the best of three (rates.md), single masks' from no grid at these depths"
    ),
    rates={(scale, SINGLE): SINGLE_CIFAR_MIXED for scale in _CIFAR},
    measure=GLOBAL,
)
femnist = Row("femnist", "femnist", "FEMNIST by writer, same depths", _WRITERS, FEMNIST, "femnist")
femnist_depths = Row(
    "femnist-depths",
    "femnist-depths",
    "FEMNIST by writer, depths 1:1:1:1",
    _WRITERS,
    FEMNIST,
    "femnist-depths",
)
unipen = Row(
    "unipen",
    "unipen",
    "UNIPEN-62 by writer, same depths",
    _UNIPEN,
    UNIPEN,
    "femnist",
    _STAND_IN,
    _GRID,
    {
        **{("reduced", variant): ("lr_client=0.2",) for variant in ("splitfed", "splitfed-own-norms")},
        **{(scale, SINGLE): SINGLE_WRITERS for scale in _UNIPEN},
    },
)
unipen_depths = Row(
    "unipen-depths",
    "unipen-depths",
    "UNIPEN-62 by writer, depths 1:1:1:1",
    _UNIPEN,
    UNIPEN,
    "femnist-depths",
    _STAND_IN,
    _GRID,
    {
        ("reduced", "splitfed"): ("lr_client=0.4",),
        **{(scale, SINGLE): SINGLE_WRITERS_MIXED for scale in _UNIPEN},
    },
)
unipen_every = replace(
    unipen,
    note=_GRIDS,
    name="unipen-190",
    label="UNIPEN-62, all 190 writers, same depths",
    scales={s: (*changes, "lr_score=0.1") for s, changes in _EVERY_WRITER.items()},
    # A writer takes part ten times in all, so that the personal set has to grow faster than in ten times.
    rates={
        **unipen.rates,
        ("reduced", "lg-fedavg"): ("lr_score=0.03",),
        ("reduced", "pm-sfl"): ("growth_steps=4",),
    },
)
unipen_every_depths = replace(
    unipen_depths,
    note=_GRIDS,
    name="unipen-190-depths",
    label="UNIPEN-62, all 190 writers, depths 1:1:1:1",
    scales={s: (*changes, "lr_score=0.1") for s, changes in _EVERY_WRITER.items()},
)
# What is not the recipe's: the best of three, or within a point of it with seed 0 (rates.md). LG-FedAvg's on radar is
# ahead over three seeds.
_SINGLE_PERSONS = ("mask_sharpness=4",)
_PERSONS_RATES = {
    **{("reduced", variant): ("lr_client=3e-3",) for variant in ("splitfed", "splitfed-own-norms")},
    ("reduced", "lg-fedavg"): ("lr_score=0.03",),
    **{(scale, SINGLE): _SINGLE_PERSONS for scale in _PERSONS},
}
_BEST_OF_THREE = f"{_GRIDS}, and single masks and norms that are not merged have their method's"
_PERSONS_GRID = f"{_BEST_OF_THREE}; at other scales every rate is the recipe's, from no grid"
mmhar = Row(
    "mmhar",
    "mmhar",
    "mmHAR by subject, same depths",
    _PERSONS,
    MMHAR,
    "mmhar",
    _SIMULATED,
    _PERSONS_GRID,
    _PERSONS_RATES,
)
sonichar = Row(
    "sonichar",
    "sonichar",
    "sonicHAR by subject, same depths",
    _PERSONS,
    SONICHAR,
    "sonichar",
    _SIMULATED,
    _PERSONS_GRID,
    _PERSONS_RATES | {("reduced", "standalone"): ("lr_client=3e-4",)},
)
_NARROW = ("lr_client=1e-3", "lr_score=0.1")  # the recipe's own are the whole network's
radar = Row(
    "radar",
    "radar",
    "UWB radar by person (real), same depths",
    {s: (*changes, *(_NARROW if s in ("reduced", "quick") else ())) for s, changes in _PERSONS.items()},
    RADAR,
    note=(
        f"{_BEST_OF_THREE}; at full and half those of Standalone, SplitFed, SplitFed-PM, LG-FedAvg and PM-SFL are the "
        "best of four (SplitFed-PM: of three) each with 40 rounds (seed 0; rates.md and the record that it names), the "
        "others' are the recipe's, from no grid"
    ),
    rates=_PERSONS_RATES,
)


def with_client_statistics(row: Row, personal: float) -> Row:
    """The row with batch-norm statistics of each client's own, which flatter personal models, and a share of the mask
    personal: with statistics over all clients that costs accuracy, with a client's own it pays off."""
    ours = ("statistics=client", f"personal_ratio={personal}")
    changed = {s: (*changes, *ours) for s, changes in row.scales.items()}
    remark = "batch-norm statistics are each client's own, for every cell of this row alike"
    return replace(
        row,
        name=f"{row.name}-own-statistics",
        label=f"{row.label}, each client's own statistics",
        scales=changed,
        remark=f"{row.remark}; {remark}" if row.remark else remark,
    )


def with_single_masks(row: Row, settings: tuple[str, ...]) -> Row:
    """The row at scale reduced with the paper's masks everywhere, as they were tuned."""
    changes = {"reduced": (*ONE_MASK, *settings)}
    scales = {s: (*kept, *changes.get(s, ())) for s, kept in row.scales.items()}
    return replace(row, scales=scales, note="at scale reduced all masks are single ones that drop weights", rates={})


# Half of the mask, as in the paper, costs nothing where two blocks are masked; where all are, a tenth is worth six
# points more than half (benchmarks/records/2026-11-16_masks-at-rest_2-cpu-cores).
SHALLOW, DEEP = 0.5, 0.1
demo_own = with_client_statistics(demo, SHALLOW)
femnist_own, unipen_own = with_client_statistics(femnist, SHALLOW), with_client_statistics(unipen, SHALLOW)
femnist_depths_own = with_client_statistics(femnist_depths, DEEP)
unipen_depths_own = with_client_statistics(unipen_depths, DEEP)
unipen_every_own = with_client_statistics(unipen_every, SHALLOW)
unipen_every_depths_own = with_client_statistics(unipen_every_depths, DEEP)
