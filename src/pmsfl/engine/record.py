"""Recorded steps: on a GPU a step is compiled once, captured as a CUDA graph for every number of clients still at
work, and replayed. The host does nothing in between but say which graph is next. Where depths differ, hundreds of
combinations come up, many for a few steps: a graph of more clients stands in, those who are done counting for nothing,
until that has cost as much as a capture.

Graphs read and write fixed memory, so a round's tensors are copied in before its first step, and the round goes on
there. Depths sit in fixed slots: one whose clients are all done is played by a spare row that counts for nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pmsfl.engine.client import Bottoms
from pmsfl.engine.compile import CannotCompile, Compiled, Lower, compile_step, inductor
from pmsfl.engine.plan import longest_turn
from pmsfl.engine.replay import WARM_UP, capture
from pmsfl.engine.rows import ClientRows, Clock, ServerRows, cloned, rebuilt, tensors
from pmsfl.engine.server import Batches, Server
from pmsfl.engine.world import World
from pmsfl.models.context import explicit_layers

UnionStep = Callable[[Server, dict[int, Bottoms], Batches | None], None]
Replay = Callable[[], object]
Signature = tuple[int, ...]  # how many clients of each depth
TRIED = 4  # of cuDNN's kernels for a shape, its likeliest first: each try costs time before the first step
MOST_GRAPHS = 512  # with mixed depths there may be many; the oldest goes
# Mixed depths: a client too many costs 0.4 ms of a step, a capture 60 ms, and serves again (ResNet-18, H200).
ROWS_FOR_A_CAPTURE = 60
LEAST_STEPS = 1024  # that there is room for: enough for most federations, and little beside a client's parameters


@dataclass
class StepTensors:
    """Everything a step moves, and who of it is real."""

    clock: Clock
    server: ServerRows
    groups: dict[int, ClientRows]
    present: dict[int, Tensor] = field(default_factory=dict)  # [A] per depth, 0 for a spare row; empty: all are real


@dataclass
class Counts:
    """What recording has cost so far."""

    compilations: int = 0
    seconds_compiling: float = 0.0
    graphs: int = 0
    seconds_capturing: float = 0.0


class Recorder:
    """Plays the steps of one world from recordings."""

    def __init__(
        self, world: World, union_step: UnionStep, note: Callable[[str], None], lower: Lower | None = inductor
    ) -> None:
        self.world, self.union_step, self.note, self.lower = world, union_step, note, lower
        self.counts = Counts()
        self.memory: StepTensors | None = None
        self.compiled: Compiled | None = None
        self.replays: OrderedDict[Signature, Replay] = OrderedDict()
        self.patience = ROWS_FOR_A_CAPTURE if world.mixed and world.device.type == "cuda" else 0
        self.wasted: Counter[Signature] = Counter()  # rows that stood in for nobody, by who was at work
        self.chosen: dict[Signature, Signature] = {}  # whose recording plays, in this round
        self.times: Counter[Signature] = Counter()  # steps of this round
        self.own: dict[int, ClientRows] = {}  # where a round's rows came from: those who are done go back there
        self.at_home: dict[int, int] = {}  # the rows of a depth from which on that has happened
        self.at_work: dict[int, int] = {}
        self.sizes: set[tuple[int, int]] = set()  # of clients' blocks and, negative, the server's, met before
        self.pool: Any = None  # graphs never run at the same time, so they share their scratch memory
        self.bottoms = {d: Bottoms.hollow(world, d, world.why_looped is None) for d in sorted(set(world.depths))}

    # --- a round moves in

    def move_in(self, server: Server, groups: dict[int, Bottoms]) -> None:
        """Copy a round's tensors to where the recordings work, and let the round go on there."""
        self.server = server
        if self.memory is None:
            self.memory = self._allocate(server)
        memory = self.memory
        _copy(memory.clock, server.clock)
        _copy(memory.server, server.rows)
        server.rows, server.clock = memory.server, memory.clock
        self.own = {d: bottoms.rows for d, bottoms in groups.items()} if self.patience else {}
        self.at_home = {d: rows.ids.shape[0] for d, rows in self.own.items()}
        self.chosen, self.at_work = {}, {}
        self.times = Counter(self._signature(active) for active in server.plan.active)
        for d, bottoms in groups.items():
            rows = memory.groups[d].first(len(bottoms.clients))
            _copy(_with_steps_of(rows, bottoms.rows), bottoms.rows)
            bottoms.rows, bottoms.clock = rows, memory.clock

    def move_out(self) -> None:
        """At the end of a round: whoever was done before others comes back to where the round looks for them."""
        assert self.memory is not None
        for d, first in self.at_home.items():
            own = self.own[d]
            at = slice(first, own.ids.shape[0])
            _copy(_with_steps_of(self.memory.groups[d].part(at), own), own.part(at))
            self.at_home[d] = at.stop

    def _allocate(self, server: Server) -> StepTensors:
        """Memory for the largest round there can be, and for a spare client per depth where depths differ."""
        w = self.world
        # Not this round's: somebody may have failed in it.
        room = steps_with_room(max(longest_turn(w.recipe, n) for n in w.sizes))
        rows = {}
        for d in self.bottoms:
            most = min(w.cohort, w.depths.count(d)) + w.mixed
            rows[d] = self.bottoms[d].empty_rows(most, room)
        present = {d: torch.ones(r.ids.shape[0], dtype=w.dtype, device=w.device) for d, r in rows.items()}
        for p in present.values():
            p[-1] = 0.0
        return StepTensors(cloned(server.clock), cloned(server.rows), rows, present if w.mixed else {})

    # --- steps

    def step(self, active: dict[int, int]) -> None:
        """One step with so many clients of each depth at work."""
        signature = self._signature(active)
        self._call_up(active)
        plays = signature if signature in self.replays else self.chosen.get(signature)
        if plays is None or plays not in self.replays:
            plays = self.chosen[signature] = self._stand_in(signature) or self._record(signature)
        self._send_home(active, plays)
        self.replays.move_to_end(plays)
        self.replays[plays]()

    def _signature(self, active: dict[int, int]) -> Signature:
        return tuple(active.get(d, 0) for d in self.bottoms)

    def _record(self, signature: Signature) -> Signature:
        """Make a recording for these clients; they are whom it is for."""
        part = self._part(signature)
        play = self._player(part)
        if len(self.replays) >= MOST_GRAPHS:
            self.replays.popitem(last=False)
        on_gpu = self.world.device.type == "cuda"
        self.replays[signature] = self._capture(play, part, self._warm_up(signature)) if on_gpu else play
        return signature

    def _warm_up(self, signature: Signature) -> int:
        """Calls before a capture: none, if every block has run with as many clients, theirs and the server's."""
        clients = [max(a, 1) for a in signature]  # a spare row at least
        theirs = {(i, sum(clients[i:])) for i in range(len(clients))}
        sizes = theirs | {(-i, sum(clients[:i])) for i in range(1, len(clients) + 1)}
        known, first = self.compiled is not None and sizes <= self.sizes, not self.sizes
        self.sizes |= sizes
        return WARM_UP if first else 1 - known

    # --- one recording for another

    def _stand_in(self, signature: Signature) -> Signature | None:
        """The smallest recording with room for these clients; None: it is time for one of their own."""
        if not self.patience:
            return None
        room = [s for s in self.replays if all(a <= b for a, b in zip(signature, s, strict=True))]
        if not room:
            return None
        least = min(room, key=sum)
        waste = (sum(least) - sum(signature)) * self.times[signature]
        if waste + self.wasted[signature] > self.patience:
            return None
        self.wasted[signature] += waste
        return least

    def _call_up(self, active: dict[int, int]) -> None:
        """Where depths differ, say who is at work: nobody else counts."""
        assert self.memory is not None
        if self.memory.present and active != self.at_work:
            for d, present in self.memory.present.items():
                present.zero_()[: active.get(d, 0)] = 1.0
            self.at_work = dict(active)

    def _send_home(self, active: dict[int, int], plays: Signature) -> None:
        """Bring away who is done, if a recording is about to play on with their rows."""
        assert self.memory is not None
        for (d, rows), played in zip(self.memory.groups.items(), plays, strict=True):
            first, last = active.get(d, 0), self.at_home.get(d, 0)
            if first < min(played, last):
                own, at = self.own[d], slice(first, last)
                _copy(own.part(at), _with_steps_of(rows.part(at), own))
                self.at_home[d] = first

    def _part(self, signature: Signature) -> StepTensors:
        """The tensors of the clients at work; the last row of a depth stands in where nobody is."""
        assert self.memory is not None
        m = self.memory
        places = {d: slice(a) if a else slice(-1, None) for d, a in zip(self.bottoms, signature, strict=True)}
        return StepTensors(
            m.clock,
            m.server,
            {d: m.groups[d].part(at) for d, at in places.items()},
            {d: p[places[d]] for d, p in m.present.items()},
        )

    def _player(self, part: StepTensors) -> Replay:
        """The step on these tensors, compiled if that can be."""
        if self.lower is not None and self.compiled is None:
            self._compile(part)
        if self.compiled is None:
            return lambda: self._play(part)
        program, inputs = self.compiled, tensors(part)
        return lambda: program(inputs)

    def _play(self, part: StepTensors) -> None:
        """The step itself, on these tensors."""
        groups = {d: self.bottoms[d].on(rows, part.clock) for d, rows in part.groups.items()}
        self.union_step(self.server.on(part.server, part.clock), groups, part.present or None)

    # --- compile and capture

    def _compile(self, part: StepTensors) -> None:
        """Compile the step with the number of clients of each depth a symbol. Where that fails, it stays as it is."""
        assert self.lower is not None
        symbols: list[int | None] = [None] * len(tensors((part.clock, part.server)))
        for d, rows in part.groups.items():
            symbols += [d] * len(tensors(rows))
        symbols += list(part.present)
        examples = tensors(self._at_least_two(part))

        def step(inputs: list[Tensor]) -> None:
            with explicit_layers():
                self._play(rebuilt(part, iter(inputs)))

        self._play(cloned(part))  # what is found out once and kept is found out here, not while tracing
        try:
            self.compiled = compile_step(step, examples, symbols, self.lower)
        except CannotCompile as why:
            self.note(f"steps are captured but not compiled: {why}")
            self.lower = None
            return
        self.counts.compilations += 1
        self.counts.seconds_compiling += self.compiled.seconds

    def _at_least_two(self, part: StepTensors) -> StepTensors:
        """Examples with two clients or more of every depth: torch takes a size of one for a constant."""
        groups = {}
        for d, rows in part.groups.items():
            short = 2 - rows.ids.shape[0]
            groups[d] = rows if short <= 0 else rebuilt(rows, (torch.cat((t, t)) for t in tensors(rows)))
        present = {d: p if len(p) > 1 else torch.cat((p, p)) for d, p in part.present.items()}
        return dataclasses.replace(part, groups=groups, present=present)

    def _capture(self, play: Replay, part: StepTensors, warm_up: int) -> Replay:
        began = time.perf_counter()
        before = [t.clone() for t in tensors(part)]
        try:
            with fastest_kernels():
                graph, _ = capture(play, self.pool, warm_up)
        except RuntimeError as error:
            self.pool = None  # one that a capture failed in takes no other
            if not warm_up:
                return self._capture(play, part, 1)
            self.note(f"steps are not recorded: {str(error).strip().splitlines()[0][:200]}")
            return play
        finally:
            for t, old in zip(tensors(part), before, strict=True):  # the warm-up was no training
                t.copy_(old)
        self.pool = graph.pool()
        self.counts.graphs += 1
        self.counts.seconds_capturing += time.perf_counter() - began
        return graph.replay


def steps_with_room(longest: int) -> int:
    """Steps to make room for: a power of two.

    The number is in the compiled program, and another seed, whose largest client is a little larger or smaller, is to
    find that program in torch's cache on disk. A step's places take 256 bytes of a client.
    """
    return max(LEAST_STEPS, 1 << (longest - 1).bit_length())


def fastest_kernels() -> AbstractContextManager[None]:
    """For what runs thousands of times in the same shapes: let cuDNN try which of its kernels is fastest."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=True, benchmark_limit=TRIED, allow_tf32=True
    )
    return flags


def _with_steps_of(rows: ClientRows, other: ClientRows) -> ClientRows:
    """Rows in the recordings' memory, which has room for the longest round, with as many steps as a round's own."""
    return dataclasses.replace(rows, batches=rows.batches[:, : other.batches.shape[1]])


def _copy(to: object, source: object) -> None:
    for a, b in zip(tensors(to), tensors(source), strict=True):
        a.copy_(b)
