"""Who takes part in a round, at which depth, for how many steps, with which batches. All keyed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pmsfl.errors import PmsflError
from pmsfl.masks.random import Stream, fold, permutation, root, uniform
from pmsfl.recipe import Recipe


@dataclass(frozen=True)
class Keys:
    """The root key of every stream. In a simulation they derive from the run's seed."""

    roots: dict[Stream, Tensor]

    @staticmethod
    def of_seed(seed: int, device: torch.device | str = "cpu") -> Keys:
        """Keys for a simulation."""
        return Keys({s: root(seed, s, device) for s in Stream})

    @property
    def device(self) -> torch.device:
        """Where the keys are."""
        return self.roots[Stream.FROZEN].device

    def client(self, stream: Stream, clients: Tensor | int, round_: int | Tensor, step: int | Tensor = 0) -> Tensor:
        """The key of each client for one round and step: int64, the shape of `clients`."""
        return fold(fold(fold(self.roots[stream], clients), round_), step)

    def at(self, stream: Stream, *place: int | Tensor) -> Tensor:
        """A key that belongs to no client: the stream's root folded with each number."""
        key = self.roots[stream]
        for number in place:
            key = fold(key, number)
        return key


def personal_from(recipe: Recipe) -> int:
    """The first turn, from 0, in which clients choose personal coordinates: the agreement is over."""
    return math.ceil(recipe.agreement * recipe.rounds - 1e-9) * recipe.merges


def round_of(recipe: Recipe, turn: int) -> int:
    """The round of a turn, both counted from 0; and of how many turns are done, how many rounds."""
    return turn // recipe.merges


def evaluates_after(recipe: Recipe, turns: int) -> bool:
    """Is there an evaluation after so many turns? After every `eval_every` rounds and after the last."""
    return turns == recipe.turns or turns % (recipe.eval_every * recipe.merges) == 0


def stays(recipe: Recipe, turn: int) -> bool:
    """Does the cohort of a turn, counted from 0, play the next one, too?"""
    return (turn + 1) % recipe.merges != 0


def keeps_optimiser(recipe: Recipe, turn: int) -> bool:
    """Does a client's optimiser of this turn go on in the client's next?"""
    return recipe.client_state == "persistent" or (recipe.client_state == "stay" and stays(recipe, turn))


GOLDEN = (5.0**0.5 - 1.0) / 2.0


@dataclass(frozen=True)
class RoundPlan:
    """The cohort of one round, sorted so that the clients still at work are always the first ones."""

    round: int
    clients: tuple[int, ...]
    depths: tuple[int, ...]
    steps: tuple[int, ...]
    late: tuple[bool, ...] = ()  # who stops half-way: its upload is dropped
    failed: tuple[int, ...] = ()  # who was sampled and never answered

    @property
    def on_time(self) -> tuple[bool, ...]:
        """Whose upload counts."""
        return tuple(not late for late in self.late) or (True,) * len(self.clients)

    @cached_property
    def even_turns(self) -> dict[int, float]:
        """How far around [0, 1) the common uniforms of a round are moved on for each client (`upload_draw = even`).

        With mixed depths the deepest clients come first, and each goes on by the golden ratio: its multiples keep apart
        for any first few of the cohort, and those alone share the deepest blocks.
        """
        order = sorted(range(len(self.clients)), key=lambda i: -self.depths[i])
        part = 1.0 / len(order) if len(set(self.depths)) == 1 else GOLDEN
        return {self.clients[i]: int(rank * part % 1.0 * 2**24) * 2.0**-24 for rank, i in enumerate(order)}

    @cached_property
    def groups(self) -> dict[int, list[int]]:
        """Positions in `clients` by depth, shallow first; within a group the order of the plan."""
        by_depth: dict[int, list[int]] = {}
        for i, d in enumerate(self.depths):
            by_depth.setdefault(d, []).append(i)
        return dict(sorted(by_depth.items()))

    @cached_property
    def active(self) -> list[dict[int, int]]:
        """For every step, how many clients of each depth are still at work; depths with none are left out."""
        longest = max(self.steps, default=0)
        steps = {d: [self.steps[i] for i in places] for d, places in self.groups.items()}
        counts = [{d: sum(r > step for r in own) for d, own in steps.items()} for step in range(longest)]
        return [{d: n for d, n in at.items() if n} for at in counts]


