"""A site's part of an evaluation: its rows through its own bottom, with the top's answers; tests and labels stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pmsfl.deploy.checks import placed
from pmsfl.deploy.exam import GLOBAL, OWN, part_of
from pmsfl.deploy.frames import Op
from pmsfl.deploy.line import Line, Refusal
from pmsfl.engine.bank import Bank
from pmsfl.engine.evaluate import Evaluator
from pmsfl.engine.passes import Inputs
from pmsfl.engine.protocol import Wire
from pmsfl.engine.state import Memory, State, server_optimisers
from pmsfl.engine.statistics import Names, Statistics, packed
from pmsfl.engine.world import World
from pmsfl.wire.codecs import Codec
from pmsfl.wire.messages import Kind, Message, WireError
from pmsfl.wire.tensors import decode_tensor, encode_tensor


class Sitting:
    """One evaluation of one site."""

    def __init__(
        self, world: World, client: int, round_: int, shared: Tensor, plain: Tensor, memory: Memory | None
    ) -> None:
        self.world, self.client, self.round = world, client, round_
        self.depth = world.depths[client]
        self.evaluator = Evaluator(world)
        self.wire = Wire(world)
        whole, norms = world.initial_shared.clone(), world.initial_plain.clone()
        whole[: len(shared)] = shared
        norms[world.plain_view(self.depth).sent] = plain
        bank = Bank.empty(world)
        if memory is not None:
            bank = bank | {client: memory}
        self.state = State(round_, whole, norms, *server_optimisers(world), None, bank)
        self.calls = 0

    @torch.no_grad()
    def take(self, task: dict[str, Any], line: Line) -> None:
        """All masks and modes of the task, then the report."""
        draws, modes, train, test = task.get("draws"), task.get("modes"), task.get("train"), task.get("test")
        rows, tests = self.world.train_rows[self.client], self.world.test_rows[self.client]
        if draws != self.evaluator.draws or modes not in ([GLOBAL], [GLOBAL, OWN]):
            raise Refusal(f"an evaluation of {draws} masks in modes {modes}: this run has {self.evaluator.draws}")
        if type(train) is not int or type(test) is not int or not (0 <= train <= len(rows) + 1e6 and 0 <= test <= 1e6):
            raise Refusal(f"an evaluation of {train} and {test} passes")
        right = [[self._count(draw, mode, rows, train, tests, test, line) for mode in modes] for draw in range(draws)]
        line.ask(Op.REPORT, self.round, self._next(), {"right": right})

    def _next(self) -> int:
        self.calls += 1
        return self.calls

    def _count(self, draw: int, mode: int, rows: Tensor, train: int, tests: Tensor, test: int, line: Line) -> int:
        """How many tests are right under one mask."""
        masked, plain = self._weights(draw, mode)
        buffers = self._statistics(draw, mode, masked, plain, rows, train, line) if train else {}
        self.world.model.train(self.world.recipe.statistics == "batch")
        right = 0
        for index in range(test):
            mine = part_of(tests, test, index)
            if not len(mine):
                continue
            q, _ = self._bottom(masked, plain, mine, buffers, collecting=False)
            place = {"draw": draw, "mode": mode, "index": index}
            reply = line.ask(Op.TEST, self.round, self._next(), place, self._smashed(q, index))
            logits = self._logits(reply.wire, index, len(mine))
            right += int((logits.argmax(-1) == self.world.y[mine]).sum())
            self.world.model.train(self.world.recipe.statistics == "batch")
        return right

    def _weights(self, draw: int, mode: int) -> tuple[Tensor, Tensor]:
        if mode == OWN:
            return self.evaluator.client_weights(self.state, self.client, draw)
        w = self.world
        trained = w.method.start(w.sent(self.state.shared, self.depth))
        return self.evaluator.weights(trained, draw), self.evaluator.bottom_plain(self.state, self.depth)

    def _statistics(
        self, draw: int, mode: int, masked: Tensor, plain: Tensor, rows: Tensor, passes: int, line: Line
    ) -> dict[str, Tensor]:
        """What the bottom's norms take instead of a batch's own mean and variance."""
        own = Statistics(self.world)
        names: Names = ()
        for index in range(passes):
            mine = part_of(rows, passes, index)
            if not len(mine):
                continue
            self.world.model.train()
            q, sums = self._bottom(masked, plain, mine, {}, collecting=True)
            names, vector = packed(sums)
            own.add(names, vector, [self.client])
            row = torch.zeros(0, dtype=torch.float64) if vector is None else vector[0]
            data = self._smashed(q, index) + self._message(Kind.STATISTICS, row, Codec.FP64, index)
            line.ask(Op.SUMS, self.round, self._next(), {"draw": draw, "mode": mode, "index": index}, data)
        reply = line.ask(Op.STATISTICS, self.round, self._next(), {"draw": draw, "mode": mode})
        if self.world.recipe.statistics == "client":
            return own.buffers([self.client])
        return self._read_statistics(reply.wire, names)

    def _read_statistics(self, data: bytes, names: Names) -> dict[str, Tensor]:
        (m,) = placed(data, self.wire.run, self.round, self.client, 0)
        size = 2 * sum(c for _, c in names)
        vector = self._read(m, Kind.STATISTICS, (size,))
        out: dict[str, Tensor] = {}
        parts = torch.split(vector, [c for _, c in names for _ in (0, 1)])
        for (name, _), mean, variance in zip(names, parts[0::2], parts[1::2], strict=True):
            if bool((variance < 0.0).any()):
                raise WireError("STATISTICS: a variance below 0")
            out |= {f"{name}.running_mean": mean, f"{name}.running_var": variance}
        return out

    def _bottom(
        self, masked: Tensor, plain: Tensor, rows: Tensor, buffers: dict[str, Tensor], collecting: bool
    ) -> tuple[Tensor, Any]:
        nothing = torch.zeros(0, dtype=self.world.dtype)
        inputs = Inputs(masked, plain, nothing, nothing, rows.unsqueeze(0), None, buffers, {})
        q, sums = self.evaluator.passes.bottom(self.depth, collecting, inputs, None)
        return q[0], sums

    def _smashed(self, q: Tensor, index: int) -> bytes:
        return self.wire._tensor(Kind.SMASHED, q, self.world.cut_codec, self.round, self.client, index)

    def _message(self, kind: Kind, t: Tensor, codec: Codec, step: int) -> bytes:
        payload = encode_tensor(t, codec)
        return Message(kind, codec, tuple(t.shape), payload, self.wire.run, self.round, self.client, step).encode()

    def _logits(self, data: bytes, index: int, rows: int) -> Tensor:
        (m,) = placed(data, self.wire.run, self.round, self.client, index)
        return self._read(m, Kind.EVALUATION, (rows, self.world.federation.classes))

    def _read(self, m: Message, kind: Kind, shape: tuple[int, ...]) -> Tensor:
        if m.kind != kind or m.shape != shape or m.codec != self.world.codec:
            raise WireError(f"{m.kind.name} of {m.shape} in {m.codec.name}: expected {kind.name} of {shape}")
        out = decode_tensor(m.payload, m.shape, m.codec, self.world.dtype)
        if not torch.isfinite(out).all():
            raise WireError(f"{kind.name} from the server is not finite")
        return out
