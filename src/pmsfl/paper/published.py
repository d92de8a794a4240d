"""The figures the paper prints; everything that shows one labels it "paper".

Table 1: test accuracy in percent, the mean of three seeds, without a spread. The figures on convergence,
communication, agreement and ratio have no numbers in the text but those below.
"""

from __future__ import annotations

SOURCE = "PM-SFL (KDD 2026)"

_METHODS = ("standalone", "splitfed", "splitfed-dp", "splitfed-pm", "lg-fedavg", "depthfl", "pm-sfl")
_TABLE1: dict[str, tuple[float | None, ...]] = {
    "cifar100": (30.16, 51.39, 38.87, 50.81, None, None, 51.02),
    "femnist": (74.31, 78.53, 75.45, 68.41, 71.32, None, 81.89),
    "mmhar": (80.69, 85.48, 82.86, 77.21, 83.76, None, 91.18),
    "sonichar": (74.07, 80.09, 75.48, 71.67, 79.34, None, 88.96),
    "cifar100-depths": (16.72, 27.09, 21.15, 14.06, None, 31.21, 42.47),
    "femnist-depths": (65.37, 68.77, 65.95, 53.76, None, 71.26, 78.56),
}
ROUNDS = {
    "cifar100": 1000,
    "cifar100-depths": 1000,
    "femnist": 500,
    "femnist-depths": 500,
    "mmhar": 100,
    "sonichar": 100,
}
SEEDS = 3
BEST_AGREEMENT = 0.1  # "50 rounds, equivalent to 10 % of total training rounds"
BEST_RATIO = 0.5  # "selecting half of the masks for personalization"


def accuracy(row: str, method: str) -> float | None:
    """Table 1's figure in percent; None where the paper has a dash, or no such cell. `pm-sfl@paper` is PM-SFL."""
    plain = method.partition("@")[0]
    if plain not in _METHODS:
        return None
    return _TABLE1.get(row, (None,) * len(_METHODS))[_METHODS.index(plain)]
