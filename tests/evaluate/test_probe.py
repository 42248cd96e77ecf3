"""The linear probe, and its errors by family of classes."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from dinorankclip.evaluate.probe import GRID, Scaling, family_errors, family_of_class, linear_probe
from dinorankclip.types import UserError


def blobs(items, width, classes, apart, seed):
    """Classes around means that do not depend on the seed."""
    means = apart * torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(items) % classes
    return means[labels] + torch.randn(items, width, generator=torch.Generator().manual_seed(seed)), labels


def parts(apart=0.6, width=20, classes=5, items=(150, 60, 200)):
    return [each for seed, count in enumerate(items) for each in blobs(count, width, classes, apart, seed)]


def test_the_grid_is_thirteen_half_decades():
    assert len(GRID) == 13 and GRID[0] == pytest.approx(1e-2) and GRID[-1] == pytest.approx(1e4)
    assert all(b / a == pytest.approx(10**0.5) for a, b in pairwise(GRID))


def test_separate_classes_are_told_apart_and_random_features_are_at_chance():
    found = linear_probe(*parts(apart=6.0), classes=5)
    assert found.accuracy == found.mean_per_class == 1.0 and found.correct.all()
    found = linear_probe(*parts(apart=0.0, items=(300, 100, 2000)), classes=5)
    assert abs(found.accuracy - 0.2) < 4 * (0.2 * 0.8 / 2000) ** 0.5
    assert all(abs(value - 0.2) < 4 * (0.2 * 0.8 / 100) ** 0.5 for value in found.val_accuracy.values())


def test_collapsed_features_score_the_largest_class():
    train, val, test = (torch.ones(count, 8) for count in (30, 10, 10))
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    found = linear_probe(train, labels.repeat(3), val, labels, test, labels, 3)
    assert found.accuracy == 0.6 and found.mean_per_class == pytest.approx(1 / 3)


def test_C_is_chosen_on_validation_items_and_the_smallest_wins_a_tie():
    data = parts()
    found = linear_probe(*data, classes=5)
    assert list(found.val_accuracy) == list(GRID)
    best = max(found.val_accuracy.values())
    assert min(C for C, value in found.val_accuracy.items() if value == best) == found.C
    assert 0.6 < found.accuracy < 1  # not trivial, so that the choice matters
    easy = linear_probe(*parts(apart=6.0), classes=5)
    assert min(easy.val_accuracy) == easy.C


def test_the_last_fit_learns_from_both_parts_with_the_scaling_of_both():
    train, train_labels, val, val_labels, test, test_labels = parts()
    found = linear_probe(train, train_labels, val, val_labels, test, test_labels, 5, Cs=[1.0])
    both, labels = torch.cat([train, val]), torch.cat([train_labels, val_labels])
    rows = Scaling.of(both)(both).double()
    logits = rows @ found.fit.weight.double().T + found.fit.bias.double()
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") + 0.5 * found.fit.weight.square().sum()
    assert found.fit.objective == pytest.approx(loss.item(), rel=1e-5)


def test_the_test_part_decides_nothing():
    data = parts()
    one = linear_probe(*data, classes=5)
    other = linear_probe(*data[:4], torch.randn_like(data[4]), data[5], 5)
    assert one.C == other.C and one.val_accuracy == other.val_accuracy
    assert torch.equal(one.fit.weight, other.fit.weight)


def test_neither_the_size_of_rows_nor_a_rotation_matters():
    data = parts()
    turn, _ = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(5)))
    one = linear_probe(*data, classes=5)
    turned = [1000 * each @ turn if each.ndim == 2 else each for each in data]
    other = linear_probe(*turned, classes=5)
    assert one.C == other.C
    assert (one.predicted == other.predicted).mean() > 0.99  # single precision may turn a near tie


def test_scaling_gives_unit_mean_square_and_no_mean():
    rows = 7 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) + 3
    scaled = Scaling.of(rows)(rows)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(6), atol=1e-6, rtol=0)
    assert scaled.square().sum(1).mean().item() == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(Scaling.of(10 * rows)(10 * rows), scaled)


def test_mean_per_class_is_the_mean_of_recalls_and_labels_may_be_arrays():
    """Class 1 is read as class 0 half of the time; class 2 does not occur in the test part."""
    centre = 5 * torch.eye(3)
    train = centre.repeat_interleave(4, 0) + 0.01 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    labels = np.repeat(np.arange(3), 4)
    test = centre[[0, 0, 0, 0, 1, 0]]
    found = linear_probe(train, labels, train, labels, test, np.array([0, 0, 0, 0, 1, 1]), 3)
    assert found.predicted.tolist() == [0, 0, 0, 0, 1, 0] and found.correct.tolist() == [True] * 5 + [False]
    assert found.accuracy == pytest.approx(5 / 6) and found.mean_per_class == pytest.approx(0.75)


def test_what_cannot_be_probed_is_said():
    train, train_labels, val, val_labels, test, test_labels = parts()
    with pytest.raises(UserError, match="validation part of a linear probe is empty"):
        linear_probe(train, train_labels, val[:0], val_labels[:0], test, test_labels, 5)
    with pytest.raises(UserError, match="test part: class index 4 is outside 0…3"):
        keep, keep_val = train_labels < 4, val_labels < 4
        linear_probe(train[keep], train_labels[keep], val[keep_val], val_labels[keep_val], test, test_labels, 4)
    with pytest.raises(UserError, match="1 of 6 classes have no item to learn from: 5"):
        linear_probe(train, train_labels, val, val_labels, test, test_labels, 6)
    with pytest.raises(ValueError, match="150 features and 149 labels in the training part"):
        linear_probe(train, train_labels[1:], val, val_labels, test, test_labels, 5)


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
