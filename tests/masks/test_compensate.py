"""Eq. 9: the server's and the clients' θ of one layer, weighed by how many clients hold it (conformance 6)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmsfl.masks.compensate import compensate
from pmsfl.masks.random import Stream, root, uniform

CLIENTS, SERVER = (uniform(root(s, Stream.NOISE), 50, torch.float64) for s in (0, 1))


@pytest.mark.parametrize("cohort", [1, 3, 7, 10])
def test_a_layer_all_clients_hold_is_theirs_bit_for_bit(cohort: int) -> None:
    assert torch.equal(compensate(CLIENTS, SERVER, torch.full((50,), cohort), cohort), CLIENTS)


def test_a_layer_no_client_holds_is_the_servers_bit_for_bit() -> None:
    assert torch.equal(compensate(CLIENTS, SERVER, torch.zeros(50), 4), SERVER)


def test_what_nobody_holds_may_be_anything() -> None:
    unknown = torch.full_like(CLIENTS, float("nan"))
    assert torch.equal(compensate(unknown, SERVER, torch.zeros(50), 4), SERVER)
    assert torch.equal(compensate(CLIENTS, unknown, torch.full((50,), 4), 4), CLIENTS)


@given(st.integers(1, 12), st.data())
@settings(deadline=None, max_examples=40)
def test_the_mix_is_equation_9_per_coordinate(cohort: int, data: st.DataObject) -> None:
    holders = data.draw(st.lists(st.integers(0, cohort), min_size=50, max_size=50))
    mixed = compensate(CLIENTS, SERVER, torch.tensor(holders), cohort)
    for i, h in enumerate(holders):
        share = h / cohort
        assert float(mixed[i]) == pytest.approx((1 - share) * float(SERVER[i]) + share * float(CLIENTS[i]))
        low, high = sorted((float(SERVER[i]), float(CLIENTS[i])))
        assert low - 1e-12 <= float(mixed[i]) <= high + 1e-12
