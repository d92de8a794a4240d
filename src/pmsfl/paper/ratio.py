"""Which share of the mask becomes personal."""

from __future__ import annotations

from pathlib import Path

from pmsfl.paper import published, rows
from pmsfl.paper.outcome import Outcome
from pmsfl.paper.plan import Table
from pmsfl.paper.settings import values, write_setting

VARIANTS = values("personal_ratio", (0.0, 0.1, 0.3, 0.5, 0.7, 0.9))
ABOUT = (
    "PM-SFL with 0 to 90 % of each client's coordinates personal. The paper finds 50 % best and prints no figures. "
    "Whether a large share pays off hangs on the batch-norm statistics at evaluation, so both kinds are here."
)


def write(outcome: Outcome) -> list[Path]:
    """ratio.md, ratio.csv and a figure per scale."""
    axis = "personal coordinates, %"
    return write_setting(outcome, "personal_ratio", axis, ABOUT, published.BEST_RATIO, "personal_ratio=0")


_UNIPEN = tuple(rows.with_single_masks(row, rows.SINGLE_WRITERS) for row in (rows.unipen, rows.unipen_own))
LINES = tuple((row, VARIANTS) for row in (rows.demo, rows.demo_own, rows.femnist, rows.femnist_own, *_UNIPEN))
TABLE = Table("ratio", "Personal ratio", "PM-SFL with 0 to 90 % of the mask personal.", LINES, write)
