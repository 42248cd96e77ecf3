"""Training itself is held still: data, augmentation, model, loss, optimiser and schedule together."""

import pytest

from tests.golden_curves import CACHE, METHODS, STEPS, measure, stored


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return measure(tmp_path_factory.mktemp("curves"))


@pytest.mark.parametrize("method", METHODS)
def test_the_first_losses_are_those_on_record(method, measured):
    # Another processor rounds otherwise, and steps carry it on; a changed recipe shows by far more within a few.
    assert measured[method]["losses"] == pytest.approx(stored()[method]["losses"], rel=2e-3)


def test_the_record_is_whole():
    record = stored()
    assert set(record) == {CACHE, *METHODS}
    assert {method: len(record[method]["losses"]) for method in METHODS} == dict.fromkeys(METHODS, STEPS)
