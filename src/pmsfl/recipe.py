"""Recipe: every knob of a run in one frozen place.

A recipe comes from a TOML file (shipped or your own), may be overlaid by a preset, and last by `key=value`
overrides. Sections in the TOML group keys for the reader; names are unique, so the section never matters, but for
`[methods.NAME]`: rates and optimisers that this method has instead. They belong to the file, and what goes over the
file goes over them.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pmsfl.errors import PmsflError
from pmsfl.presets import PRESETS, overlay
from pmsfl.recipe_files import nearest, shipped, shipped_text

RECIPE_VERSION = 1
SCHEDULES = ("constant", "cosine", "late")
OF_METHODS = "methods"  # [methods.splitfed]


class RecipeError(PmsflError):
    """A key or value that a recipe cannot have."""


def knob(
    default: Any,
    doc: str,
    section: str,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A field with its documentation and its limits."""
    meta = {"doc": doc, "section": section, "choices": choices, "low": low, "high": high}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class Recipe:
    """One run, completely described. Frozen: change it with `replace(key=value)`."""

    # --- what
    name: str = knob("custom", "what the recipe is called", "run")
    version: int = knob(RECIPE_VERSION, "format of the recipe itself", "run", low=1, high=RECIPE_VERSION)
    preset: str = knob("best", "which preset was laid over the recipe", "run", choices=tuple(PRESETS))
    method: str = knob("pm-sfl", "what is trained, uploaded, merged and kept; see `pmsfl methods`", "run")
    seed: int = knob(0, "every random draw derives from it", "run", low=0, high=2**63 - 1)
    rounds: int = knob(40, "communication rounds T", "run", low=1)
    dtype: str = knob("float32", "arithmetic of the whole run", "run", choices=("float32", "float64"))
    precision: str = knob(
        "auto",
        "forward passes in bf16 or in the full dtype; auto: bf16 on a GPU",
        "run",
        choices=("auto", "bf16", "full"),
    )
    capture: str = knob(
        "auto",
        "steps on a GPU: auto compiles and records them, graph records them as they are, off plays each anew",
        "run",
        choices=("auto", "graph", "off"),
    )
    eval_every: int = knob(10, "rounds between evaluations; the last round always is", "run", low=1)
    checkpoint_every: int = knob(10, "rounds between checkpoints", "run", low=1)
    keep_checkpoints: int = knob(3, "how many checkpoints stay on disk", "run", low=1)
    # --- data
    data: str = knob(
        "digits",
        "where samples come from",
        "data",
        choices=("digits", "cifar100", "cifar10", "leaf", "npz", "mmhar", "sonichar", "radar"),
    )
    data_path: str = knob("", "file or directory of that data (not needed for digits)", "data")
    partition: str = knob(
        "owner",
        "who holds what",
        "data",
        choices=("iid", "dirichlet", "dirichlet-client", "pathological", "shards", "owner"),
    )
    clients: int = knob(0, "N; 0 with partition owner: every owner", "data", low=0)
    alpha: float = knob(0.3, "Dirichlet concentration", "data", low=1e-6)
    classes_per_client: int = knob(2, "classes each client holds (pathological)", "data", low=1)
    shards_per_client: int = knob(2, "shards each client holds (shards)", "data", low=1)
    test_split: str = knob(
        "matched",
        "matched: a client's test labels follow its training labels; independent: drawn apart",
        "data",
        choices=("matched", "independent"),
    )
    test_fraction: float = knob(0.2, "share of a client's samples kept for testing", "data", low=0.01, high=0.9)
    test_gap: int = knob(0, "windows left out between training and test of a recording (radar)", "data", low=0)
    min_samples: int = knob(2, "least samples of a client, before its test rows are taken", "data", low=1)
    max_samples: int = knob(0, "most samples of a client; 0: no limit", "data", low=0)
    augment: str = knob("none", "augmentation of training images", "data", choices=("none", "crop", "crop-flip"))
    # --- model
    model: str = knob(
        "small-cnn",
        "small-cnn, resnet18 (-halves, -lean, -tapered), transformer, or package.module:function of your own",
        "model",
    )
    width: int = knob(0, "channels of the first block (or model width); 0: the model's own", "model", low=0, high=65536)
    stem_padding: int = knob(1, "padding of ResNet's stem", "model", low=0, high=1)
    frozen: str = knob(
        "kaiming",
        "weights at the start: Kaiming normal, or the same deviation with a random sign (FedPM); signed-masks: signs "
        "for those that stay frozen, Kaiming normal for those that are trained",
        "model",
        choices=("kaiming", "signed", "signed-masks"),
    )
    weights_scale: float = knob(
        1.0, "times the weights of blocks' layers at the start, frozen or trained", "model", low=0.01, high=10.0
    )
    norm: str = knob("batch", "batch norm (static), or group norm in its place", "model", choices=("batch", "group"))
    pretrained: str = knob("", "safetensors file with frozen weights instead", "model")
    score_init: str = knob("normal", "scores at the start: N(0, 1) or all 0", "model", choices=("normal", "constant"))
    score_spread: float = knob(
        1.0, "times so much: more is less random masks at the start", "model", low=0.0, high=10.0
    )
    depths: str = knob(
        "2", "cut after this block: '2', a ratio '1:1:1:1', one per client '1,2,2,…', or 'auto' by budget", "split"
    )
    top_mask: str = knob(
        "sampled",
        "masks of the server's blocks, where it has any: like a client's, or, as they never leave it, without chance",
        "split",
        choices=("sampled", "expected", "threshold"),
    )
    masked_top: bool = knob(False, "mask the server's blocks too (always on with mixed depths)", "split")
    budgets: str = knob(
        "",
        "for depths = auto: device classes or MB/GFLOP pairs, dealt over the clients: 'watch,phone,64/20'",
        "split",
    )
    merge: str = knob(
        "holders",
        "mixed depths, weights: average a block over the clients that hold it, or blend the server's in (Eq. 9)",
        "split",
        choices=("holders", "all"),
    )
    compensation: bool = knob(True, "with mixed depths, merge the server's θ into the clients' (Eq. 9)", "split")
    # --- stages at the cut
    cut_channels: int = knob(0, "channels that cross the cut, by a 1×1 layer; 0: all", "cut", low=0, high=65536)
    cut_weights: str = knob(
        "masked",
        "of that layer: frozen under masks like the bottom's, or trained and shared like its norms",
        "cut",
        choices=("masked", "trained"),
    )
    cut_pool: int = knob(1, "pixels pooled in both directions before they cross the cut", "cut", low=1, high=64)
    cut_sort: int = knob(
        0,
        "in windows of so many pixels a side, a sample's vectors cross in order of their first number; 0: off",
        "cut",
        low=0,
        high=65536,
    )
    cut_clip: float = knob(0.0, "most L2 norm of a sample's smashed data; 0: off", "cut", low=0.0)
    guard: float = knob(
        0.0, "weight of making a decoder fail that each client trains on its own smashed data; 0: off", "cut", low=0.0
    )
    guard_width: int = knob(32, "channels of that decoder", "cut", low=1, high=4096)
    no_peek: float = knob(
        0.0, "weight of the distance correlation of samples and smashed data (NoPeek); 0: off", "cut", low=0.0
    )
    # --- a round
    participation: float = knob(0.1, "C: share of the clients in a round", "round", low=0.0, high=1.0)
    cohort: int = knob(0, "K itself; 0: max(C·N, 1)", "round", low=0)
    epochs: int = knob(5, "local epochs", "round", low=1)
    merges: int = knob(
        1,
        "parts of a round's local work, each ended by uploads and a merge; the cohort stays for all of them",
        "round",
        low=1,
    )
    batch: int = knob(32, "samples in a mini-batch", "round", low=1)
    schedule: str = knob(
        "parallel",
        "server step on the union of the clients' batches, or one step per client batch",
        "round",
        choices=("parallel", "sequential"),
    )
    union_rate: str = knob(
        "constant",
        "the server's learning rate while fewer than the whole cohort are at work: the same, or by their share",
        "round",
        choices=("constant", "sqrt", "linear"),
    )
    weighting: str = knob("equal", "how clients weigh in the merge", "round", choices=("equal", "samples"))
    train: str = knob("masks", "what lg-fedavg and depthfl train", "round", choices=("masks", "weights"))
    labels: str = knob(
        "shared",
        "labels go to the server, are randomised first, or stay (the head is on the client)",
        "round",
        choices=("shared", "randomised", "u-shape"),
    )
    label_epsilon: float = knob(3.0, "ε of randomised labels", "round", low=1e-3)
    failures: float = knob(0.0, "chance that a sampled client never answers in a round", "round", low=0.0, high=1.0)
    stragglers: float = knob(
        0.0, "chance that it stops half-way: it leaves the union, its upload is dropped", "round", low=0.0, high=1.0
    )
    # --- masks
    estimator: str = knob(
        "plain",
        "gradient of a score: paper's Eq. 4, or without its extra σ(s)",
        "masks",
        choices=("plain", "paper"),
    )
    clip: float = knob(0.01, "c: θ stays in [c, 1−c], always", "masks", low=1e-6, high=0.49)
    entropy_target: float = knob(
        0.0,
        "bits of mean mask entropy that the server steers the merged θ towards; 0: left to itself",
        "masks",
        low=0.0,
        high=1.0,
    )
    entropy_rate: float = knob(0.05, "share by which it moves the logits in a round", "masks", low=0.0, high=1.0)
    mask_sharpness: float = knob(
        1.0,
        "forward masks are drawn with σ(so many times s): more is less chance in training; uploads keep θ = σ(s)",
        "masks",
        low=1.0,
        high=1000.0,
    )
    mask_act: str = knob(
        "drop",
        "what a mask's 0 does to its weight: it drops out (the paper's), or its sign flips",
        "masks",
        choices=("drop", "flip"),
    )
    forward_masks: int = knob(
        1,
        "a forward pass runs under the mean of so many masks of θ, drawn evenly",
        "masks",
        low=1,
        high=255,
    )
    mask_per: str = knob("batch", "a fresh mask per mini-batch or per round", "masks", choices=("batch", "round"))
    aggregate: str = knob(
        "damped",
        "how uploads are merged; settled: masks are sampled until rest_from, then damped more and more",
        "masks",
        choices=("sampled", "damped", "beta", "settled"),
    )
    upload_draw: str = knob(
        "independent",
        "chance in uploaded masks: each client's own, or spread evenly over the cohort: a mean with less noise",
        "masks",
        choices=("independent", "even"),
    )
    upload_masks: int = knob(
        1,
        "a client uploads the mean of so many masks of θ, drawn evenly: 1 takes a bit a coordinate, 3 two, 15 four",
        "masks",
        low=1,
        high=255,
    )
    damping: float = knob(0.5, "η of `damped`: θ ← (1−η)θ + η·mean; 0: K/N", "masks", low=0.0, high=1.0)
    beta_prior: float = knob(1.0, "pseudo-counts α = β that `beta` starts from", "masks", low=1.0)
    beta_reset: int = knob(1, "rounds after which `beta` forgets", "masks", low=1)
    min_contributors: int = knob(1, "a coordinate with fewer keeps its value", "masks", low=1)
    norms: str = knob("shared", "norms and biases of the bottom", "masks", choices=("shared", "local", "frozen"))
    # --- personalisation
    personal_ratio: float = knob(
        0.5, "ρ: share of coordinates that become personal; 0: off", "personal", low=0.0, high=1.0
    )
    agreement: float = knob(0.1, "share of the rounds before personalisation starts", "personal", low=0.0, high=1.0)
    growth: str = knob(
        "linear",
        "how the personal set grows",
        "personal",
        choices=("linear", "geometric", "one-shot", "count"),
    )
    growth_steps: int = knob(10, "participations until ρ is reached", "personal", low=1)
    growth_count: int = knob(1000, "coordinates per participation (growth count)", "personal", low=1)
    personal_scope: str = knob("layer", "ρ per layer or over all", "personal", choices=("layer", "global"))
    personal_order: str = knob(
        "disagree", "who becomes personal first", "personal", choices=("disagree", "magnitude", "random")
    )
    # --- differential privacy of splitfed-dp
    dp_calibration: str = knob(
        "paper", "paper: noise per coordinate, no guarantee; sound: clipped, with one", "dp", choices=("paper", "sound")
    )
    dp_mechanism: str = knob("gaussian", "noise of the sound calibration", "dp", choices=("gaussian", "laplace"))
    dp_epsilon_smashed: float = knob(0.1, "ε of one release of a sample's smashed data", "dp", low=1e-6)
    dp_epsilon_update: float = knob(5.0, "ε of one upload", "dp", low=1e-6)
    dp_delta: float = knob(1e-5, "δ of the Gaussian mechanism", "dp", low=1e-15, high=0.1)
    dp_clip_smashed: float = knob(10.0, "norm a sample's smashed data is clipped to (sound)", "dp", low=1e-9)
    dp_clip_update: float = knob(1.0, "norm an update is clipped to (sound)", "dp", low=1e-9)
    # --- differential privacy of the other methods; `pmsfl privacy` says what it comes to
    dp_smashed: str = knob(
        "off",
        "clip and noise each sample's smashed data (dp_epsilon_smashed, dp_clip_smashed, dp_delta)",
        "dp",
        choices=("off", "gaussian", "laplace"),
    )
    score_clip: float = knob(0.0, "L2 norm of a client's change of scores before masks go up; 0: off", "dp", low=0.0)
    score_gradient_noise: float = knob(
        0.0, "noise on the sum of per-sample score gradients, in units of score_gradient_clip; 0: off", "dp", low=0.0
    )
    score_gradient_clip: float = knob(1.0, "L2 norm each sample's score gradient is clipped to", "dp", low=1e-9)
    theta_noise: float = knob(
        0.0, "deviation of Gaussian noise on θ before masks are drawn from it; 0: off", "dp", low=0.0
    )
    dp_amplification: str = knob(
        "none",
        "amplification by sampling in the accounting; poisson needs Poisson batches, which no schedule here draws",
        "dp",
        choices=("none", "poisson"),
    )
    # --- optimisers
    lr_score: float = knob(0.1, "learning rate of scores (Adam)", "optimisers", low=0.0)
    score_decay: float = knob(
        0.0,
        "a step takes lr_score times so much of a score away, as AdamW has it: θ leans towards 0.5",
        "optimisers",
        low=0.0,
        high=10.0,
    )
    score_schedule: str = knob("constant", "of lr_score; late: down from rest_from on", "optimisers", choices=SCHEDULES)
    rest_from: float = knob(
        0.75,
        "share of the rounds after which a late schedule begins to fall, and settled masks to rest",
        "optimisers",
        low=0.0,
        high=0.99,
    )
    client_optimiser: str = knob("sgd", "for a client's weights and norms", "optimisers", choices=("sgd", "adam"))
    lr_client: float = knob(0.1, "learning rate of a client's weights and norms", "optimisers", low=0.0)
    client_state: str = knob(
        "fresh",
        "a client's optimiser state between its uploads; stay: kept until its round ends (with merges)",
        "optimisers",
        choices=("fresh", "stay", "persistent"),
    )
    server_optimiser: str = knob("sgd", "for the top", "optimisers", choices=("sgd", "adam"))
    lr_server: float = knob(0.1, "learning rate of the top", "optimisers", low=0.0)
    momentum: float = knob(0.9, "of sgd, on both sides", "optimisers", low=0.0, high=0.999)
    weight_decay: float = knob(5e-4, "of weights and norms; scores have score_decay", "optimisers", low=0.0)
    lr_schedule: str = knob("cosine", "of lr_client and lr_server over the rounds", "optimisers", choices=SCHEDULES)
    label_smoothing: float = knob(
        0.0,
        "share of a label's weight that is spread over all classes, for every method alike",
        "optimisers",
        low=0.0,
        high=0.9,
    )
    # --- evaluation
    eval_mask: str = knob("sampled", "mask at evaluation", "evaluation", choices=("sampled", "expected", "threshold"))
    eval_masks: int = knob(5, "masks that `sampled` averages over", "evaluation", low=1)
    statistics: str = knob(
        "global",
        "batch-norm statistics at evaluation: over all clients, each client's own in its bottom, or of the test batch",
        "evaluation",
        choices=("global", "client", "batch"),
    )
    # --- memory
    bank: str = knob(
        "auto",
        "where the clients' personal coordinates are kept; auto: a file where they would take more than 2 GiB",
        "memory",
        choices=("auto", "memory", "file"),
    )
    bank_dtype: str = knob(
        "same", "how their values are kept: exactly, or in half precision", "memory", choices=("same", "fp16")
    )
    # --- wire
    cut_codec: str = knob(
        "native",
        "smashed data on the wire (native: the run's dtype; int8, int4, int2: with a scale per channel)",
        "wire",
        choices=("native", "fp32", "bf16", "fp16", "int8", "int4", "int2"),
    )
    gradient_codec: str = knob(
        "same",
        "gradients at the cut on the wire (same: as cut_codec)",
        "wire",
        choices=("same", "native", "fp32", "bf16", "fp16", "int8", "int4", "int2"),
    )
    mask_codec: str = knob(
        "packed",
        "mask bits on the wire: one bit each, or coded against θ (needs the library constriction)",
        "wire",
        choices=("packed", "entropy"),
    )
    theta_codec: str = knob(
        "native",
        "θ on its way down: the run's dtype, a grid of 2^16 or 2^8 points, or coded (exact where θ has few values)",
        "wire",
        choices=("native", "u16", "u8", "entropy"),
    )
    # --- recording what crosses the wire, for `pmsfl attack`
    record: bool = knob(False, "keep what crosses the wire in chosen rounds, for `pmsfl attack`", "record")
    record_rounds: str = knob("last", "which rounds: last, all, or numbers from 1: 1,5,10", "record")
    record_clients: str = knob(
        "first", "whose messages: first (the round's client with most steps), all, or numbers: 3,7", "record"
    )
    record_mb: int = knob(1024, "most megabytes of all recordings; steps past it are left out", "record", low=1)

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _checked(f.name, getattr(self, f.name)))

    @property
    def turns(self) -> int:
        """How often uploads are merged in all. The engine counts these: a round has `merges` of them."""
        return self.rounds * self.merges

    def replace(self, **changes: Any) -> Recipe:
        """A copy with some keys changed; unknown keys and bad values raise RecipeError."""
        values = asdict(self)
        for key, value in changes.items():
            values[known_key(key)] = value
        return Recipe(**values)

    def overridden(self, overrides: Iterable[str], **changes: Any) -> Recipe:
        """A copy with `key=value` texts, then keyword changes, put in."""
        return self.replace(**dict(_parse_override(o) for o in overrides), **changes)

    def to_toml(self) -> str:
        """The resolved recipe as TOML, every key with its section."""
        lines: list[str] = []
        section = ""
        for f in fields(self):
            if f.metadata["section"] != section:
                section = f.metadata["section"]
                lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
            value = getattr(self, f.name)
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML wants it escaped
            lines.append(f"{f.name} = {text}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def load(source: str | Path, overrides: Iterable[str] = (), **changes: Any) -> Recipe:
        """A shipped recipe by name or a TOML file by path, with `key=value` overrides and keyword changes.

        What the file has for the chosen method alone is in the result; another method wants the file anew.
        """
        values, of_methods = _read(source)
        chosen = dict(_parse_override(o) for o in overrides)
        chosen |= {known_key(k): v for k, v in changes.items() if v is not None}
        method = _checked("method", chosen.get("method", values.get("method", _FIELDS["method"].default)))
        values |= of_methods.get(method, {})
        if "preset" in chosen:  # named on the command line: it lies over the file, whose own preset is off
            values = overlay(_checked("preset", chosen["preset"]), values)
        elif values.get("preset", "best") != "best":  # named in the file: it lies under the file's own keys
            values = overlay(_checked("preset", values["preset"]), {}) | values
        return Recipe(**(values | chosen))

    @staticmethod
    def from_toml(text: str, origin: str = "recipe") -> Recipe:
        """The recipe in a TOML text, as `to_toml` writes it."""
        return Recipe(**_flatten(_tree(text, origin), origin))


_FIELDS = {f.name: f for f in fields(Recipe)}


def known_key(key: str) -> str:
    """The key without the section that it may be written with; RecipeError where there is none of this name."""
    if key.startswith(f"{OF_METHODS}."):
        raise RecipeError(
            f"{key!r}: only a file has keys of one method; write {key.rpartition('.')[2]}, for whatever is trained"
        )
    name = key.rpartition(".")[2]
    if name not in _FIELDS:
        raise RecipeError(f"unknown key {key!r}: {nearest(name, _FIELDS)}")
    return name


def _checked(key: str, value: Any) -> Any:
    """The value in the key's own type, within its limits, or RecipeError."""
    f = _FIELDS[key]
    kind: type = type(f.default)
    if key in ("depths", "budgets") and isinstance(value, int | list | tuple):
        value = ",".join(map(str, value)) if not isinstance(value, int) else str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise RecipeError(f"{key} = {value!r}: must be {_TYPE_NAMES[kind]} ({f.metadata['doc']})")
    if isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"{key} = {value!r}: must be a finite number ({f.metadata['doc']})")
    choices, low, high = f.metadata["choices"], f.metadata["low"], f.metadata["high"]
    if choices and value not in choices:
        raise RecipeError(f"{key} = {value!r}: {nearest(str(value), choices)} (allowed: {', '.join(choices)})")
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RecipeError(f"{key} = {value!r}: must be {limits} ({f.metadata['doc']})")
    return value


