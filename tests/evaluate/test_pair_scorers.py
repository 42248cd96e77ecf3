"""Scorers of caption sets, on a set that is nothing but its rows."""

import numpy as np
import pytest
import torch

from dinorankclip.evaluate.geometry import MEASURES, ModalityGapScorer
from dinorankclip.evaluate.rank_metrics import OrderAgreementScorer, order_agreement
from tests.evaluate.test_geometry import cone, slow_measures


class Rows:
    """Images with one, two, three, one, … captions."""

    name, kind = "rows", "retrieval"

    def __init__(self, count=60):
        self.owner = np.repeat(np.arange(count), 1 + np.arange(count) % 3)
        unit = torch.nn.functional.normalize
        self.image, self.text = unit(cone(0, count), dim=1), unit(cone(1, len(self.owner), seed=1), dim=1)

    def images(self):
        return self.image

    def indices(self):
        return np.arange(len(self.image))

    def caption_rows(self):
        return self.text, self.owner


def test_the_gap_counts_every_caption_and_keeps_a_contribution_of_each_image():
    seen = Rows()
    assert ModalityGapScorer().applies(seen)
    found = list(ModalityGapScorer()(seen))
    assert [score.name for score in found] == list(MEASURES)
    assert [score.value for score in found] == pytest.approx(slow_measures(seen.image, seen.text), rel=1e-4)
    for score in found:
        assert score.low < score.value < score.high and score.n == 60
        assert score.items.mean() == pytest.approx(score.value, rel=1e-4)


def test_orders_are_those_of_first_captions():
    seen = Rows()
    first = [int(np.flatnonzero(seen.owner == image)[0]) for image in range(60)]
    slow, _ = order_agreement(seen.image, seen.text[first])
    found = {score.name: score for score in OrderAgreementScorer()(seen)}
    assert found.keys() == slow.keys()
    for name, score in found.items():
        assert score.value == pytest.approx(slow[name].mean()) and score.unit == "number" and score.chance == 0
        assert score.clusters.tolist() == list(range(60))
    assert not OrderAgreementScorer().applies(Rows(2))
