"""An evaluation on the server as it happens: sites send smashed data, the top answers; tests and labels stay there.

As in a simulation (engine/evaluate.py), one pass over training data collects batch-norm statistics for each mask,
then the tests are run. Passes of sites of one depth are joined, because batch norm sees them as one batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pmsfl.deploy.checks import placed, within
from pmsfl.deploy.settings import Bounds
from pmsfl.engine.evaluate import ROWS_PER_CLIENT, Evaluation, Evaluator
from pmsfl.engine.passes import Inputs
from pmsfl.engine.protocol import Wire, count_encoded
from pmsfl.engine.state import State
from pmsfl.engine.statistics import Names, Statistics, packed
from pmsfl.engine.world import World
from pmsfl.wire.codecs import Codec
from pmsfl.wire.ledger import Ledger
from pmsfl.wire.messages import Direction, Kind, Message, WireError
from pmsfl.wire.tensors import decode_tensor, encode_tensor

GLOBAL, OWN = 0, 1
TRAIN, TEST = 0, 1


class Place(NamedTuple):
    """Where a pass belongs. lone: the client that makes it by itself, -1 where those of its depth make it together."""

    depth: int
    lone: int
    draw: int
    mode: int
    kind: int
    number: int


@dataclass
class Bundle:
    """One pass of the sites of one depth: what came, and what the top said to it."""

    parts: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    logits: dict[int, Tensor] = field(default_factory=dict)
    played: bool = False


class LiveEvaluation:
    """An evaluation under way. rows: training and test rows of every site that takes part."""

    def __init__(
        self,
        world: World,
        state: State,
        rows: Mapping[int, tuple[int, int]],
        ledger: Ledger,
        bounds: Bounds,
        personal: bool = False,
    ) -> None:
        """personal: sites may have personal coordinates that the server knows nothing of."""
        self.world, self.state, self.rows, self.ledger, self.bounds = world, state, dict(rows), ledger, bounds
        self.evaluator = Evaluator(world)
        self.wire = Wire(world)
        self.draws = self.evaluator.draws
        personal = personal or any(len(m.indices) for m in state.bank.values())
        local = any(len(world.plain_view(world.depths[c]).local_places) for c in state.bank)
        self.modes = (GLOBAL, OWN) if personal or local else (GLOBAL,)
        self.collects = bool(self.evaluator.norms) and world.recipe.statistics != "batch"
        self.joined = world.recipe.statistics == "batch"  # do the tests of several sites meet in one batch?
        self.statistics = {(t, m): Statistics(world) for t in range(self.draws) for m in self.modes}
        self.bundles: dict[Place, Bundle] = {}
        self.expected = {d: self._passes(d) for d in set(world.depths)}
        self.reports: dict[int, np.ndarray] = {}
        self.started: set[int] = set()
        self.out: dict[int, str] = {}
        self._names: dict[int, Names] = {}

    @property
    def inside(self) -> list[int]:
        """The clients that still take part."""
        return [c for c in self.rows if c not in self.out]

    def _passes(self, depth: int) -> tuple[int, int]:
        """How many passes the sites of a depth make over training data and over tests."""
        mine = [self.rows[c] for c in self.rows if self.world.depths[c] == depth]
        most = [max((r[kind] for r in mine), default=0) for kind in (TRAIN, TEST)]
        return -(-most[TRAIN] // ROWS_PER_CLIENT), -(-most[TEST] // ROWS_PER_CLIENT)

    def task(self, client: int) -> tuple[dict[str, Any], bytes]:
        """What a site needs to take part: how many masks, modes and passes, and the state it evaluates."""
        self.started.add(client)
        w, depth = self.world, self.world.depths[client]
        shared, view = w.sent(self.state.shared, depth), w.plain_view(depth)
        data = self.wire.write_start(self.state.round, client, shared, self.state.plain[view.sent])
        train, test = self.expected[depth]
        info = {"draws": self.draws, "modes": list(self.modes), "train": train if self.collects else 0, "test": test}
        return info, self._count(Direction.DOWN, data)

    # --- what comes up

    def part(self, client: int, draw: int, mode: int, kind: int, index: int, data: bytes) -> None:
        """Smashed data of one pass, and with training data the sums of the bottom's norms. WireError: not used."""
        bundle = self._bundle(client, draw, mode, kind, index)
        if bundle.played or client in bundle.parts:
            raise WireError(f"pass {index} of client {client} was sent before: replayed")
        w, depth = self.world, self.world.depths[client]
        messages = placed(data, self.wire.run, self.state.round, client, index)
        wanted = [Kind.SMASHED] + [Kind.STATISTICS] * (kind == TRAIN)
        if [m.kind for m in messages] != wanted:
            raise WireError(f"expected {', '.join(k.name for k in wanted)}")
        shape = (self._share(client, kind, index), *w.smashed_shapes[depth])
        smashed = self.wire._floats(messages[0], shape, w.cut_codec)
        sums = None
        if kind == TRAIN:
            names = self.names(depth)
            size = len(names) + 2 * sum(c for _, c in names)
            sums = decode_tensor(messages[1].payload, self._shaped(messages[1], (size,), Codec.FP64), Codec.FP64)
            if not torch.isfinite(sums).all():
                raise WireError("STATISTICS are not finite")
        bundle.parts[client] = within(smashed, self.bounds.smashed, "SMASHED"), sums
        self._count(Direction.UP, data)

    def check(self, draw: int, mode: int) -> None:
        """WireError where there is no such mask or mode."""
        if (draw, mode) not in self.statistics:
            raise WireError(f"this evaluation has no mask {draw} in mode {mode}")

    def _place(self, client: int, draw: int, mode: int, kind: int, index: int) -> Place:
        lone = client if kind == TEST and not self.joined else -1
        return Place(self.world.depths[client], lone, draw, mode, kind, index)

    def _bundle(self, client: int, draw: int, mode: int, kind: int, index: int) -> Bundle:
        passes = self.expected[self.world.depths[client]][kind]
        if not 0 <= index < passes or (kind == TRAIN and not self.collects):
            raise WireError(f"this evaluation has no pass {index}")
        if kind == TEST and self.collects and not self.collected(draw, mode):
            raise WireError("tests come after the statistics of their mask")
        return self.bundles.setdefault(self._place(client, draw, mode, kind, index), Bundle())

    def _share(self, client: int, kind: int, index: int) -> int:
        passes = self.expected[self.world.depths[client]][kind]
        return len(range(*_slice(self.rows[client][kind], passes, index).indices(self.rows[client][kind])))

    def _shaped(self, m: Message, shape: tuple[int, ...], codec: Codec) -> tuple[int, ...]:
        if m.shape != shape or m.codec != codec:
            raise WireError(f"{m.kind.name}: {m.codec.name} of {m.shape}, expected {codec.name} of {shape}")
        return shape

    def names(self, depth: int) -> Names:
        """The norms of a bottom in the order a forward pass meets them, as `packed` sums name them."""
        if depth not in self._names:
            w, e = self.world, self.evaluator
            blank = torch.zeros(2, *w.input_shape)
            rows = torch.tensor([[0, 1]])
            plain, top_plain = w.initial_plain[: w.plain_size(depth)], w.initial_plain[w.plain_size(w.cut) :]
            top = w.frozen[w.masked_size(w.cut) :]
            inputs = Inputs(w.frozen[: w.masked_size(depth)], plain, top, top_plain, rows, None, {}, {})
            w.model.train()
            with torch.no_grad():
                e.passes(depth, True, inputs, blank)
            self._names[depth] = e.passes.names[depth][0]
        return self._names[depth]

    # --- what the top does

    def _mates(self, p: Place) -> list[int]:
        """Who has rows in a pass."""
        if p.lone >= 0:
            return [p.lone] if p.lone not in self.out else []
        return [c for c in self.inside if self.world.depths[c] == p.depth and self._share(c, p.kind, p.number)]

    @torch.no_grad()
    def play_complete(self) -> bool:
        """Run the top on every pass that nobody is missing from; True where there was one."""
        complete = [
            (p, b) for p, b in self.bundles.items() if not b.played and all(c in b.parts for c in self._mates(p))
        ]
        for p, bundle in complete:
            bundle.played = True
            clients = sorted(c for c in bundle.parts if c not in self.out)
            if clients and p.kind == TRAIN:
                self._collect(p.depth, p.draw, p.mode, clients, bundle)
            elif clients:
                self._classify(p.depth, p.draw, p.mode, clients, bundle)
            bundle.parts = {c: (torch.empty(0), None) for c in bundle.parts}  # seen, and no longer needed
        return bool(complete)

    def _collect(self, depth: int, draw: int, mode: int, clients: list[int], bundle: Bundle) -> None:
        statistics = self.statistics[draw, mode]
        smashed = torch.cat([bundle.parts[c][0] for c in clients])
        rows = [s for c in clients if (s := bundle.parts[c][1]) is not None]
        statistics.add(self.names(depth), torch.stack(rows), clients)
        self.world.model.train()
        _, sums = self.evaluator.passes.top(depth, True, self._top_inputs(draw, smashed, {}), smashed.unsqueeze(0))
        names, above = packed(sums)
        statistics.add(names, above, None)

    def _classify(self, depth: int, draw: int, mode: int, clients: list[int], bundle: Bundle) -> None:
        smashed = torch.cat([bundle.parts[c][0] for c in clients])
        buffers = self.statistics[draw, mode].top()
        self.world.model.train(self.joined)
        inputs = self._top_inputs(draw, smashed, buffers)
        logits, _ = self.evaluator.passes.top(depth, False, inputs, smashed.unsqueeze(0))
        counts = [len(bundle.parts[c][0]) for c in clients]
        bundle.logits = dict(zip(clients, torch.split(logits, counts), strict=True))

    def _top_inputs(self, draw: int, smashed: Tensor, buffers: dict[str, Tensor]) -> Inputs:
        w = self.world
        nothing = torch.zeros(0, dtype=w.dtype)
        rows = torch.zeros(1, len(smashed), dtype=torch.int64)
        top_plain = self.state.plain[w.plain_size(w.cut) :]
        return Inputs(
            nothing, nothing, self.evaluator.top_weights(self.state, draw), top_plain, rows, None, {}, buffers
        )

    def collected(self, draw: int, mode: int) -> bool:
        """Are the statistics of a mask complete?"""
        groups = {self.world.depths[c] for c in self.inside}
        places = [Place(d, -1, draw, mode, TRAIN, i) for d in groups for i in range(self.expected[d][TRAIN])]
        return all(self.bundles.get(p, Bundle()).played for p in places if self._mates(p))

    # --- what goes down

    def statistics_for(self, client: int, draw: int, mode: int) -> bytes:
        """Means and variances of a bottom's norms, one after another."""
        found = self.statistics[draw, mode].buffers(None)
        names = self.names(self.world.depths[client])
        parts = [found[f"{n}.{part}"] for n, _ in names for part in ("running_mean", "running_var")]
        vector = torch.cat(parts) if parts else torch.zeros(0, dtype=self.world.dtype)
        return self._message(Kind.STATISTICS, vector, self.world.codec, client, 0)

    def logits_for(self, client: int, draw: int, mode: int, index: int) -> bytes | None:
        """The top's answer to a test pass; None where others are still missing from it."""
        bundle = self.bundles[self._place(client, draw, mode, TEST, index)]
        logits = bundle.logits.pop(client, None)
        if logits is None:
            return None
        return self._message(Kind.EVALUATION, logits.to(self.world.dtype), self.world.codec, client, index)

    def _message(self, kind: Kind, t: Tensor, codec: Codec, client: int, step: int) -> bytes:
        m = Message(kind, codec, tuple(t.shape), encode_tensor(t, codec), self.wire.run, self.state.round, client, step)
        return self._count(Direction.DOWN, m.encode())

    def _count(self, direction: Direction, data: bytes) -> bytes:
        return count_encoded(self.ledger, direction, data)

    # --- the result

    def report(self, client: int, right: Any) -> None:
        """How many tests were right, [draws][modes]."""
        tests = self.rows[client][TEST]
        whole = isinstance(right, list) and len(right) == self.draws
        if not whole or any(
            not isinstance(row, list)
            or len(row) != len(self.modes)
            or any(type(n) is not int or not 0 <= n <= tests for n in row)
            for row in right
        ):
            raise WireError(f"the report must have {self.draws} x {len(self.modes)} counts in 0..{tests}")
        self.reports[client] = np.array(right, dtype=np.float64)

    def result(self) -> Evaluation:
        """Accuracies of those that reported; NaN for the others. Nobody holds a global test."""
        n = len(self.world.depths)
        own, shared = np.full((self.draws, n), math.nan), np.full((self.draws, n), math.nan)
        sizes = np.zeros(n)
        for c, right in self.reports.items():
            if tests := self.rows[c][TEST]:
                shared[:, c], own[:, c] = 100.0 * right[:, 0] / tests, 100.0 * right[:, -1] / tests
                sizes[c] = tests
        tested = sizes > 0
        mean = own.mean(0)
        any_ = bool(tested.any())
        return Evaluation(
            mean,
            shared.mean(0),
            float(mean[tested].mean()) if any_ else math.nan,
            float((mean[tested] * sizes[tested]).sum() / sizes.sum()) if any_ else math.nan,
            math.nan,
            float(own[:, tested].mean(1).std()) if any_ else math.nan,
        )


def _slice(rows: int, passes: int, index: int) -> slice:
    """Which of a site's rows belong to a pass: equal shares, as in a simulation."""
    share = -(-rows // max(passes, 1))
    return slice(index * share, (index + 1) * share)


def part_of(rows: Tensor, passes: int, index: int) -> Tensor:
    """A site's rows of one pass."""
    return rows[_slice(len(rows), passes, index)]
