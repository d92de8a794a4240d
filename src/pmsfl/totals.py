"""What adds up over a run's rounds, and how a round is written down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pmsfl.engine.evaluate import Evaluation
from pmsfl.engine.metrics import RoundMetrics
from pmsfl.wire.ledger import Ledger


@dataclass
class Totals:
    """What adds up over rounds and survives a resume."""

    ledger: Ledger = field(default_factory=Ledger)
    rounds: int = 0
    seconds: float = 0.0
    seconds_training: float = 0.0
    best: float | None = None
    last: dict[str, Any] = field(default_factory=dict)  # newest evaluation

    def after(self, rounds: int, training: float, seconds: float, evaluation: Evaluation | None) -> Totals:
        """The totals one round later; these stay as they are, but for the ledger, which both share."""
        best, last = self.best, self.last
        if evaluation is not None:
            last = evaluation_line(evaluation)
            if last["accuracy"] is not None:
                best = max(last["accuracy"], -math.inf if best is None else best)
        return Totals(self.ledger, rounds, self.seconds + seconds, self.seconds_training + training, best, last)

    def metadata(self) -> dict[str, Any]:
        """The totals as a checkpoint keeps them."""
        return {
            "bytes": self.ledger.as_dict(),
            "messages": self.ledger.messages_as_dict(),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "seconds_training": self.seconds_training,
            "best": self.best,
            "last": self.last,
        }

    @staticmethod
    def of(metadata: dict[str, Any]) -> Totals:
        """The inverse of `metadata`."""
        ledger = Ledger().load(metadata["bytes"], metadata["messages"])
        rest = {k: metadata[k] for k in ("rounds", "seconds", "seconds_training", "best", "last")}
        return Totals(ledger, **rest)


def metrics_line(m: RoundMetrics, sent: dict[str, int]) -> dict[str, Any]:
    """One round as a line of metrics.jsonl."""
    return {
        "round": m.round + 1,
        "loss": m.loss,
        "samples": m.samples,
        "mask_entropy": m.mask_entropy,
        "entropy_per_layer": m.entropy_per_layer,
        "disagree": m.disagree,
        "at_clip": m.at_clip,
        "failed": m.failed,
        "late": m.late,
        "personal": m.personal,
        "bytes": sent,
    }


def evaluation_line(e: Evaluation) -> dict[str, Any]:
    """One evaluation as it stands in metrics.jsonl."""

    def clean(value: float) -> float | None:
        return None if math.isnan(value) else float(value)  # JSON knows no NaN

    ways = {mode: {"accuracy": clean(own), "accuracy_global": clean(all_)} for mode, (own, all_) in e.by_mask.items()}
    return ({"by_mask": ways} if ways else {}) | {
        "accuracy": clean(e.accuracy),
        "accuracy_weighted": clean(e.accuracy_weighted),
        "accuracy_global": clean(e.accuracy_global),
        "accuracy_local_global": clean(e.accuracy_local_global),
        "deviation": clean(e.deviation),
        "per_client": [clean(v) for v in e.per_client],
        "per_client_global": [clean(v) for v in e.per_client_global],
    }
