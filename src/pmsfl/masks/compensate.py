"""Layer-wise knowledge compensation (Eq. 9): what deep clients and the server know of the same layer, merged."""

from __future__ import annotations

from torch import Tensor


def compensate(clients: Tensor, server: Tensor, holders: Tensor, cohort: int) -> Tensor:
    """θ = (1 − |K^l|/|K|)·θ_server + (|K^l|/|K|)·θ_clients, per coordinate [P].

    holders: how many of the `cohort` sampled clients hold the coordinate's layer. Where all hold it, the
    clients' value is returned exactly (equal depths: the identity); where none does, the server's.
    """
    share = holders.to(clients.dtype) / cohort
    mixed = (1.0 - share) * server + share * clients
    return mixed.where(share < 1.0, clients).where(share > 0.0, server)
