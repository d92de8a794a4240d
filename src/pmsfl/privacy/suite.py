"""Run attacks on a case and judge them. Only here do reconstructions meet the true images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pmsfl.engine.record import fastest_kernels
from pmsfl.privacy.attacks.base import Attack, Budget
from pmsfl.privacy.cases import Case
from pmsfl.privacy.metrics import matched, psnr, ssim
from pmsfl.privacy.threat import ThreatModel, Transcript

REFERENCE = ("inversion", "decoder")  # what is tried on the bottom without its mask
CLEARLY = 0.1 + 1e-9  # above the floor: more than an image of nothing shows by chance


@dataclass(frozen=True)
class Outcome:
    """What one attack reached: means over the images, or why it could not be tried."""

    name: str
    about: str
    role: str  # attack, floor or oracle
    why_not: str | None = None
    ssim: float = 0.0
    ssim_matched: float = 0.0  # after the public channel means and deviations were put in
    psnr: float = 0.0
    seconds: float = 0.0
    images: Tensor | None = None
    failed: bool = False  # tried, but the machine gave up: the maximum lacks it

    @property
    def score(self) -> float:
        """The better of both: an attacker knows the public means and may use them or not."""
        return max(self.ssim, self.ssim_matched)

    def as_dict(self) -> dict[str, float]:
        """The figures, for JSON."""
        return {
            "score": round(self.score, 4),
            "ssim": round(self.ssim, 4),
            "ssim_matched": round(self.ssim_matched, 4),
            "psnr": round(self.psnr, 2),
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class Verdict:
    """A suite's outcomes, the strongest attack first."""

    attacks: tuple[Outcome, ...]  # all of them, floors and oracle too
    unmasked: tuple[Outcome, ...]  # on the bottom without its mask; empty where it has none
    compared: bool = True  # was the bottom without its mask tried, where there is one?

    @property
    def best(self) -> Outcome | None:
        """The strongest attack that a server could really run."""
        return max((o for o in self.tried if o.role == "attack"), key=lambda o: o.score, default=None)

    @property
    def tried(self) -> list[Outcome]:
        """Those that could be tried."""
        return [o for o in self.attacks if o.why_not is None]

    @property
    def failed(self) -> list[str]:
        """Those that broke off."""
        plain = [f"{o.name} without mask" for o in self.unmasked if o.failed]
        return [o.name for o in self.attacks if o.failed] + plain

    @property
    def floor(self) -> float:
        """What anybody gets who sees nothing."""
        return max((o.score for o in self.tried if o.role == "floor"), default=0.0)

    @property
    def reference(self) -> float | None:
        """The maximum without a mask; the maximum itself where there is none. None: nobody tried."""
        if not self.compared:
            return None
        scores = [o.score for o in self.unmasked if o.why_not is None and o.role == "attack"]
        if scores or self.unmasked:
            return max(scores, default=None)
        return None if self.best is None else self.best.score


def run_suite(
    case: Case,
    attacks: Sequence[type[Attack]],
    budget: Budget,
    tell: Callable[[str], None] = lambda line: None,
    compare: bool = True,
) -> Verdict:
    """Every attack on the case, and the reference ones on the same bottom without its mask.

    compare: False leaves the reference out, which takes as long as the attack itself.
    """
    found = [_tried(a(budget), case.view, case.threat, case.truth, tell) for a in attacks]
    plain = []
    if compare and case.unmasked is not None:
        bare = case.threat.unmasked()
        plain = [
            _tried(a(budget), case.unmasked, bare, case.truth, lambda line: tell(f"without masks: {line}"))
            for a in attacks
            if a.name in REFERENCE
        ]
    ordered = sorted(found, key=lambda o: (o.why_not is not None, -o.score))
    return Verdict(tuple(ordered), tuple(plain), compare or case.unmasked is None)


def _tried(
    attack: Attack, view: Transcript, threat: ThreatModel, truth: Tensor, tell: Callable[[str], None]
) -> Outcome:
    role = "floor" if attack.is_floor else "oracle" if attack.is_oracle else "attack"
    outcome = Outcome(attack.name, attack.about, role, attack.why_not(view, threat))
    if outcome.why_not is not None:
        return outcome
    tell(attack.about)
    began = time.perf_counter()
    on_gpu = threat.device.type == "cuda"
    try:
        with fastest_kernels() if on_gpu else nullcontext():
            images = attack.run(view, threat)
        if on_gpu:
            torch.cuda.synchronize()
    except RuntimeError as error:  # out of memory, say: what the others reached must not be lost with it
        why = f"it failed: {(str(error).strip() or type(error).__name__).splitlines()[0][:200]}"
        tell(f"{attack.name}: {why}")
        return replace(outcome, why_not=why, failed=True)
    return judged(replace(outcome, seconds=time.perf_counter() - began), images, truth, threat)


def judged(outcome: Outcome, images: Tensor, truth: Tensor, threat: ThreatModel) -> Outcome:
    """The outcome with its figures put in."""
    images = images.to(truth.dtype)
    mean, std = (v.reshape(-1).to(truth.dtype) for v in (threat.surface.mean, threat.surface.std))
    return replace(
        outcome,
        ssim=float(ssim(images, truth).mean()),
        ssim_matched=float(ssim(matched(images, mean, std), truth).mean()),
        psnr=float(psnr(images, truth).clamp_max(99.0).mean()),
        images=images,
    )


def meaning(verdict: Verdict) -> str:
    """What the figures say, in plain words."""
    missing = f" The figures lack what broke off: {', '.join(verdict.failed)}." if verdict.failed else ""
    return _meaning(verdict) + missing


def _meaning(verdict: Verdict) -> str:
    best, floor, reference = verdict.best, verdict.floor, verdict.reference
    if best is None:
        return "No attack could be tried, so nothing is known."
    if best.score < floor + 0.05:
        return (
            f"No attack got further than an image of nothing ({best.score:.2f} against {floor:.2f}). That is no proof: "
            "a low score only says that these attacks, at this budget, failed."
        )
    if verdict.compared and not verdict.unmasked:
        return (
            f"A server that runs '{best.name}' sees the images at SSIM {best.score:.2f} (nothing: {floor:.2f}, equal: "
            "1). There is no random mask to hide them."
        )
    if reference is None:
        return f"A server that runs '{best.name}' sees the images at SSIM {best.score:.2f} (nothing: {floor:.2f})."
    if max(best.score, reference) <= floor + CLEARLY:
        return (
            f"These attacks hardly get further than an image of nothing ({floor:.2f}), with a mask ({best.score:.2f}) "
            f"or without ({reference:.2f}), so they say nothing about the mask. A larger budget may."
        )
    share = (best.score - floor) / max(reference - floor, 1e-9)
    how = (
        "The mask hides nothing from it"
        if share >= 0.9
        else "The mask hides some of it"
        if share >= 0.5
        else "The mask hides most of it from these attacks, which proves nothing about better ones"
    )
    return (
        f"A server that runs '{best.name}' sees the images at SSIM {best.score:.2f}; without a mask it would see them "
        f"at {reference:.2f}, and an image of nothing scores {floor:.2f}. {how}."
    )
