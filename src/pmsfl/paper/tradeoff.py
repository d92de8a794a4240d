"""The frontier: how much of the images the strongest attack sees, against accuracy, for every defence.

A cell is a training and an attack on its result. The recommended point is the preset `private`; the variants beside
it take its stages one after another, so that its numbers stand in presets.py alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pmsfl.paper import figures, rows, table1
from pmsfl.paper.attacked import AttackPlan
from pmsfl.paper.outcome import Group, Outcome, Record
from pmsfl.paper.plan import SCALES, Row, Table, Variant
from pmsfl.paper.tradeoff_figure import draw_frontiers
from pmsfl.paper.write import (
    NOTHING,
    embed,
    markdown,
    method_of,
    row_heading,
    scale_heading,
    spread,
    write_csv,
    write_page,
)
from pmsfl.presets import PRESETS
from pmsfl.privacy.attacks import BUDGETS, Budget
from pmsfl.report.console import human_bytes
from pmsfl.report.interval import mean

EPSILONS = ("5", "2", "1", "0.5", "0.1")  # the paper's grid, of smashed data; 5 for updates
NO_PEEK = ("0.5", "5")
RECOMMENDED = table1.private.name


def _private(*keys: str) -> tuple[str, ...]:
    """Some of the recommended stages."""
    return tuple(f"{k}={PRESETS['private'][k]}" for k in keys)


NARROW = _private("cut_channels", "cut_pool")
BITS = _private("cut_codec", "gradient_codec")
DEEPER = ("model=resnet18-halves", "depths=5", "cut_channels=16")  # half a stage more than the paper's cut
BASELINES = (
    table1.splitfed,
    *(Variant(f"splitfed-dp@{e}", f"DP ε={e}", ("method=splitfed-dp", f"dp_epsilon_smashed={e}")) for e in EPSILONS),
    *(Variant(f"no-peek@{w}", f"NoPeek {w}", ("method=splitfed", f"no_peek={w}")) for w in NO_PEEK),
    table1.pm_sfl,
    Variant("threshold-mask", "threshold mask", ("method=threshold-mask",)),
)
STAGES = (
    Variant("pm-sfl+narrow", "PM-SFL, narrow cut", ("method=pm-sfl", *NARROW)),
    table1.private,
    Variant("pm-sfl@private+guard", "PM-SFL, private, guarded", ("method=pm-sfl", "preset=private", "guard=0.1")),
    Variant("splitfed@private", "SplitFed, private", ("method=splitfed", "preset=private")),
)
# ResNet-18's `private` is a deep cut of another network; these are its stages at the paper's cut, and in between.
milder = Variant(
    "pm-sfl+narrow+bits", "PM-SFL, narrow cut, few bits", ("method=pm-sfl", *NARROW, *BITS, "cut_weights=trained")
)
one_place = Variant(
    "pm-sfl@private+one-place", "PM-SFL, private, 1 × 1", ("method=pm-sfl", "preset=private", "cut_pool=4")
)
deeper = Variant("pm-sfl+narrow-deeper", "PM-SFL, narrow, deeper cut", (*milder.changes, *DEEPER))

_DEMO = ("rounds=12", "eval_every=6", "eval_masks=1", "epochs=2")
demo = replace(rows.demo, scales={"quick": _DEMO})
# Not at scale quick, whose small network has no half stages.
_REDUCED = {"reduced": ("rounds=60", "eval_every=60")}
# The paper's masks, single ones that drop weights, at every point of this row; where no preset says otherwise they lie
# over Kaiming's weights and never come to rest.
_PLAIN = ("pm-sfl", "threshold-mask", "pm-sfl+narrow", milder.name, deeper.name)
# The deep cut that single masks were attacked behind, merged once a round: what `private` was before means of masks.
_FORMER = ("model=resnet18-lean", "depths=5", "merges=1", "client_state=fresh", "score_decay=0.0")
_OF_WEIGHTS = tuple(v.name for v in (*BASELINES, *STAGES) if "method=splitfed" in v.changes)
_DEEP = (*(v.name for v in STAGES if "preset=private" in v.changes), one_place.name)
cifar100 = replace(
    rows.cifar100,
    scales={"reduced": (*_REDUCED["reduced"], *rows.ONE_MASK, *rows.SHARP)},
    note="all masks are single ones that drop weights, as in the paper; private is the preset as it was for these: a "
    "lean ResNet-18 and one merge a round; SplitFed's clients have a rate of 0.1; 0.05 is 1.4 points better",
    rates={
        **{("reduced", name): rows.SINGLE_CIFAR for name in _PLAIN},
        **{("reduced", name): _FORMER for name in _DEEP},
        **{("reduced", name): (*(_FORMER if name in _DEEP else ()), *rows.FORMER_RATE) for name in _OF_WEIGHTS},
    },
)
# The recipe as it stands, forward passes under means of masks, and for every cell the merges that `private` needs.
cifar100_means = replace(
    rows.cifar100,
    name="cifar100-means",
    label=f"{rows.cifar100.label}, means of masks",
    scales={s: (*changes, *rows.MERGED) for s, changes in {**rows.cifar100.scales, **_REDUCED}.items() if s != "quick"},
    note="forward passes run under means of 15 masks that flip signs, as in the recipe; every cell merges ten times a "
    "round; SplitFed's clients have a rate of 0.1, from no grid",
    rates={(scale, name): rows.FORMER_RATE for scale in ("reduced", "half", "full") for name in _OF_WEIGHTS},
)
MEANS = (table1.splitfed, table1.pm_sfl, *STAGES, one_place, milder)
LINES = (
    (demo, (*BASELINES, *STAGES)),
    (cifar100, (*BASELINES, *STAGES, one_place, milder, deeper)),
    (cifar100_means, MEANS),
)
FULL = AttackPlan("full", "all", 32, BUDGETS["full"])
# The strongest alone, and on the masked bottom alone: everything else takes minutes more of each cell.
DECODERS = AttackPlan("decoders", "decoder,set-decoder", 32, BUDGETS["full"], compare=False)
TOY = AttackPlan(
    "quick",
    "inversion,joint,smashed-and-update,decoder,decoder-32,set-decoder,set-decoder-32",
    16,
    Budget(steps=40, decoder_steps=60, decoder_batch=16, decoder_width=16, decoder_blocks=1),
)
ATTACKS = {"full": FULL, "half": FULL, "reduced": DECODERS, "quick": TOY}

COLUMNS = (
    *("recipe", "method", "preset", "seed", "rounds", "accuracy", "accuracy_global", "max_ssim", "max_attack"),
    *("floor", "unmasked", "cut_bytes_per_client_round", "cut_bytes_ratio", "client_flops_ratio", "mask_entropy"),
    *("seconds", "attack_seconds", "log"),
)
AT_THE_CUT = ("smashed.up", "gradient.down")


# --- figures of a cell


def cut_bytes(record: Record) -> float:
    """Bytes across the cut, both ways, of one client in one round: smashed data and their gradients."""
    return float(sum(record.result["bytes"].get(k, 0) for k in AT_THE_CUT)) / record.client_rounds


def times_fewer(record: Record) -> float:
    """How many times fewer bytes cross the cut than without stages and with fp32."""
    costs = record.attack["costs"]
    return float(costs["cut_bytes_plain"]) / float(costs["cut_bytes"])


def times_the_work(record: Record) -> float:
    """A client's FLOPs, in units of what they are at the row's own cut without stages."""
    costs = record.attack["costs"]
    return float(costs["client_flops"]) / float(costs["client_flops_plain"])


def _csv_rows(outcome: Outcome) -> Iterable[dict[str, Any]]:
    everything = ((g, r) for s in SCALES for _, groups in outcome.lines(s) for g in groups for r in g.records)
    for group, r in everything:
        yield {
            "recipe": r.recipe.name,
            "method": method_of(r, group),
            "preset": r.recipe.preset,
            "seed": r.seed,
            "rounds": r.recipe.rounds,
            "accuracy": r.value("accuracy"),
            "accuracy_global": r.value("accuracy_global"),
            "max_ssim": r.attack["max"],
            "max_attack": r.attack["max_attack"],
            "floor": r.attack["floor"],
            "unmasked": r.attack["unmasked"],
            "cut_bytes_per_client_round": round(cut_bytes(r), 1),
            "cut_bytes_ratio": round(times_fewer(r), 2),
            "client_flops_ratio": round(times_the_work(r), 4),
            "mask_entropy": r.value("mask_entropy"),
            "seconds": r.value("seconds"),
            "attack_seconds": r.attack["seconds"],
            "log": r.folder.relative_to(outcome.out).as_posix(),
        }


def write_cells(outcome: Outcome) -> Path:
    """tradeoff.csv: a line per finished cell."""
    return write_csv(outcome.out / "tradeoff.csv", COLUMNS, _csv_rows(outcome))


# --- Markdown

ABOUT = (
    "What a curious server sees against what the model is worth. Each cell was trained, then attacked: chosen images "
    "of the client with most data through its trained bottom, up to 32 times under fresh masks, other clients' images "
    "as public ones (`pmsfl attack`, same view: an upper bound). **max SSIM** is the best that any attack reached, the "
    "only figure here that says something about safety, and only about these attacks at this budget. **floor** is an "
    "image from a server that saw nothing; **unmasked** the best attack on the same bottom with every weight in its "
    "place, or, where masks flip signs, under their mean. Noise of SplitFed-DP is calibrated as the paper has it, "
    "which guarantees nothing."
)
LEGEND = (
    "Bytes across the cut are smashed data up and their gradients down, counted from encoded messages, of one client "
    "in one round; *fewer* and *client work* (FLOPs per sample) compare with the row's own network and cut, without "
    "stages, in fp32: preset private and deeper cuts have another; a guard's decoder is in the work. ± is the standard "
    "error over seeds. An empty cell was not run. **bold**: no other variant beats it in both SSIM and the accuracy "
    "that the row compares. ★: the recommended one, `-c preset=private`."
)
HEADERS = (
    *("", "accuracy, %", "global model, %", "max SSIM", "attack", "floor", "unmasked", "bytes across the cut", "fewer"),
    *("client work", "mask entropy, bit", "seeds"),
)


def write(outcome: Outcome) -> list[Path]:
    """tradeoff.md, tradeoff.csv and a figure per scale."""
    text = [f"# {outcome.table.title}", "", ABOUT, "", LEGEND, ""]
    drawn = []
    for scale in outcome.scales():
        lines = outcome.played(scale)
        made = figures.draw(outcome.out / f"tradeoff-{scale}.png", partial(draw_frontiers, lines, RECOMMENDED))
        text += [*scale_heading(scale), _how_hard(ATTACKS[scale]), "", *embed(outcome, made)]
        for row, groups in lines:
            text += [*row_heading(row, groups), *_table(groups), ""]
        drawn += made
    if not outcome.scales():
        text += NOTHING
    return [write_page(outcome, text), write_cells(outcome), *drawn]


def _how_hard(plan: AttackPlan) -> str:
    b = plan.budget
    which = "the whole suite" if plan.attacks == "all" else plan.attacks.replace(",", ", ")
    return (
        f"Attacks: {which}; {plan.images} images, {b.steps} steps of the image's optimiser, decoders of "
        f"{b.decoder_blocks} residual blocks of {b.decoder_width} channels trained for {b.decoder_steps} steps of "
        f"{b.decoder_batch} images."
    )


def _table(groups: list[Group]) -> list[str]:
    from pmsfl.paper.frontier import frontier, points

    best = {p.group.variant.name for p in frontier(points(groups))}
    return markdown(HEADERS, [_line(g, g.variant.name in best) for g in groups])


def _line(g: Group, unbeaten: bool) -> tuple[str, ...]:
    mark = " ★" if g.variant.name == RECOMMENDED else ""
    name = f"**{g.variant.label}**{mark}" if unbeaten else f"{g.variant.label}{mark}"
    if not g.records:
        return (name, *[""] * (len(HEADERS) - 1))
    return (
        name,
        spread(g.summary("accuracy")),
        spread(g.summary("accuracy_global")),
        spread(g.summary("max"), 3),
        ", ".join(sorted({str(r.attack["max_attack"]) for r in g.records})),
        spread(g.summary("floor"), 3),
        spread(g.summary("unmasked"), 3),
        human_bytes(mean([cut_bytes(r) for r in g.records])),
        f"{mean([times_fewer(r) for r in g.records]):.0f}×",
        f"{mean([times_the_work(r) for r in g.records]):.2f}×",
        spread(g.summary("mask_entropy")),
        str(len(g.records)),
    )


def row_lines(outcome: Outcome, scale: str) -> list[tuple[Row, list[Group]]]:
    """A scale's rows with their attacked variants."""
    return [(row, [g for g in groups if g.records]) for row, groups in outcome.played(scale)]


TABLE = Table(
    "tradeoff",
    "The frontier: accuracy against what an attack sees",
    "Maximum SSIM over the attacks against accuracy, for every defence; each cell is trained, then attacked.",
    LINES,
    write,
    attacks=ATTACKS,
    write_csv=write_cells,
)
