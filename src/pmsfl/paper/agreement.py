"""How many rounds clients agree on one mask before coordinates become personal."""

from __future__ import annotations

from pathlib import Path

from pmsfl.paper import published, rows
from pmsfl.paper.outcome import Outcome
from pmsfl.paper.plan import Table
from pmsfl.paper.settings import values, write_setting

VARIANTS = values("agreement", (0.0, 0.02, 0.1, 0.2, 0.5))
ABOUT = "PM-SFL with an initial agreement of 0 to 50 % of the rounds. The paper finds 10 % best and prints no figures."


def write(outcome: Outcome) -> list[Path]:
    """agreement.md, agreement.csv and a figure per scale."""
    axis = "initial agreement, % of the rounds"
    return write_setting(outcome, "agreement", axis, ABOUT, published.BEST_AGREEMENT, "agreement=0.1")


_UNIPEN = rows.with_single_masks(rows.unipen_own, rows.SINGLE_WRITERS)
LINES = ((rows.demo, VARIANTS), (rows.femnist_own, VARIANTS), (_UNIPEN, VARIANTS))
TABLE = Table(
    "agreement",
    "Initial agreement",
    "PM-SFL with an initial agreement of 0, 2, 10, 20 and 50 % of the rounds.",
    LINES,
    write,
)
