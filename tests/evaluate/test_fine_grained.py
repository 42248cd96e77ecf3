"""Errors inside and outside families, worked by hand."""

import math

import numpy as np
import pytest

from dinorankclip.evaluate.probe import family_errors, family_of_class
from dinorankclip.types import UserError

NAMES = ("cat", "dog", "sofa", "mug", "tumbler", "stein")
FAMILIES = {"pets": ["cat", "dog"], "cups": ["mug", "tumbler", "stein"]}


def test_classes_get_the_number_of_their_family_and_others_one_of_their_own():
    assert family_of_class(NAMES, FAMILIES).tolist() == [0, 0, 2, 1, 1, 1]
    assert len(set(family_of_class(NAMES, {}).tolist())) == len(NAMES)


def test_errors_are_divided_by_family():
    family = family_of_class(NAMES, FAMILIES)
    labels = np.array([0, 0, 1, 2, 3, 3, 4, 5])
    guesses = np.array([0, 1, 0, 3, 4, 2, 5, 5])  # right, in, in, out, in, out, in, right
    found = family_errors(guesses, labels, family)
    assert found.inside.tolist() == [True, True, False, True, False, True]
    assert found.share == pytest.approx(4 / 6)
    # Of five other classes: one is in the family of a pet, none in a sofa's, two in a cup's.
    assert found.chance == pytest.approx((1 + 1 + 0 + 2 + 2 + 2) / 5 / 6)


def test_random_wrong_guesses_fall_inside_a_family_by_chance():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 6, 20000)
    found = family_errors((labels + draw.integers(1, 6, 20000)) % 6, labels, family_of_class(NAMES, FAMILIES))
    assert abs(found.share - found.chance) < 4 * (found.chance * (1 - found.chance) / 20000) ** 0.5


def test_without_errors_there_is_no_share():
    labels = np.arange(6)
    found = family_errors(labels, labels, family_of_class(NAMES, FAMILIES))
    assert len(found.inside) == 0 and math.isnan(found.share) and math.isnan(found.chance)


def test_families_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="'horse', which the set does not have"):
        family_of_class(NAMES, {"pets": ["cat", "horse"]})
    with pytest.raises(UserError, match="'cat' is in two families, 'pets' and 'hunters'"):
        family_of_class(NAMES, {"pets": ["cat", "dog"], "hunters": ["cat"]})
