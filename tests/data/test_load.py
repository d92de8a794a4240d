"""load_federation: from a name and settings to clients, tests and notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmsfl.data import PARTITIONS, Federation
from pmsfl.errors import PmsflError

from .helpers import load, write_cifar, write_npz

LABEL_PARTITIONS = [name for name in PARTITIONS if name != "owner"]


def shares(y: Any, rows: Any, classes: int) -> Any:
    return np.bincount(y[rows], minlength=classes) / len(rows)


def leaks(fed: Federation) -> int:
    """Return how many test rows, of a client or global, somebody trains on."""
    tests = np.concatenate([*fed.test, fed.global_test])
    return int(np.isin(tests, np.concatenate(fed.train)).sum())


def test_the_embedded_digits_have_24_writers_with_all_classes() -> None:
    fed = load("digits", partition="owner", clients=None)
    assert fed.clients == 24
    assert fed.x.shape == (2640, 1, 28, 28)
    assert fed.sizes == (88,) * 24
    assert (fed.label_counts() > 0).all()
    assert len(fed.global_test) == 24 * 22
    assert not fed.global_test_is_official
    assert len(set(fed.owners)) == 24
    assert fed.notes == ()
    # MNIST's known mean and std are 0.1307 and 0.3081
    assert abs(fed.mean[0] - 0.13) < 0.02
    assert abs(fed.std[0] - 0.31) < 0.02


@pytest.mark.parametrize("test_split", ["matched", "independent"])
@pytest.mark.parametrize("partition", LABEL_PARTITIONS)
def test_every_partition_serves_digits_without_leaks(partition: str, test_split: str) -> None:
    fed = load("digits", partition=partition, clients=10, test_split=test_split, min_samples=5)
    assert fed.clients == 10
    assert leaks(fed) == 0
    assert all(len(rows) for rows in (*fed.train, *fed.test))
    assert sum(fed.sizes) + len(fed.global_test) == 2640
    again = load("digits", partition=partition, clients=10, test_split=test_split, min_samples=5)
    assert again.fingerprint() == fed.fingerprint()


def test_the_seed_changes_the_federation() -> None:
    assert load("digits", seed=0).fingerprint() != load("digits", seed=1).fingerprint()


def test_samples_are_known_again_however_they_are_dealt() -> None:
    fed = load("digits", seed=0)
    assert load("digits", seed=1, partition="dirichlet", clients=5).samples_fingerprint() == fed.samples_fingerprint()
    for other in (replace(fed, x=fed.x[::-1]), replace(fed, y=fed.y[::-1])):
        assert other.samples_fingerprint() != fed.samples_fingerprint()


@pytest.mark.parametrize("partition", LABEL_PARTITIONS)
def test_official_tests_are_global_and_matched_to_each_client(tmp_path: Path, partition: str) -> None:
    write_cifar(tmp_path, train=400, test=80)
    fed = load("cifar100", tmp_path, partition=partition)
    assert fed.global_test_is_official
    assert fed.global_test.tolist() == list(range(400, 480))
    assert leaks(fed) == 0
    assert sum(fed.sizes) == 400
    for train, test in zip(fed.train, fed.test, strict=True):
        assert abs(len(test) - len(train) / 5) <= 1
        gap = np.abs(shares(fed.y, train, 4) - shares(fed.y, test, 4)).max()
        assert gap <= 1 / len(test)


def test_a_smaller_test_fraction_draws_fewer_official_rows(tmp_path: Path) -> None:
    write_cifar(tmp_path, train=400, test=80)
    fed = load("cifar100", tmp_path, test_fraction=0.1)
    assert [len(rows) for rows in fed.test] == [round(100 / 9)] * 4
    assert len(fed.global_test) == 80


def test_independent_official_tests_are_disjoint_and_do_not_follow_training(tmp_path: Path) -> None:
    write_cifar(tmp_path, train=400, test=80)
    fed = load("cifar100", tmp_path, partition="pathological", test_split="independent", classes_per_client=1)
    rows = np.concatenate(fed.test)
    assert np.array_equal(np.sort(rows), fed.global_test)
    held = [(set(fed.y[a]), set(fed.y[b])) for a, b in zip(fed.train, fed.test, strict=True)]
    assert all(len(a) == len(b) == 1 for a, b in held)
    assert any(a != b for a, b in held)


@pytest.mark.parametrize("test_split", ["matched", "independent"])
def test_a_cap_counts_train_and_test_rows(tmp_path: Path, test_split: str) -> None:
    write_cifar(tmp_path, train=400, test=80)
    for fed in (
        load("cifar100", tmp_path, test_split=test_split, max_samples=30),
        load("digits", test_split=test_split, max_samples=30),
    ):
        totals = [len(a) + len(b) for a, b in zip(fed.train, fed.test, strict=True)]
        assert totals == [30] * 4
        assert all(len(rows) >= 4 for rows in fed.test)


def test_the_largest_owners_are_kept(tmp_path: Path) -> None:
    owner = np.repeat([3, 10, 2, 7], [5, 15, 5, 15])
    path = write_npz(tmp_path / "a.npz", person=owner)
    fed = load("npz", path, partition="owner", clients=3)
    assert fed.owners == ("2", "7", "10")
    assert [a + len(b) for a, b in zip(fed.sizes, fed.test, strict=True)] == [5, 15, 15]
    assert "1 of 4 owners are left out." in fed.notes
    assert load("npz", path, partition="owner", clients=0).clients == 4
    assert load("npz", path, partition="owner", clients=None, min_samples=6).owners == ("7", "10")


def test_statistics_come_from_training_rows_only(tmp_path: Path) -> None:
    x = np.zeros((40, 8, 8), np.uint8)
    x[30:] = 255
    fed = load("npz", write_npz(tmp_path / "a.npz", x=x, is_test=np.arange(40) >= 30))
    assert fed.mean == (0.0,)
    assert fed.std == (1.0,)


def test_time_ordered_rows_are_tested_on_their_last_windows(tmp_path: Path) -> None:
    window = np.arange(40) // 4
    path = write_npz(tmp_path / "a.npz", window=window, owner=np.zeros(40, int))
    fed = load("npz", path, partition="owner", clients=None)
    assert sorted(window[fed.test[0]]) == [8] * 4 + [9] * 4
    assert any("window" in note for note in fed.notes)


def test_a_client_with_one_row_has_no_test_data_and_the_user_is_told(tmp_path: Path) -> None:
    owner = np.array([0] * 39 + [1])
    fed = load("npz", write_npz(tmp_path / "a.npz", owner=owner), partition="owner", clients=None)
    assert (fed.sizes[1], len(fed.test[1])) == (1, 0)
    assert "1 of 2 clients have no test data: 1." in fed.notes


def test_classes_that_nobody_holds_are_reported() -> None:
    fed = load("digits", partition="pathological", clients=3, classes_per_client=2)
    assert (fed.label_counts().sum(axis=0) == 0).sum() == 4
    assert any(note.startswith("4 of 10 classes are in nobody's training data") for note in fed.notes)


def test_notes_of_the_loader_reach_the_user(tmp_path: Path) -> None:
    fed = load("npz", write_npz(tmp_path / "a.npz", y=np.arange(40) % 4 + 1))
    assert any("renumbered" in note for note in fed.notes)


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        ("mnist", {}, "data = 'mnist' is not known; choose one of digits, cifar100"),
        (
            "digits",
            {"partition": "random"},
            "partition = 'random' is not known; choose one of iid, dirichlet",
        ),
        ("digits", {"test_split": "none"}, "choose one of matched, independent"),
        ("digits", {"test_fraction": 1.0}, "test_fraction = 1.0"),
        ("digits", {"test_fraction": float("nan")}, "test_fraction = nan"),
        ("digits", {"seed": -1}, "seed = -1"),
        ("digits", {"min_samples": 0}, "min_samples = 0"),
        ("digits", {"max_samples": 1}, "max_samples = 1"),
        ("digits", {"max_samples": 5, "min_samples": 6}, "at least min_samples = 6"),
        ("digits", {"clients": None}, "clients = None with partition = 'iid'"),
        ("digits", {"clients": -2}, "clients = -2"),
        ("digits", {"clients": 2641}, "needs 2641 rows, but there are 2640"),
        ("digits", {"clients": 25, "partition": "owner"}, "clients = 25, but 24 of 24 owners"),
        ("digits", {"partition": "owner", "test_split": "independent"}, "Use test_split = 'matched'"),
        ("digits", {"path": "somewhere"}, "data_path = 'somewhere' is not used"),
        ("npz", {}, "data = 'npz' needs data_path"),
    ],
)
def test_wrong_settings_name_the_key_the_value_and_what_is_allowed(
    data: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PmsflError, match=message):
        load(data, **changes)


def test_owner_partition_needs_owners(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    with pytest.raises(PmsflError, match="'cifar100' does not have; choose one of iid"):
        load("cifar100", tmp_path, partition="owner")


def test_an_empty_or_full_test_mark_is_refused(tmp_path: Path) -> None:
    for marked in (False, True):
        path = write_npz(tmp_path / f"{marked}.npz", is_test=np.full(40, marked))
        with pytest.raises(PmsflError, match="mark some rows but not all"):
            load("npz", path)


def test_independent_tests_that_cannot_be_dealt_say_so(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", is_test=np.arange(40) >= 38)
    with pytest.raises(PmsflError, match="the 2 test rows cannot be dealt"):
        load("npz", path, partition="pathological", test_split="independent")
