"""A score looks the same wherever it is printed."""

import pytest

from dinorankclip.formatting import bare, held_out, images_scored, written


@pytest.mark.parametrize(
    ("unit", "value", "alone", "signed"),
    [
        ("share", 0.1234, "12.34 %", "+12.34"),
        ("degrees", 61.5, "61.50°", "+61.50"),
        ("number", 0.25, "0.2500", "+0.2500"),
    ],
)
def test_units(unit, value, alone, signed):
    assert written(value, unit) == alone and bare(value, unit, "+") == signed
    assert written(-value, unit).startswith("-")


def test_held_out_retrieval_by_part_and_direction():
    scores = {"val/i2t R@1": 0.1, "val/i2t R@5": 0.2, "val/chance R@1": 0.01, "val/images": 40.0, "test/images": 9.0}
    assert held_out(scores) == {"val": {"image → text": (0.1, 0.2, None)}}
    assert images_scored(scores) == {"val": 40, "test": 9}
    assert held_out({}) == {} and images_scored({}) == {}