_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _parse_override(text: str) -> tuple[str, Any]:
    """One `key=value`: the value is read as its key's type wants it."""
    key, equals, raw = text.partition("=")
    if not equals:
        raise RecipeError(f"override {text!r}: write it as key=value")
    name = known_key(key.strip())
    raw = raw.strip()
    kind: type = type(_FIELDS[name].default)
    try:
        if kind is bool:
            return name, {"true": True, "false": False, "1": True, "0": False}[raw.lower()]
        return name, kind(raw)
    except (ValueError, KeyError):
        doc = _FIELDS[name].metadata["doc"]
        raise RecipeError(f"{name} = {raw!r}: must be {_TYPE_NAMES[kind]} ({doc})") from None


def _read(source: str | Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A recipe's keys, and those that single methods have instead."""
    path = Path(source)
    if path.suffix == ".toml":
        try:
            return _split(_tree(path.read_text(encoding="utf-8"), str(path)), str(path))
        except OSError as e:
            raise RecipeError(f"cannot read recipe {path}: {e.strerror or e}") from None
        except UnicodeDecodeError:
            raise RecipeError(f"cannot read recipe {path}: it is not UTF-8 text") from None
    if str(source) not in shipped():
        raise RecipeError(f"unknown recipe {str(source)!r}: {nearest(str(source), shipped())} (or a .toml file)")
    values, of_methods = _split(_tree(shipped_text(str(source)), str(source)), str(source))
    return {"name": str(source)} | values, of_methods


def _split(tree: dict[str, Any], origin: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    found = tree.pop(OF_METHODS, {})
    if not isinstance(found, dict) or not all(isinstance(keys, dict) for keys in found.values()):
        raise RecipeError(
            f"{origin}: {OF_METHODS} = {found!r}: every method has a section of its own: [methods.splitfed]"
        )
    of_methods = {name: _of_method(name, keys, f"{origin}, [{OF_METHODS}.{name}]") for name, keys in found.items()}
    return _flatten(tree, origin), of_methods


def _of_method(name: str, keys: dict[str, Any], where: str) -> dict[str, Any]:
    """What one method has instead: rates and optimisers, so that everything else stays alike for all."""
    from pmsfl.methods import METHODS  # methods read recipes: here, once both are there

    if name not in METHODS:
        raise RecipeError(f"{where}: unknown method {name!r}: {nearest(name, METHODS)}")
    try:
        found = {key: _checked(key, value) for key, value in _flatten(keys, where).items()}
    except RecipeError as e:
        raise RecipeError(f"{where}: {e}") from None
    for key, value in found.items():
        if _FIELDS[key].metadata["section"] != "optimisers":
            raise RecipeError(
                f"{where}: {key} = {value!r}: a method has rates and optimisers of its own, everything else is for all "
                f"of them; write it outside of [{OF_METHODS}...], or a recipe for {name} alone"
            )
    return found


def _tree(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise RecipeError(f"{origin}: not valid TOML: {e}") from None


def _flatten(tree: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """All keys of a TOML tree; a section is only a heading."""
    flat: dict[str, Any] = {}
    for heading, value in tree.items():
        for key, v in value.items() if isinstance(value, dict) else ((heading, value),):
            name = known_key(key)
            if name in flat:
                raise RecipeError(f"{origin}: key {name!r} is given twice")
            flat[name] = v
    return flat
