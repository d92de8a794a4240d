"""The tables and figures there are: a new one is one new file and one line here."""

from __future__ import annotations

from pmsfl.paper import (
    ablation,
    agreement,
    communication,
    convergence,
    rates,
    ratio,
    reconstructions,
    table1,
    tradeoff,
    variance,
)
from pmsfl.paper.plan import Table

TABLES: dict[str, Table] = {
    module.TABLE.name: module.TABLE
    for module in (
        table1,
        rates,
        convergence,
        communication,
        agreement,
        ratio,
        variance,
        ablation,
        tradeoff,
        reconstructions,
    )
}
