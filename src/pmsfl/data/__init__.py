"""Data: sources of labelled rows, and how they are dealt to the clients of a federation."""

from __future__ import annotations

from pmsfl.data.assemble import DATA_NAMES, PARTITIONS, TEST_SPLITS, Plan, assemble, check_plan, load_source
from pmsfl.data.federation import Federation
from pmsfl.data.source import Source

__all__ = [
    "DATA_NAMES",
    "PARTITIONS",
    "TEST_SPLITS",
    "Federation",
    "Source",
    "load_federation",
    "load_source",
]


def load_federation(
    data: str,
    data_path: str | None,
    *,
    partition: str,
    clients: int | None,
    alpha: float,
    classes_per_client: int,
    shards_per_client: int,
    test_split: str,
    test_fraction: float,
    min_samples: int,
    max_samples: int | None,
    seed: int,
    test_gap: int = 0,
) -> Federation:
    """Return the named data dealt to clients; the same arguments and files give the same federation.

    data: digits (built in), cifar100, cifar10, leaf, npz, mmhar, sonichar or radar (files at `data_path`).
    partition: iid, dirichlet (per class), dirichlet-client (per client), pathological, shards or owner. With
    owner, `clients` keeps the largest that many owners and None or 0 keeps all; owners below `min_samples`
    (training rows, where the data marks its test rows) are left out. The others need `clients` and move rows
    until every client has `min_samples`.
    test_split: matched gives a client tests in the proportions of its own labels; independent deals the test
    rows by the same partition with another seed. By owner, the data's own test rows are used where marked.
    test_fraction: the share of a client's rows that are tests. With an official test set, matched tests are
    drawn from it (clients may share rows), n_k * |test| / |train| of them at most.
    test_gap: windows left out between training and test rows of a recording (radar, which is split by time).
    max_samples: the most rows a client has, train and test together; None for no limit.
    mean and std come from the training rows only.
    """
    plan = Plan(
        partition=partition,
        clients=clients or 0,
        alpha=alpha,
        classes_per_client=classes_per_client,
        shards_per_client=shards_per_client,
        test_split=test_split,
        test_fraction=test_fraction,
        min_samples=min_samples,
        max_samples=max_samples or None,
        seed=seed,
        test_gap=test_gap,
    )
    check_plan(plan)
    return assemble(load_source(data, data_path), plan)
