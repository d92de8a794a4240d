"""The registry of attacks: a new attack is one new file and one line here. Weak ones first."""

from __future__ import annotations

from pmsfl.errors import PmsflError
from pmsfl.privacy.attacks.analytic import LayerByLayer
from pmsfl.privacy.attacks.base import BUDGETS, Attack, Budget
from pmsfl.privacy.attacks.both import SmashedAndUpdate
from pmsfl.privacy.attacks.decoder import Decode, DecodeFew, DecodeMany
from pmsfl.privacy.attacks.expectation import OverMasks
from pmsfl.privacy.attacks.floors import Grey, MeanImage
from pmsfl.privacy.attacks.gradient import CosineMatching, DeepLeakage
from pmsfl.privacy.attacks.joint import Joint, JointFew
from pmsfl.privacy.attacks.naive import ExpectedMask, GuessedMask, Inversion, OracleMask
from pmsfl.privacy.attacks.sets import DecodeSet, DecodeSets
from pmsfl.recipe_files import nearest

ATTACKS: dict[str, type[Attack]] = {
    a.name: a
    for a in (
        Grey,
        MeanImage,
        Inversion,
        ExpectedMask,
        GuessedMask,
        OverMasks,
        Joint,
        JointFew,
        SmashedAndUpdate,
        DeepLeakage,
        CosineMatching,
        LayerByLayer,
        Decode,
        DecodeFew,
        DecodeMany,
        DecodeSet,
        DecodeSets,
        OracleMask,
    )
}


def chosen_attacks(names: str) -> list[type[Attack]]:
    """The attacks that 'all' or 'a,b' names; the floors are always among them."""
    wanted = list(ATTACKS) if names == "all" else [n.strip() for n in names.split(",")]
    for name in wanted:
        if name not in ATTACKS:
            raise PmsflError(f"unknown attack {name!r}: {nearest(name, ATTACKS)} (allowed: all, {', '.join(ATTACKS)})")
    return [a for n, a in ATTACKS.items() if n in wanted or a.is_floor]


__all__ = ["ATTACKS", "BUDGETS", "Attack", "Budget", "chosen_attacks"]
