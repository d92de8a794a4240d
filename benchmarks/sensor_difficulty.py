"""How hard a prepared sensor set is for plain classifiers: python benchmarks/sensor_difficulty.py SET.npz ...

Multinomial logistic regression, trained on training takes and tested on test takes: on all subjects together
(pooled), on each subject alone (own), and on the other subjects only (others). This, never a federated method, is what
the simulator's difficulty was set with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

PENALTY = {"features": 3e-3, "pixels": 1e-2, "one frame": 1e-2}


def features(x: np.ndarray) -> np.ndarray:
    """Maps [n, 64, 64] → [n, 256]: mean and deviation over time per Doppler bin, and how fast they change, coarsely."""
    x = x.astype(np.float32) / 255
    spectrum = np.abs(np.fft.rfft(x - x.mean(1, keepdims=True), axis=1))[:, 1:17] / 64
    coarse = spectrum.reshape(len(x), 8, 2, 16, 4).mean((2, 4)).reshape(len(x), -1)
    return np.concatenate([x.mean(1), x.std(1), coarse], 1)


def pixels(x: np.ndarray) -> np.ndarray:
    """Maps → [n, 512]: the map itself, averaged over 4 frames and 2 bins."""
    small = x.reshape(len(x), 16, 4, 32, 2).mean((2, 4)) / 255
    return small.reshape(len(x), -1).astype(np.float32)


def one_frame(x: np.ndarray) -> np.ndarray:
    """Maps → [n, 64]: the frame in the middle."""
    return x[:, 32].astype(np.float32)


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "features": features,
    "pixels": pixels,
    "one frame": one_frame,
}


def accuracy(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, penalty: float) -> float:
    """Accuracy on rows `test` of a logistic regression fitted to rows `train`."""
    mean, std = x[train].mean(0), x[train].std(0) + 1e-6
    inputs = torch.tensor((x - mean) / std, dtype=torch.float32)
    labels = torch.tensor(y)
    weights = torch.zeros(x.shape[1], int(y.max()) + 1, requires_grad=True)
    bias = torch.zeros(int(y.max()) + 1, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights, bias], max_iter=150, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(inputs[train] @ weights + bias, labels[train]) + penalty * weights.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    with torch.no_grad():
        return ((inputs[test] @ weights + bias).argmax(1) == labels[test]).float().mean().item()


def judge(path: str) -> None:
    """Print the three accuracies for every view of a set."""
    with np.load(path) as saved:
        x, y, owner, is_test = saved["x"], saved["y"], saved["owner"], saved["is_test"]
    for name, view in VIEWS.items():
        inputs, penalty = view(x), PENALTY[name]
        pooled = accuracy(inputs, y, ~is_test, is_test, penalty)
        own, others = [], []
        for person in np.unique(owner):
            mine = owner == person
            own.append(accuracy(inputs, y, ~is_test & mine, is_test & mine, penalty))
            others.append(accuracy(inputs, y, ~is_test & ~mine, is_test & mine, penalty))
        print(
            f"{path}  {name:10s} pooled {pooled:.3f}  own {np.mean(own):.3f}  others {np.mean(others):.3f}", flush=True
        )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        judge(argument)
