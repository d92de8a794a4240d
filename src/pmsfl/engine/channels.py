"""What goes from a client to the server, channel by channel, and what is guaranteed for each.

The adversary is the server. A channel's ε is about that channel, given everything else the server has seen: with one
channel that has none, the whole transcript has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pmsfl.engine.spending import Spending, Spent
from pmsfl.models.inspect import has_batch_norm
from pmsfl.privacy.accounting import Event, bound
from pmsfl.privacy.mechanisms import gaussian_ratio, mask_rho, signal_to_noise_db

if TYPE_CHECKING:
    from pmsfl.engine.world import World

Events = Callable[[Spent], tuple[Event, ...]]
Epsilon = Callable[[tuple[Event, ...], float], float]


@dataclass(frozen=True)
class Channel:
    """events: what a client's releases cost, None where there is no guarantee."""

    name: str
    unit: Literal["client", "sample"]
    why: str
    events: Events | None
    own: Events | None = None  # of a record's own releases alone, where others tell of it too

    def epsilon(self, spent: Spent, delta: float, rule: Epsilon = bound) -> float | None:
        """What one client has spent."""
        return None if self.events is None else rule(self.events(spent), delta)

    def most(self, spending: Spending, delta: float, rule: Epsilon = bound) -> float | None:
        """What the client has spent that has spent most."""
        return None if self.events is None else _most(self.events, spending, delta, rule)

    def most_own(self, spending: Spending, delta: float, rule: Epsilon = bound) -> float | None:
        """The same for a record's own releases alone."""
        return None if self.own is None else _most(self.own, spending, delta, rule)


def _most(events: Events, spending: Spending, delta: float, rule: Epsilon) -> float:
    """Only clients that nobody exceeds in every count are looked at: a privacy loss distribution takes its time."""
    found = {events(s) for s in spending.clients.values()}

    def exceeded(mine: tuple[Event, ...]) -> bool:
        return any(
            other != mine and all(a.times <= b.times for a, b in zip(mine, other, strict=True)) for other in found
        )

    return max((rule(e, delta) for e in found if not exceeded(e)), default=0.0)


def channels(world: World) -> list[Channel]:
    """All of them, in the order they are shown."""
    features = [_features()] if world.u_shape else []
    return [
        _smashed(world),
        _update(world),
        _norms(world),
        _labels(world),
        *features,
        _indicator(world),
        _statistics(world),
        Channel("gradients", "client", "come from the server, who made them from what it had received", _nothing),
    ]


def guaranteed(world: World) -> list[Channel]:
    """The channels whose ε grows over rounds."""
    probe = Spent(1, 1, 1, 1, 1)
    return [c for c in channels(world) if c.events is not None and any(e.kind != "pure" for e in c.events(probe))]


def _nothing(spent: Spent) -> tuple[Event, ...]:
    return ()


def sound_smashed(world: World) -> str | None:
    """The mechanism on smashed data, None where there is none that guarantees anything."""
    r = world.recipe
    if r.method == "splitfed-dp":
        return r.dp_mechanism if r.dp_calibration == "sound" else None
    return None if r.dp_smashed == "off" else r.dp_smashed


def release(mechanism: str, epsilon: float, delta: float, times: int) -> Event:
    """Releases that are (ε, δ)-private each."""
    if mechanism == "laplace":
        return Event("laplace", epsilon, times)
    return Event("gaussian", gaussian_ratio(epsilon, delta), times)


def _gradients(world: World, spent: Spent) -> Event:
    """Noised sums of clipped score gradients: a replaced record moves one by 2Γ for each time it is in the batch."""
    return Event("gaussian", 2.0 / world.recipe.score_gradient_noise, spent.squares)


def _smashed(world: World) -> Channel:
    r, name = world.recipe, "smashed data"
    mechanism = sound_smashed(world)
    if mechanism is None:
        if r.method == "splitfed-dp":
            why = "noise per coordinate at range/ε, without a clip, is the paper's calibration (dp_calibration=sound)"
        elif world.method.samples_masks:
            why = "a random mask without noise is no differential privacy: δ ≈ 1 for every ε (dp_smashed=gaussian)"
        else:
            why = "they go up as they are (dp_smashed=gaussian)"
        return Channel(name, "sample", why, None)

    def own(spent: Spent) -> tuple[Event, ...]:
        return (release(mechanism, r.dp_epsilon_smashed, r.dp_delta, spent.own),)

    smallest = min(math.prod(world.smashed_shapes[d]) for d in set(world.depths))
    loudness = signal_to_noise_db(mechanism, r.dp_epsilon_smashed, r.dp_delta, smallest)
    each = (
        f"{mechanism} noise, ε = {r.dp_epsilon_smashed:g} per release of a sample (signal to noise {loudness:.0f} dB)"
    )
    if world.noises_gradients:
        why = f"{each}, and the noised score updates that shape later releases; replace one record"
        return Channel(name, "sample", why, lambda s: (*own(s), _gradients(world, s)))
    if world.method.trains == "nothing" and not any(world.plain_view(d).trains for d in set(world.depths)):
        return Channel(name, "sample", f"{each}; replace one record", own)
    why = (
        f"{each}; what a client learns from a record, without noise, shapes its other releases, so all of them count; "
        "replace one client's data"
    )
    return Channel(name, "client", why, lambda s: (release(mechanism, r.dp_epsilon_smashed, r.dp_delta, s.rows),), own)


