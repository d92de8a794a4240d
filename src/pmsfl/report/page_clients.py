"""The parts of a run's page about its clients: accuracy, labels, depth and cost of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pmsfl.engine.cost import ClientCosts, client_costs
from pmsfl.engine.plan import round_steps
from pmsfl.engine.world import World
from pmsfl.report.console import count, human, human_bytes, percent
from pmsfl.report.dataview import client_rows
from pmsfl.report.page_charts import Bar, column_chart
from pmsfl.report.page_heat import Heat, heat_map
from pmsfl.report.page_parts import ACCURACY, Facts, plural
from pmsfl.report.page_style import card, table
from pmsfl.report.page_svg import known

LISTED = 8  # labels that a client's tooltip names


def accuracy_card(f: Facts) -> str:
    """Accuracy of every client, sorted."""
    title = "Accuracy per client"
    own, shared = f.last.get("per_client") or [], f.last.get("per_client_global") or []
    order = sorted((k for k in range(len(own)) if known(own[k])), key=lambda k: (own[k], k))
    if not order:
        return card(title, "No client was evaluated.", "", "clients", wide=True)
    bars = []
    for k in order:
        owner = f" ({f.world.federation.owners[k]})" if f.world else ""
        tip = f"client {k}{owner}\nown θ: {percent(own[k])}\nglobal θ: {percent(shared[k])}"
        bars.append(Bar(str(k), own[k], shared[k], tip))
    chart = column_chart(title, bars, ACCURACY, ("own θ", "global θ"), f"client ({len(bars)}, sorted)")
    about = "Sorted by accuracy with the client's own θ; the mark is the global θ on the same test."
    return card(title, f"{about} {_better_or_worse(own, shared, order)}", chart, "clients", wide=True)


def _better_or_worse(own: Sequence[Any], shared: Sequence[Any], order: Sequence[int]) -> str:
    better = sum(own[k] > shared[k] for k in order)
    worse = sum(own[k] < shared[k] for k in order)
    equal = len(order) - better - worse
    said = f"The own θ is better for {better}, worse for {worse} and equal for {equal}."
    if equal == len(order):
        said = "Both are equal for every client."
    untested = len(own) - len(order)
    return said + (f" Clients without test samples are left out: {untested}." if untested else "")


def labels_card(f: Facts, world: World) -> str:
    """Labels by client."""
    fed = world.federation
    counts = fed.label_counts()
    names = fed.class_names or tuple(map(str, range(fed.classes)))
    tips = [f"client {k} ({fed.owners[k]}): {_holdings(mine, names)}" for k, mine in enumerate(counts.tolist())]
    columns = [str(k) for k in range(fed.clients)]
    top = float(counts.max())
    heat = Heat(counts.T.tolist(), names, columns, tips, lambda v: f"{v:.0f}", "label", "client", top, root=True)
    title = "Labels by client"
    about = "Training samples of each label; shades follow the square root."
    return card(
        title, f"{about} {fed.name}, partition {f.recipe.partition}.", heat_map(title, heat), "labels", wide=True
    )


def _holdings(counts: Sequence[int], names: Sequence[str]) -> str:
    """A client's labels, the most frequent first."""
    held = sorted((i for i in range(len(counts)) if counts[i]), key=lambda i: -counts[i])
    rows = [f"{names[i]}: {counts[i]}" for i in held[:LISTED]]
    more = [f"and {len(held) - LISTED} more labels"] if len(held) > LISTED else []
    return "\n".join((f"{sum(counts)} samples", *rows, *more))


def costs_card(f: Facts, world: World) -> str:
    """What each client holds and what a round costs it; before it a summary by depth where depths differ."""
    costs, r = client_costs(world), world.recipe
    own = f.last.get("per_client") or [None] * len(world.depths)
    element = torch.empty((), dtype=world.dtype).element_size()
    rows = []
    for c in client_rows(world.federation, world.depths):
        cost = costs.per_depth[c["depth"]]
        samples = round_steps(r, c["train"]) * r.batch  # the last batch is filled up
        work, memory = human(samples * cost.flops_per_sample, "FLOPs"), human_bytes(cost.memory_bytes(element))
        held = (count(c["train"]), count(c["test"]))
        rows.append((c["client"], c["owner"], *held, c["depth"], work, memory, percent(own[c["client"]])))
    headers = ("client", "owner", "train", "test", "depth", "work per round", "memory", "accuracy, own θ")
    about = (
        f"Depth: blocks that a client runs. Work: forward and backward of {plural(r.epochs, 'epoch')}. "
        f"Memory: to train with batches of {r.batch}."
    )
    summary = _by_depth(world, costs, own, element) if world.mixed else ""
    every = f'<div class="tall" tabindex="0">{table(headers, rows, (0, 2, 3, 4, 5, 6, 7))}</div>'
    return card("Depth and cost per client", about, summary + every, "costs", wide=True, long=True)


def _by_depth(world: World, costs: ClientCosts, own: Sequence[float | None], element: int) -> str:
    headers = ("depth", "clients", "accuracy, own θ", "FLOPs per sample", "memory")
    rows = []
    for depth, cost in costs.per_depth.items():
        mine = [v for v, d in zip(own, world.depths, strict=True) if d == depth and v is not None and known(v)]
        accuracy = percent(sum(mine) / len(mine) if mine else None)
        work, memory = human(cost.flops_per_sample, "FLOPs"), human_bytes(cost.memory_bytes(element))
        rows.append((depth, world.depths.count(depth), accuracy, work, memory))
    return table(headers, rows, range(len(headers))) + "<br>"