def round_steps(recipe: Recipe, samples: int) -> int:
    """R_k = ⌈E·n_k/B⌉: full mini-batches in a client's round; one at least in each of its turns."""
    return max(-(-recipe.epochs * int(samples) // recipe.batch), recipe.merges if samples else 0)


def local_steps(recipe: Recipe, samples: int, turn: int) -> int:
    """The steps of one turn: a round's, dealt over its turns."""
    steps, part = round_steps(recipe, samples), turn % recipe.merges
    return (part + 1) * steps // recipe.merges - part * steps // recipe.merges


def longest_turn(recipe: Recipe, samples: int) -> int:
    """The most steps that a client has between two uploads."""
    return -(-round_steps(recipe, samples) // recipe.merges)


def cohort_size(recipe: Recipe, eligible: int) -> int:
    """K, or an error where more clients are asked for than there are with training data."""
    if recipe.cohort > eligible:
        raise PmsflError(
            f"cohort = {recipe.cohort}: only {eligible} clients have training data; take at most {eligible}"
        )
    return recipe.cohort or max(int(recipe.participation * eligible + 1e-9), 1)  # 0.29 · 100 is 28.999…


def plan_round(recipe: Recipe, keys: Keys, round_: int, sizes: Sequence[int], depths: tuple[int, ...]) -> RoundPlan:
    """The plan of a turn, which is a round unless it has several merges.

    sizes: training samples per client; those without any are never sampled.
    """
    eligible = np.flatnonzero(sizes)
    if not len(eligible):
        raise PmsflError("no client has any training data; check data_path, partition and max_samples")
    k = cohort_size(recipe, len(eligible))
    drawn_in = round_of(recipe, round_)
    order = permutation(keys.at(Stream.SAMPLING, drawn_in), len(eligible))[:k]
    sampled = [int(c) for c in eligible[order.cpu().numpy()]]
    steps = {c: local_steps(recipe, sizes[c], round_) for c in sampled}
    failed, late = _faults(recipe, keys, drawn_in, sampled)
    for c in late:
        steps[c] = max(1, steps[c] // 2)
    clients = sorted((c for c in sampled if c not in failed), key=lambda c: (-steps[c], c))
    return RoundPlan(
        round_,
        tuple(clients),
        tuple(depths[c] for c in clients),
        tuple(steps[c] for c in clients),
        tuple(c in late for c in clients),
        tuple(sorted(failed)),
    )


def _faults(recipe: Recipe, keys: Keys, round_: int, sampled: list[int]) -> tuple[set[int], set[int]]:
    """Who fails and who is late in this round. One client is always spared: a round needs somebody."""
    if recipe.failures == 0.0 and recipe.stragglers == 0.0:
        return set(), set()
    drawn = uniform(
        keys.client(Stream.FAULTS, torch.tensor(sampled, device=keys.device), round_).cpu(), 1, torch.float64
    ).squeeze(1)
    luck = dict(zip(sampled, drawn.tolist(), strict=True))
    spared = max(sampled, key=lambda c: luck[c])
    failed = {c for c in sampled if luck[c] < recipe.failures and c != spared}
    both = recipe.failures + recipe.stragglers
    late = {c for c in sampled if luck[c] < both and c not in failed and c != spared}
    return failed, late


def batch_positions(key: Tensor, samples: int, steps: int, batch: int) -> Tensor:
    """Which of a client's samples form each mini-batch: int64 [steps, batch].

    One random order after another; a batch that reaches the end of one goes on in the next, so every batch is
    full, and no sample comes twice before all came once.
    """
    passes = -(-steps * batch // samples)
    numbers = torch.arange(passes, device=key.device)
    orders = permutation(fold(key, numbers), samples).reshape(-1)
    return orders[: steps * batch].reshape(steps, batch)


def assign_depths(spec: str, clients: int, deepest: int) -> tuple[int, ...]:
    """The cut of every client from '2', '1:1:1:1' (shares of depths 1, 2, …) or '1,2,2,…' (one per client)."""
    try:
        if ":" in spec:
            shares = [float(s) for s in spec.split(":")]
            if len(shares) > deepest or min(shares) < 0 or not 0 < sum(shares) < math.inf:
                raise PmsflError(
                    f"depths = {spec!r}: a ratio has at most {deepest} parts here (the model has {deepest} "
                    "blocks), none negative and not all 0"
                )
            ends = np.round(np.cumsum(shares) / sum(shares) * clients).astype(int)
            # Dealt like cards, so that neighbours in size or label do not all share a depth.
            pools = np.diff(np.concatenate(([0], ends))).tolist()
            return tuple(_deal(pools, clients))
        numbers = [int(s) for s in spec.split(",")]
    except ValueError:
        raise PmsflError(f"depths = {spec!r}: write 2, 1:1:1:1, or one number per client: 1,2,2,4") from None
    if len(numbers) == 1:
        numbers *= clients
    if len(numbers) != clients:
        raise PmsflError(f"depths = {spec!r}: {len(numbers)} numbers for {clients} clients")
    bad = [n for n in numbers if not 1 <= n <= deepest]
    if bad:
        raise PmsflError(f"depths = {spec!r}: {bad[0]} is no cut of this model; take 1 to {deepest}")
    return tuple(numbers)


def _deal(pools: list[int], clients: int) -> list[int]:
    dealt: list[int] = []
    while len(dealt) < clients:
        for depth, left in enumerate(pools, start=1):
            if left > 0 and len(dealt) < clients:
                pools[depth - 1] -= 1
                dealt.append(depth)
    return dealt
