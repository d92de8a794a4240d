"""The parts of a run's page that come from its metrics and its recipe, each a card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

from pmsfl.engine.world import World
from pmsfl.recipe import Recipe
from pmsfl.report.console import MISSING, human_bytes, human_seconds, number, percent
from pmsfl.report.listing import observations_line, privacy_line, troubles
from pmsfl.report.page_charts import Axis, Series, line_chart, stacked_rows
from pmsfl.report.page_heat import Heat, heat_map
from pmsfl.report.page_style import card, tiles
from pmsfl.report.page_svg import COLOURS, escape, known

COLUMNS = 120  # of a heat map over rounds
LINES = COLOURS - 1  # layers that a line chart can hold beside their mean

Metrics = list[dict[str, Any]]

ACCURACIES = (
    ("accuracy", "own θ"),
    ("accuracy_local_global", "global θ, clients' tests"),
    ("accuracy_global", "global θ, global test"),
)


@dataclass(frozen=True)
class Facts:
    """What a page is made from. world: None where the data cannot be had any more, `why` then says so."""

    recipe: Recipe
    metrics: Metrics
    sent: dict[str, int]
    result: dict[str, Any] | None
    versions: dict[str, Any]
    world: World | None
    why: str

    @property
    def evaluated(self) -> Metrics:
        """The rounds that were evaluated."""
        return [m for m in self.metrics if "evaluation" in m]

    @property
    def last(self) -> dict[str, Any]:
        """The newest evaluation, empty before the first."""
        found = self.evaluated
        return dict(found[-1]["evaluation"]) if found else {}


# --- axes


def rounds_axis(rounds: int) -> Axis:
    """Rounds, from 1 on."""
    return Axis("round", lambda v: f"{v:.0f}", 1.0, float(max(rounds, 1)))


ACCURACY = Axis("accuracy (%)", lambda v: f"{v:.1f}".removesuffix(".0"), least=10.0, ceiling=100.0)
LOSS = Axis("training loss (nats per sample)", lambda v: f"{v:.3g}", low=0.0)
ENTROPY = Axis("bits per mask coordinate", lambda v: f"{v:.2f}", 0.0, 1.0)


# --- headline


def headline(f: Facts) -> str:
    """Tiles with what the run reached and what it cost."""
    last, line = f.last, f.metrics[-1]
    reached = (e["evaluation"]["accuracy"] for e in f.evaluated)
    best = max((a for a in reached if a is not None), default=math.nan)
    entropy = line.get("mask_entropy")
    items = [
        ("Accuracy, own θ", percent(last.get("accuracy")), _about_accuracy(last, best)),
        ("Global θ", percent(last.get("accuracy_local_global")), "on the clients' own tests"),
        ("Global model", percent(last.get("accuracy_global")), "on the global test"),
        ("Mask entropy", MISSING if entropy is None else f"{number(entropy)} bit", "of 1 bit, last round"),
        ("On the wire", human_bytes(f.sent.get("total", 0)), "both directions, all rounds"),
        ("Time", human_seconds(line.get("seconds")), f"for {plural(line['round'], 'round')}"),
    ]
    return tiles(items) + "".join(f'<p class="soft">{escape(text)}</p>' for text in _exposure(f))


def _exposure(f: Facts) -> list[str]:
    """How often records were seen, what is wrong with the masks, and the ε spent: a line each, where there is one."""
    seen, spent = observations_line(f.metrics[-1]), privacy_line(f.metrics)
    lines = [f"Warning: {text}" for text in troubles(f.recipe, f.metrics)]
    lines += [f"The server saw {seen}."] if seen else []
    return lines + ([f"Guaranteed: {spent}"] if spent else [])


def plural(n: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _about_accuracy(last: dict[str, Any], best: float) -> str:
    deviation = last.get("deviation")
    spread = f"± {deviation:.1f} over masks; " if deviation and known(deviation) else ""
    return f"mean of clients; {spread}best {percent(best)}"


# --- over rounds


def accuracy_card(f: Facts) -> str:
    """Three accuracies over the rounds."""
    title = "Accuracy over rounds"
    if not f.evaluated:
        return card(title, "No round was evaluated yet.", "", "accuracy")
    series = [
        Series(name, [(float(m["round"]), m["evaluation"].get(key)) for m in f.evaluated], i, strong=i == 0)
        for i, (key, name) in enumerate(ACCURACIES)
    ]
    about = "Each client with its own θ, the global θ on the same tests, and the global model on the global test."
    return card(title, about, line_chart(title, series, ACCURACY, rounds_axis(f.metrics[-1]["round"])), "accuracy")


def loss_card(f: Facts) -> str:
    """The training loss over the rounds."""
    title = "Training loss over rounds"
    series = [Series("loss", [(float(m["round"]), m.get("loss")) for m in f.metrics], 0, strong=True)]
    about = "Cross-entropy, mean over the samples of a round."
    return card(title, about, line_chart(title, series, LOSS, rounds_axis(f.metrics[-1]["round"])), "loss")


def entropy_card(f: Facts) -> str:
    """Entropy of the sampled masks: the mean, and a line per layer where they are few."""
    title = "Mask entropy over rounds"
    layers = _layers(f.metrics)
    mean = [(float(m["round"]), m.get("mask_entropy")) for m in f.metrics]
    if not layers and not any(known(v) for _, v in mean):
        said = f"The method {f.recipe.method} samples no masks, so there is no entropy to show."
        return card(title, said, "", "entropy")
    series = [Series("mean", mean, 0, strong=True)]
    for i, name in enumerate(layers if len(layers) <= LINES else ()):
        bits = [(float(m["round"]), (m.get("entropy_per_layer") or {}).get(name)) for m in f.metrics]
        series.append(Series(name, bits, i + 1))
    about = "1 bit: every entry is a fair coin toss. 0 bit: the mask is always the same and hides nothing."
    if (masks := f.recipe.forward_masks) > 1:
        about = (
            f"Of means of {masks} masks: chance decides between two neighbours 1/{masks} apart, however high this is."
        )
    chart = line_chart(title, series, ENTROPY, rounds_axis(f.metrics[-1]["round"]))
    return card(title, about, chart, "entropy")


def layers_cards(f: Facts) -> list[str]:
    """Entropy by layer and round as a heat map, where there are too many layers for lines."""
    layers, title = _layers(f.metrics), "Mask entropy per layer and round"
    if len(layers) <= LINES:
        return []
    chart = heat_map(title, _entropy_heat(f.metrics, layers))
    return [card(title, "In bits per coordinate: the lighter, the more predictable.", chart, "layers", wide=True)]


def _layers(metrics: Metrics) -> list[str]:
    """The masked layers, in the order of the model."""
    return list(dict.fromkeys(name for m in metrics for name in m.get("entropy_per_layer") or {}))


def _entropy_heat(metrics: Metrics, layers: Sequence[str]) -> Heat:
    shown = metrics[:: -(-len(metrics) // COLUMNS)]
    values = [[(m.get("entropy_per_layer") or {}).get(name) for m in shown] for name in layers]
    tips = []
    for m in shown:
        per_layer = m.get("entropy_per_layer") or {}
        tips.append(
            "\n".join([f"round {m['round']}", *(f"{n}: {per_layer[n]:.3f} bit" for n in layers if n in per_layer)])
        )
    columns = [str(m["round"]) for m in shown]
    return Heat(values, layers, columns, tips, lambda v: f"{v:.2f}", "layer", "round", 1.0)


# --- bytes


def bytes_card(f: Facts) -> str:
    """What travelled, by kind of message and by direction."""
    kinds = sorted({key.partition(".")[0] for key in f.sent if key != "total"})
    rows = [(kind, (float(f.sent.get(f"{kind}.up", 0)), float(f.sent.get(f"{kind}.down", 0)))) for kind in kinds]
    rows.sort(key=lambda row: -sum(row[1]))
    up, down = (sum(values[i] for _, values in rows) for i in (0, 1))
    both = [("all up", (up, 0.0)), ("all down", (0.0, down))]
    title = "Bytes on the wire"
    about = f"{human_bytes(up)} from clients to server, {human_bytes(down)} back, over all rounds and clients."
    charts = stacked_rows(f"{title} by message kind", rows, ("up", "down"), human_bytes)
    return card(
        title,
        about,
        charts + stacked_rows(f"{title} by direction", both, ("up", "down"), human_bytes, keyed=False),
        "bytes",
    )


# --- recipe


def recipe_details(recipe: Recipe) -> str:
    """Every knob by section; those that differ from their default are bold."""
    sections: dict[str, list[Field[Any]]] = {}
    for f in fields(recipe):
        sections.setdefault(f.metadata["section"], []).append(f)
    parts = []
    for section, mine in sections.items():
        rows = "".join(_knob(recipe, f) for f in mine)
        parts.append(f"<h3>{escape(section)}</h3><div class='scroll'><table><tbody>{rows}</tbody></table></div>")
    return (
        f'<details id="recipe"><summary>Recipe: every knob (bold: not its default)</summary>{"".join(parts)}</details>'
    )


def _knob(recipe: Recipe, f: Field[Any]) -> str:
    value = getattr(recipe, f.name)
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    css = ' class="set"' if value != f.default else ""
    row = f'<th scope="row">{escape(f.name)}</th><td><code>{escape(shown)}</code></td>'
    return f'<tr{css}>{row}<td class="soft">{escape(f.metadata["doc"])}</td></tr>'


def versions_details(versions: dict[str, Any]) -> str:
    """What the figures depend on besides the recipe."""
    rows = "".join(
        f"<tr><th scope='row'>{escape(k)}</th><td><code>{escape(v)}</code></td></tr>" for k, v in versions.items()
    )
    return f'<details id="versions"><summary>Versions</summary><table><tbody>{rows}</tbody></table></details>'
