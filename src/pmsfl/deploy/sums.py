"""What server and sites hold to where masks are summed securely (deploy/secure): which runs it suits, whose sum a
round's is, and when a sum would show one site's mask."""

from __future__ import annotations

from collections.abc import Sequence

from pmsfl.deploy.secure import Session
from pmsfl.deploy.secure.primitives import check_library
from pmsfl.deploy.secure.session import fewest
from pmsfl.engine.plan import cohort_size, personal_from
from pmsfl.engine.world import World
from pmsfl.errors import PmsflError
from pmsfl.methods import make_method
from pmsfl.recipe import Recipe


def check_summable(recipe: Recipe, sites: int, min_clients: int) -> None:
    """PmsflError where a recipe's uploads cannot be summed securely, or the library for it is missing."""
    check_library()
    method = make_method(recipe)
    if method.uploads != "bits":
        raise PmsflError(
            f"--secure-sums: {recipe.method} uploads {method.uploads}, only mask bits are summed securely; take pm-sfl "
            "or another method that uploads bits, or leave --secure-sums out"
        )
    if method.upload_masks > 1:
        raise PmsflError(
            f"--secure-sums with upload_masks = {recipe.upload_masks}: bits are summed securely, one a coordinate; use "
            "upload_masks = 1"
        )
    if not method.samples_masks:
        raise PmsflError(
            f"--secure-sums: the bits of {recipe.method} are no draw, so a round that is played again uploads the "
            "same; from two sums, with and without one site, they could be read off. Take pm-sfl, or leave it out"
        )
    if recipe.weighting != "equal":
        raise PmsflError(
            f"--secure-sums with weighting = {recipe.weighting!r}: a sum modulo 2^b counts every site once; use "
            "weighting = 'equal'"
        )
    if min(sites, min_clients) < 2:
        raise PmsflError(
            f"--secure-sums with {sites} sites and --min-clients {min_clients}: a sum over one site hides nothing; "
            "both must be at least 2"
        )


def check_depths(recipe: Recipe, depths: Sequence[int]) -> None:
    """PmsflError where the depths of all sites leave one alone with its deepest blocks."""
    if len(set(depths)) == 1:
        return
    if alone(depths):
        raise PmsflError(
            f"--secure-sums with depths {','.join(map(str, depths))}: only one site has depth {max(depths)}, so the "
            "sum would be its mask there; give the greatest depth to at least two sites"
        )
    cohort = cohort_size(recipe.replace(cohort=min(recipe.cohort, len(depths))), len(depths))
    if cohort < len(depths):
        raise PmsflError(
            f"--secure-sums with mixed depths and a cohort of {cohort} of {len(depths)} sites: a round might take one "
            f"deep site alone; use cohort = {len(depths)} or equal depths"
        )


def alone(depths: Sequence[int]) -> bool:
    """Does only one of these have the greatest depth, so that a sum over its deepest blocks is its own mask?"""
    return sum(d == max(depths) for d in depths) < 2 if depths else True


def may_be_personal(world: World, round_: int) -> bool:
    """Can a site keep coordinates to itself in this round? The server is never told which."""
    r = world.recipe
    begun = round_ >= personal_from(r)
    by_design = any(bool(world.kept_from_start(d).any()) for d in set(world.depths))
    return by_design or (world.method.personalises and r.personal_ratio > 0.0 and begun)


def threshold(clients: int, least: int) -> int:
    """How many of so many sites a sum needs: see `fewest`, and as many as a round needs anyway."""
    return max(fewest(clients), min(least, clients))


def session_of(world: World, run: int, round_: int, clients: Sequence[int], needed: int, signed: bool) -> Session:
    """A round's secure sum: over the bottoms of all depths, a number per coordinate for the bits and, where some do not
    contribute, one for the contributors."""
    counts = world.mixed or may_be_personal(world, round_)
    size = world.masked_size(max(world.depths))
    return Session(run, round_, tuple(sorted(clients)), size, needed, counts, signed)
