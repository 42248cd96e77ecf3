import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dinorankclip.evaluate.geometry import MEASURES, contributions, gap_function, modality_gap
from dinorankclip.evaluate.intervals import interval
from dinorankclip.losses.contrastive import cone_separation


def cone(direction, count, spread=0.4, seed=0, dim=16):
    """Rows around one axis; also of lengths that do not matter."""
    generator = torch.Generator().manual_seed(seed)
    rows = F.one_hot(torch.tensor(direction), dim) + spread * torch.randn(count, dim, generator=generator)
    return rows * torch.rand(count, 1, generator=generator).add(0.5)


def slow_measures(image, text):
    image, text = F.normalize(image.double(), dim=1), F.normalize(text.double(), dim=1)
    a, b = image.mean(0), text.mean(0)
    halves = [
        np.mean([math.degrees(math.acos(float(row @ m / m.norm()))) for row in rows])
        for rows, m in ((image, a), (text, b))
    ]
    return [cone_separation(image, text).item(), *halves, (a - b).norm().item()]


def test_measures_follow_the_loops():
    image, text = cone(0, 40), cone(1, 120, seed=1)
    found = modality_gap(image, text, np.repeat(np.arange(40), 3))
    assert list(found) == list(MEASURES)
    assert [one.value for one in found.values()] == pytest.approx(slow_measures(image, text), rel=1e-4)


def test_a_case_by_hand():
    image = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]])  # a cone of half-angle 45 degrees around (1, 1, 0)
    text = torch.tensor([[0, 0, 1.0], [0, 0, 1.0]])
    found = {name: one.value for name, one in modality_gap(image, text).items()}
    assert found["cone separation"] == pytest.approx(90)
    assert found["image half-angle"] == pytest.approx(45)
    assert found["text half-angle"] == pytest.approx(0, abs=0.1)
    assert found["centroid distance"] == pytest.approx(math.sqrt(1.5))
    same = modality_gap(image, image)
    assert same["cone separation"].value == pytest.approx(0, abs=1e-3) and same["centroid distance"].value == 0


def test_intervals_hold_the_value_and_contributions_tell_the_same():
    image, text, owner = cone(0, 300), cone(1, 900, seed=1), np.repeat(np.arange(300), 3)
    found = modality_gap(image, text, owner)
    items = contributions(gap_function(image, text, owner), 300)
    for one, column in zip(found.values(), items.T):
        assert one.low < one.value < one.high
        assert column.mean() == pytest.approx(one.value, rel=1e-4)
        low, high = interval(column)
        assert low == pytest.approx(one.low, abs=0.1 * (one.high - one.low))
        assert high == pytest.approx(one.high, abs=0.1 * (one.high - one.low))


def test_the_interval_covers_what_other_samples_give():
    truth = modality_gap(cone(0, 20_000, seed=98), cone(1, 20_000, seed=99), draws=20)["cone separation"].value
    covered = []
    for seed in range(60):
        pair = cone(0, 100, seed=seed), cone(1, 100, seed=1000 + seed)
        one = modality_gap(*pair, draws=200)["cone separation"]
        covered.append(one.low <= truth <= one.high)
    assert np.mean(covered) >= 0.85


def test_random_directions_are_ninety_degrees_apart():
    generator = torch.Generator().manual_seed(0)
    pair = torch.randn(500, 256, generator=generator), torch.randn(500, 256, generator=generator)
    assert modality_gap(*pair, draws=100)["cone separation"].value == pytest.approx(90, abs=12)


def test_texts_must_belong_to_images():
    with pytest.raises(ValueError, match="which image each text belongs to"):
        gap_function(cone(0, 4), cone(1, 8))
