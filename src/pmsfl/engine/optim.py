"""SGD and Adam as functions on rows: a cohort's parameters are one [K, n] tensor, its state too.

torch.optim keeps one step count per parameter; here rows of clients leave the step one by one, so the count is
a tensor with one entry per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


@dataclass
class RowOptimiser:
    """State of SGD with momentum, or of Adam, for rows [K, n]."""

    kind: str
    first: Tensor  # momentum buffer, or Adam's first moment
    second: Tensor  # Adam's second moment; empty for SGD
    steps: Tensor  # [K, 1]
    momentum: float = 0.9
    weight_decay: float = 0.0  # as a part of the gradient
    shrinkage: float = 0.0  # beside the gradient (AdamW's): what Adam divides by would undo a part of it

    @staticmethod
    def fresh(
        kind: str, like: Tensor, momentum: float = 0.9, weight_decay: float = 0.0, shrinkage: float = 0.0
    ) -> RowOptimiser:
        """A state of zeros for parameters `like` [K, n]."""
        second = torch.zeros_like(like) if kind == "adam" else like.new_zeros(like.shape[0], 0)
        steps = like.new_zeros(like.shape[0], 1)
        return RowOptimiser(kind, torch.zeros_like(like), second, steps, momentum, weight_decay, shrinkage)

    def step(self, parameters: Tensor, gradient: Tensor, lr: float | Tensor) -> None:
        """Move `parameters` [K, n] in place; gradient [K, n]."""
        p, first, second, steps = parameters, self.first, self.second, self.steps
        gradient = gradient.to(p.dtype)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * p
        if self.shrinkage:
            p.mul_(1.0 - lr * self.shrinkage)
        if self.kind == "sgd":
            first.mul_(self.momentum).add_(gradient)
            p.sub_(lr * first)
            return
        steps += 1
        first.lerp_(gradient, 1.0 - BETA_1)
        second.mul_(BETA_2).addcmul_(gradient, gradient, value=1.0 - BETA_2)
        corrected = second.sqrt().div_((1.0 - BETA_2**steps).sqrt()).add_(EPSILON)
        p.sub_(lr * (first / (1.0 - BETA_1**steps)) / corrected)

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors."""
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Put named tensors back."""
        self.first.copy_(tensors["first"])
        self.second.copy_(tensors["second"])
        self.steps.copy_(tensors["steps"])
