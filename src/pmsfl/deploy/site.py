"""A site of a deployment, without a network: it drives its own part by calls to the server.

It does not trust the server: frozen weights are derived from a pinned recipe, θ is clamped, gradients are clipped,
the number of steps is its own, and masks come from its own secret.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmsfl.deploy.checks import placed, within
from pmsfl.deploy.data import SiteData, load_site_data
from pmsfl.deploy.frames import Answer, Op
from pmsfl.deploy.line import Call, JobOver, LeftOut, Line, Refusal
from pmsfl.deploy.roster import Manifest
from pmsfl.deploy.rules import digest_of, hides_smashed
from pmsfl.deploy.secret import site_keys
from pmsfl.deploy.secure import Identity
from pmsfl.deploy.secure_upload import SecureUpload
from pmsfl.deploy.settings import Guard
from pmsfl.deploy.sitting import Sitting
from pmsfl.deploy.store import Store
from pmsfl.deploy.sums import check_summable
from pmsfl.deploy.timing import MOST_REPORTED
from pmsfl.deploy.worlds import frozen_hash, site_world
from pmsfl.engine.client import Bottoms, Finished
from pmsfl.engine.plan import Keys, local_steps
from pmsfl.engine.protocol import Wire
from pmsfl.engine.state import Memory
from pmsfl.engine.world import World
from pmsfl.masks.random import Stream
from pmsfl.recipe import Recipe
from pmsfl.wire.codecs import Codec
from pmsfl.wire.masks import encode_indices
from pmsfl.wire.messages import Kind, Message


class SiteSide:
    """One site through one job."""

    def __init__(
        self,
        folder: Path,
        data: str | SiteData,
        depth: int | None = None,
        guard: Guard | None = None,
        note: Callable[[str], None] = lambda line: None,
        keys: Keys | None = None,
        secure_sums: bool = False,
        kit: Path | None = None,
        cohort: bytes | None = None,
    ) -> None:
        """data: see `load_site_data`. keys: for tests that repeat a simulation; else they come from the secret.
        secure_sums: take part in no run without them. kit: whose certificate signs this site's part of them.
        cohort: the secret that all sites share, for uploads drawn evenly over them."""
        self.store, self.source, self.depth = Store(folder), data, depth
        self.guard, self.note, self.fixed_keys, self.demands_sums = guard or Guard(), note, keys, secure_sums
        self.kit, self.cohort = kit, cohort
        self.round = 0  # how far the run is, as far as this site knows
        self.asked = 0
        self.oldest = 0
        self.warned: set[str] = set()
        self.pause = 0.5  # seconds before a call that failed is tried again

    def play(self, recipe: str, call: Call, give_up: float = 300.0) -> str:
        """Take part until the job is over; why it ended. Nothing that goes wrong here leaves as an exception."""
        line = Line(call, give_up, self.pause)
        try:
            self._enrol(recipe, line)
            while True:
                self._one_task(line)
        except JobOver as e:
            return str(e)
        except Exception as e:  # a site that fails must not take the others' job down
            self.note(f"this site leaves the job: {e}")
            return f"failed: {e!r}"

    # --- enrolment

    def _enrol(self, offered: str, line: Line) -> None:
        recipe = self.check_recipe(Recipe.from_toml(offered, "the server's recipe"))
        data = self.source if isinstance(self.source, SiteData) else load_site_data(self.source, recipe)
        facts = data.facts(self.depth)
        answer = line.ask(Op.HELLO, info=facts.as_dict() | {"session": os.urandom(8).hex()})
        manifest = Manifest.read(answer.info)
        settled = self.check_recipe(Recipe.from_toml(manifest.recipe, "the server's manifest"))
        if settled.replace(depths=recipe.depths, cohort=recipe.cohort, data_path=recipe.data_path) != recipe:
            raise Refusal("the manifest's recipe is not the one that was offered")
        if self.demands_sums and not manifest.secure_sums:
            raise Refusal("this site takes part with --secure-sums only, and the server's run is without")
        if manifest.secure_sums:
            check_summable(settled, len(manifest.sites), len(manifest.sites))
        self.keys = keys = self.fixed_keys or self._keys(settled, manifest.run)
        world = site_world(settled, manifest, data.x, data.y, data.train, data.test, keys)
        self._check_world(world, manifest)
        self.store.pin(manifest)
        self.manifest, self.world, self.wire = manifest, world, Wire(world)
        self.client, self.cut = manifest.client, world.depths[manifest.client]
        self._follow(answer.info)
        self.note(f"enrolled as client {manifest.client} of run {manifest.run}")

    def check_recipe(self, recipe: Recipe) -> Recipe:
        """The recipe itself; Refusal where it would make this site run other code or read other files."""
        g = self.guard
        if ":" in recipe.model and not g.own_code:
            raise Refusal(f"model = {recipe.model!r} is code from elsewhere; allow it on this site first")
        if recipe.pretrained:
            raise Refusal("pretrained names a file; frozen weights must come from the seed")
        if recipe.width > g.max_width:
            raise Refusal(f"width = {recipe.width}: this site builds models up to {g.max_width}")
        return recipe

    def _keys(self, recipe: Recipe, run: str) -> Keys:
        even = recipe.upload_draw == "even"
        if even and self.cohort is None:
            raise Refusal("upload_draw = 'even' needs the secret that all sites share, and this kit has none")
        return site_keys(self.store.secret(), run, recipe.seed, self.cohort if even else None)

    def _check_world(self, world: World, m: Manifest) -> None:
        if len(world.frozen) + len(world.initial_plain) > self.guard.max_parameters:
            raise Refusal(f"the model has more than {self.guard.max_parameters} parameters")
        if frozen_hash(world) != m.frozen:
            raise Refusal("the server's frozen weights are not those of the recipe's seed")
        if self.depth not in (None, world.depths[m.client]):
            raise Refusal(f"the server cuts this site after block {world.depths[m.client]}, not {self.depth}")

    def _follow(self, info: dict[str, Any]) -> None:
        for name in ("round", "oldest"):
            if type(value := info.get(name)) is int and value >= 0:
                setattr(self, name, value)

    # --- what to do

    def _memory(self) -> Memory | None:
        return self.store.memory(self.world, self.manifest.run, self.round)

    def _one_task(self, line: Line, tell: bool = False) -> None:
        memory = self._memory()
        mine = torch.zeros(0, dtype=torch.int64) if memory is None else memory.indices
        hidden = self.manifest.secure_sums  # which coordinates are personal, nobody is told then
        info = {"round": self.round, "personal": 0 if hidden else digest_of(mine)}
        self.asked += 1
        try:
            wire = self._personal(mine) if tell and not hidden else b""
            answer = line.ask(Op.NEXT, step=self.asked, info=info, wire=wire)
            self._follow(answer.info)
            if answer.info.get("do") == "tell":
                self._one_task(line, tell=True)
            elif answer.info.get("do") == "evaluate":
                self._evaluate(answer, line)
            else:
                self._train(answer, line)
        except LeftOut as e:
            self.note(f"left out: {e}")
        except JobOver:
            raise
        except Exception as e:
            self.note(f"round {self.round + 1} skipped: {e}")
            line.ask(Op.SKIP, self.round, self.asked, {"reason": str(e)[:500]})

    def _personal(self, indices: Tensor) -> bytes:
        size = self.world.masked_size(self.cut)
        payload = encode_indices(indices.cpu(), size)
        return Message(Kind.PERSONAL, Codec.INDICES, (size,), payload, self.wire.run, self.round, self.client).encode()

    def _start(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """θ (or weights) and norms, checked and bounded; θ as it came is kept: mask bits are coded against that."""
        w = self.world
        placed(answer.wire, self.wire.run, self.round, self.client, 0)
        shared, plain = self.wire.read_start(answer.wire, self.cut, w.sent(w.initial_shared, self.cut))
        within(plain, self.guard.values, "NORMS from the server")
        self.received = shared
        if w.method.theta(shared[:1]) is None:
            return within(shared, self.guard.values, "WEIGHTS from the server"), plain
        low, high = w.recipe.clip, 1.0 - w.recipe.clip
        # The wire's precision may put an honest θ a little beyond the clip.
        beyond = int(((shared < 0.5 * low) | (shared > 1.0 - 0.5 * low)).sum())
        if beyond:
            self._warn("theta", f"the server sent {beyond} θ outside [{low:g}, {high:g}]: clamped")
        return shared.clamp(low, high), plain

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self.warned:
            self.warned.add(kind)
            self.note(text)

    # --- a round

    def _train(self, answer: Answer, line: Line) -> None:
        w = self.world
        steps = local_steps(w.recipe, len(w.train_rows[self.client]), self.round)
        if answer.info.get("steps") != steps or not self.round < w.recipe.turns:
            raise Refusal(f"the server asks for {answer.info.get('steps')} steps; a round of this site has {steps}")
        if (times := self.store.count_round(self.manifest.run, self.round)) > self.guard.repeats:
            raise Refusal(
                f"round {self.round + 1} would be played {times} times; this site allows {self.guard.repeats}"
            )
        secure = None
        if self.manifest.secure_sums:
            identity = None if self.kit is None else Identity(self.kit, self.manifest.sites)
            secure = SecureUpload(w, self.wire, self.client, self.round, answer.info, identity)
            self._draw_anew(times)
        shared, plain = self._start(answer)
        w.model.train()
        clock, memory = w.clock(self.round), self._memory()
        bank = {} if memory is None else {self.client: memory}
        mine = ([self.client], self.cut, [steps], shared, plain, bank)
        bottoms = _OneSite(w, clock, self.round, *mine, vectorised=False)
        if w.recipe.upload_draw == "even":
            bottoms.turn = _turn(answer.info)
        trips: list[list[float]] = []
        for step in range(steps):
            smashed, labels = bottoms.forward()
            data = self.wire.write_step(self.round, self.client, step, smashed[0], labels[0])
            began = time.perf_counter()
            reply = line.ask(Op.STEP, self.round, step, wire=data)
            trips.append([round(time.perf_counter() - began, 6), float(reply.info.get("held", 0.0))])
            bottoms.backward(self._gradient(reply.wire, step, tuple(smashed.shape[1:])).unsqueeze(0))
            clock.step += 1
        finished = bottoms.finish()
        health = _health(finished) | {"trips": trips[-MOST_REPORTED:]}
        if secure is not None:
            secure.send(finished, health, line)
        else:
            data = self.wire.write_finish(self.round, self.client, finished, 0, self.received)
            line.ask(Op.FINISH, self.round, info=health, wire=data)
        self.round += 1
        self.store.remember(w, self.cut, self.manifest.run, self.round, finished.memories[0], self.oldest)

    def _draw_anew(self, times: int) -> None:
        """A round that is played again uploads another draw of its mask: from two sums over the same masks, once with a
        site and once without, its mask could be read off."""
        self.world.keys = self.keys
        if times > 1:
            word = torch.tensor(int.from_bytes(os.urandom(8), "little", signed=True), dtype=torch.int64)
            self.world.keys = Keys(self.keys.roots | {Stream.UPLOAD: word})

    def _gradient(self, data: bytes, step: int, shape: tuple[int, ...]) -> Tensor:
        """dL/dq, each sample's clipped to what the guard allows."""
        placed(data, self.wire.run, self.round, self.client, step)
        gradient = self.wire.read_gradient(data, shape)
        norms = gradient.flatten(1).norm(dim=1)
        if bool((norms > self.guard.gradient_norm).any()):
            largest = float(norms.max())
            self._warn("gradient", f"gradients of norm {largest:g}: clipped to {self.guard.gradient_norm:g}")
            scale = (self.guard.gradient_norm / norms.clamp_min(1e-30)).clamp_max(1.0)
            gradient = gradient * scale.reshape(-1, *(1,) * (gradient.ndim - 1))
        return gradient

    def _evaluate(self, answer: Answer, line: Line) -> None:
        if hides_smashed(self.world.recipe):
            raise Refusal("smashed data leaves this site with noise only: it takes no part in evaluations")
        shared, plain = self._start(answer)
        sitting = Sitting(self.world, self.client, self.round, shared, plain, self._memory())
        sitting.take(answer.info, line)


class _OneSite(Bottoms):
    """The bottom of one site: the round's plan is the server's."""

    turn: float | None = None  # how far to move the cohort's common numbers on; None: the site's own are drawn

    def upload_chance(self) -> Tensor:
        if self.turn is None:
            return super().upload_chance()
        return self.world.common_chance([self.turn], self.round, self.rows.trained.shape[1])


def _turn(info: dict[str, Any]) -> float:
    turn = info.get("turn")
    if type(turn) is not float or not 0.0 <= turn < 1.0:
        raise Refusal(f"the server's turn {turn!r} is none: a number in [0, 1) is")
    return turn


def _health(finished: Finished) -> dict[str, Any]:
    """What a site tells of its masks: numbers in 0..1."""
    out: dict[str, Any] = {}
    if finished.entropy is not None and finished.entropy.numel():
        out["entropy"] = finished.entropy[0].double().clamp(0.0, 1.0).tolist()
    if finished.disagree is not None:
        out["disagree"] = finished.disagree.double().tolist()
    if finished.at_clip is not None:
        out["at_clip"] = finished.at_clip.double().tolist()
    return out
