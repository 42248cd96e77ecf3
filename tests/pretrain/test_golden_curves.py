"""Training itself is held still: data, augmentation, model, loss, optimiser and schedule together."""

import json

import pytest

from tests.pretrain.golden_curves import METHODS, RECORD, STEPS, curve
from tests.pretrain.running import small_pairs


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs")


@pytest.mark.parametrize("method", METHODS)
def test_the_first_losses_are_those_on_record(method, pairs, tmp_path):
    # Another processor rounds otherwise, and steps carry it on; a changed recipe shows by far more within a few.
    assert curve(method, pairs, tmp_path / "run") == pytest.approx(json.loads(RECORD.read_text())[method], rel=2e-3)


def test_the_record_is_whole():
    stored = json.loads(RECORD.read_text())
    assert {method: len(losses) for method, losses in stored.items()} == dict.fromkeys(METHODS, STEPS)
