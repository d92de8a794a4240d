"""What a recipe may not promise: claims of privacy that its own settings defeat are refused before anything runs."""

from __future__ import annotations

from pmsfl.errors import PmsflError
from pmsfl.methods import Method
from pmsfl.models.inspect import has_batch_norm
from pmsfl.models.split import SplitModel
from pmsfl.recipe import Recipe


def check_claims(recipe: Recipe, method: Method, model: SplitModel) -> None:
    """PmsflError where a guarantee is asked for that cannot hold."""
    if recipe.dp_amplification == "poisson":
        raise PmsflError(
            "dp_amplification = 'poisson': amplification needs batches that are Poisson samples, but every batch here "
            "is full and dealt from a shuffled order, and cohorts have a fixed size; use dp_amplification = 'none'"
        )
    _check_applicable(recipe, method)
    if recipe.upload_draw == "even" and recipe.score_clip > 0.0:
        raise PmsflError(
            f"score_clip = {recipe.score_clip:g} with upload_draw = 'even': the clip bounds what a mask tells if its "
            "chance is the client's own, and here the other clients' masks tell of it; use upload_draw = 'independent'"
        )
    if method.upload_masks > 1 and recipe.score_clip > 0.0 and recipe.theta_noise == 0.0:
        raise PmsflError(
            f"score_clip = {recipe.score_clip:g} with upload_masks = {recipe.upload_masks}: the clip bounds what one "
            "mask tells, and the mean of several tells more; use upload_masks = 1"
        )
    if recipe.forward_masks > 1 and recipe.entropy_target > 0.0 and method.samples_masks:
        raise PmsflError(
            f"entropy_target = {recipe.entropy_target:g} with forward_masks = {recipe.forward_masks}: the entropy of θ "
            "is steered, and the mean of several masks has another; use forward_masks = 1"
        )
    if recipe.forward_masks > 1 and recipe.mask_per == "round" and method.samples_masks:
        raise PmsflError(
            f"mask_per = 'round' with forward_masks = {recipe.forward_masks}: only a single mask can be kept while θ "
            "moves; use forward_masks = 1 or mask_per = 'batch'"
        )
    asked = per_record(recipe)
    if asked and has_batch_norm(model):
        raise PmsflError(
            f"{asked} with norm = 'batch': batch statistics make every output depend on every record, so no "
            "per-record guarantee holds; use norm = 'group'"
        )
    if recipe.score_gradient_noise > 0.0:
        _check_gradients(recipe, method)


def per_record(recipe: Recipe) -> str:
    """The setting that asks for a guarantee per record, '' where none does."""
    if recipe.method == "splitfed-dp" and recipe.dp_calibration == "sound":
        return "dp_calibration = 'sound'"
    if recipe.dp_smashed != "off":
        return f"dp_smashed = {recipe.dp_smashed!r}"
    if recipe.score_gradient_noise > 0.0:
        return f"score_gradient_noise = {recipe.score_gradient_noise:g}"
    return ""


def _check_applicable(recipe: Recipe, method: Method) -> None:
    """Every mechanism that is asked for is one the method has."""
    if recipe.dp_smashed != "off" and recipe.method == "splitfed-dp":
        raise PmsflError(
            f"dp_smashed = {recipe.dp_smashed!r} with method = 'splitfed-dp', which has noise of its own; use "
            "dp_calibration = 'sound' and dp_mechanism, and leave out dp_smashed"
        )
    for key in ("score_clip", "score_gradient_noise", "theta_noise"):
        value = getattr(recipe, key)
        if value > 0.0 and method.trains != "scores":
            raise PmsflError(
                f"{key} = {value:g}: {recipe.method} trains no scores, so nothing would be protected; take pm-sfl "
                "or another method that trains masks (pmsfl methods), or splitfed-dp for weights"
            )


def _check_gradients(recipe: Recipe, method: Method) -> None:
    """Noised score gradients protect a record only if nothing else on the client learns from it."""
    asked = f"score_gradient_noise = {recipe.score_gradient_noise:g}"
    if recipe.norms != "frozen":
        raise PmsflError(
            f"{asked} with norms = {recipe.norms!r}: norms would learn from every record without noise, and scores "
            "from norms; use norms = 'frozen'"
        )
    if recipe.guard or recipe.no_peek:
        raise PmsflError(
            f"{asked} with guard or no_peek: what they add to a client's loss depends on many records at once; leave "
            "them out"
        )
    if method.exits or recipe.labels == "u-shape":
        what = f"method = {recipe.method!r}" if method.exits else "labels = 'u-shape'"
        raise PmsflError(
            f"{asked} with {what}: the client's own classifier would learn from every record without noise; use a "
            "method without early exits and labels = 'shared' or 'randomised'"
        )