def _update(world: World) -> Channel:
    r, method = world.recipe, world.method
    name = "masks" if method.uploads in ("bits", "theta") else "weights"
    if method.uploads == "nothing":
        return Channel(name, "client", "nothing learned goes up", _nothing)
    if r.method == "splitfed-dp" and r.dp_calibration == "sound":
        why = f"clip and {r.dp_mechanism} noise, ε = {r.dp_epsilon_update:g} per upload; replace one client's data"
        return Channel(
            name, "client", why, lambda s: (release(r.dp_mechanism, r.dp_epsilon_update, r.dp_delta, s.uploads),)
        )
    if r.theta_noise > 0.0:
        reach = theta_sensitivity(world)
        why = f"Gaussian noise on θ, σ = {r.theta_noise:g} for a sensitivity of {reach:.4g}; add or remove one client"
        return Channel(name, "client", why, lambda s: (Event("gaussian", reach / r.theta_noise, s.uploads),))
    if r.score_clip > 0.0 and method.shows == "bits" and method.samples_masks:
        why = f"sampled bits of scores that moved by {r.score_clip:g} at most are C²/8-zCDP; add or remove one client"
        return Channel(name, "client", why, lambda s: (Event("zcdp", mask_rho(r.score_clip), s.uploads),))
    if world.noises_gradients:
        why = f"per-sample score gradients, clipped, noise {r.score_gradient_noise:g}; replace one record"
        return Channel(name, "sample", why, lambda s: (_gradients(world, s),))
    return Channel(name, "sample", _why_no_update(world), None)


def theta_sensitivity(world: World) -> float:
    """How far a client's θ can be from another's in L2: √d·(1−2c), or a quarter of how far scores may move."""
    r = world.recipe
    widest = math.sqrt(world.masked_size(max(world.depths))) * (1.0 - 2.0 * r.clip)
    return min(widest, r.score_clip / 4.0) if r.score_clip > 0.0 else widest


def _why_no_update(world: World) -> str:
    if world.method.trains != "scores":
        return "weights go up as they are (method=splitfed-dp, dp_calibration=sound)"
    if world.method.upload_masks > 1:
        return "means of several masks are rounded probabilities (theta_noise, or upload_masks=1 with score_clip=0.3)"
    if world.method.uploads == "bits" and world.method.samples_masks:
        return "scores may move without limit; score_clip=0.3 bounds what sampled bits tell"
    return "what goes up is not sampled, so a clip alone hides nothing (theta_noise)"


def _norms(world: World) -> Channel:
    if not any(bool(world.plain_view(d).shared.any()) for d in set(world.depths)):
        return Channel("norms", "client", "none goes up", _nothing)
    return Channel("norms", "sample", "trained floats go up without noise (norms=frozen or local)", None)


def _labels(world: World) -> Channel:
    r = world.recipe
    if r.labels == "u-shape":
        return Channel("labels", "client", "stay on the client", _nothing)
    if r.labels == "randomised":
        why = "randomised response, drawn once for the whole run; change one record's label"
        return Channel("labels", "sample", why, lambda s: (Event("pure", r.label_epsilon, 1),))
    return Channel("labels", "sample", "go up in the clear (labels=randomised or u-shape)", None)


def _features() -> Channel:
    return Channel("feature gradients", "sample", "the client's head answers with unnoised gradients", None)


def _indicator(world: World) -> Channel:
    r, name = world.recipe, "indicator"
    if not world.method.personalises or r.personal_ratio == 0.0:
        return Channel(name, "client", "no coordinate becomes personal by what was learned", _nothing)
    if r.personal_order == "random":
        return Channel(name, "client", "drawn at random, whatever was learned", _nothing)
    if world.noises_gradients:
        why = "chosen from scores whose every update was noised already"
        return Channel(name, "sample", why, lambda s: (_gradients(world, s),))
    return Channel(name, "sample", "chosen by θ before any noise or clip (personal_ratio=0)", None)


def _statistics(world: World) -> Channel:
    if not has_batch_norm(world.model) or world.recipe.statistics == "batch":
        return Channel("statistics", "client", "none goes up", _nothing)
    return Channel("statistics", "sample", "sums over training data go up before every evaluation (norm=group)", None)
