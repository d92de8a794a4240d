"""Federations to measure on."""

from __future__ import annotations

import numpy as np
import pytest

from pmsfl.bench.synthetic import cohort_of, whole_cohort, whole_federation
from pmsfl.engine.world import World
from pmsfl.recipe import Recipe


@pytest.mark.parametrize("name", ["demo", "cifar100", "cifar100-depths", "femnist"])
def test_all_clients_are_at_work_for_as_many_steps_as_asked_and_no_files_are_read(name: str) -> None:
    small = ["model=small-cnn", "width=2"]
    recipe, federation = whole_cohort(Recipe.load(name, small), 5, steps=7)
    plan = World(recipe, federation=federation).plan(0)
    assert sorted(plan.clients) == [0, 1, 2, 3, 4]
    assert set(plan.steps) == {plan.steps[0]}
    assert plan.steps[0] >= 7
    assert federation.x.dtype == np.uint8


def test_cifar_is_replaced_by_images_of_its_shape() -> None:
    federation = whole_federation(Recipe.load("cifar100", ["max_samples=40"]))
    assert federation.x.shape[1:] == (3, 32, 32)
    assert federation.classes == 100
    assert federation.sizes == (40,) * 100


def test_the_demo_keeps_its_digits_and_its_number_of_writers() -> None:
    federation = whole_federation(Recipe.load("demo"))
    assert federation.name == "digits"
    assert federation.clients == 24
    assert len(set(federation.sizes)) == 1


def test_the_cohort_is_the_recipes() -> None:
    assert cohort_of(Recipe.load("demo")) == 8
    assert cohort_of(Recipe.load("cifar100")) == 10
    assert cohort_of(Recipe.load("cifar100", ["cohort=3"])) == 3
    assert cohort_of(Recipe(clients=0)) == 10
