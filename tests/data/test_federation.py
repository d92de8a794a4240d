"""The federation's own checks, numbers and fingerprint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pmsfl.data import Federation
from pmsfl.data.federation import channel_stats
from pmsfl.errors import PmsflError


def rows(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@pytest.fixture
def small() -> Federation:
    return Federation(
        name="small",
        x=np.arange(6 * 4, dtype=np.uint8).reshape(6, 1, 2, 2),
        y=rows(0, 1, 2, 0, 1, 2),
        train=(rows(0, 1), rows(3)),
        test=(rows(2), rows()),
        global_test=rows(2, 5),
        classes=4,
        mean=(0.5,),
        std=(0.2,),
        owners=("ann", "bob"),
        global_test_is_official=False,
    )


def test_numbers_describe_the_training_rows(small: Federation) -> None:
    assert small.clients == 2
    assert small.sizes == (2, 1)
    assert small.label_counts().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    summary = small.summary()
    assert summary["train_rows"] == 3
    assert summary["clients_without_test"] == 1
    assert summary["shape"] == "1x2x2"
    assert summary["classes_per_client_mean"] == 1.5


def test_the_fingerprint_is_stable_and_notices_every_change(small: Federation) -> None:
    other_x = small.x.copy()
    other_x[5, 0, 1, 1] += 1
    changed = [
        replace(small, x=other_x),
        replace(small, y=rows(0, 1, 2, 0, 1, 3)),
        replace(small, train=(rows(0), rows(1, 3))),
        replace(small, test=(rows(2), rows(5))),
        replace(small, global_test=rows(5)),
    ]
    prints = [fed.fingerprint() for fed in (small, *changed)]
    assert len(set(prints)) == len(prints)
    assert replace(small, x=small.x.copy(), notes=("seen",)).fingerprint() == prints[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((6, 2, 2), np.uint8)}, "x has shape"),
        ({"x": np.zeros((6, 1, 2, 2), np.int32)}, "type int32"),
        ({"x": np.full((6, 1, 2, 2), np.nan, np.float32)}, "NaN"),
        ({"y": rows(0, 1)}, "y has shape"),
        ({"y": rows(0, 1, 2, 0, 1, 4)}, "0..3"),
        ({"y": rows(0, 1, 2, 0, 1, -1)}, "from -1"),
        ({"train": (rows(0, 6), rows(3))}, r"train\[0\] names rows 0..6"),
        ({"train": (rows(0, -1), rows(3))}, r"train\[0\] names rows -1..0"),
        ({"train": (rows(0, 0), rows(3))}, "more than once"),
        ({"train": (rows(0, 2), rows(3))}, r"client 0 \(ann\) has 1 rows both in train and in test"),
        ({"train": (rows(0),)}, "must agree"),
        ({"train": (), "test": (), "owners": ()}, "0 clients"),
        ({"test": (rows(2), np.zeros(1))}, r"test\[1\] has shape \(1,\) and type float64"),
        ({"global_test": rows(9)}, "global_test"),
        ({"mean": (0.1, 0.2)}, "1 channels"),
        ({"std": (0.0,)}, "above 0"),
    ],
)
def test_inconsistent_federations_are_refused(small: Federation, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PmsflError, match=message):
        replace(small, **change)


def test_statistics_are_per_channel_over_the_given_rows_only() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (5000, 3, 2, 2), dtype=np.uint8)
    used = np.arange(0, 5000, 1)[:4500]
    mean, std = channel_stats(x, used)
    expected = x[used].astype(np.float64) / 255
    np.testing.assert_allclose(mean, expected.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, expected.std(axis=(0, 2, 3)), rtol=1e-12)


def test_statistics_of_sequences_are_per_feature_and_a_constant_one_has_std_one() -> None:
    x = np.stack([np.tile([1.0, 3.0], (5, 2)), np.full((5, 4), 7.0)], axis=2).astype(np.float32)
    mean, std = channel_stats(x, np.arange(5))
    assert mean == (2.0, 7.0)
    assert std == (1.0, 1.0)
    wide, spread = channel_stats(x * 10, np.arange(5))
    assert (wide[0], spread[0]) == (20.0, 10.0)
