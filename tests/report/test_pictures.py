"""Pictures of `score`: thumbnails, and the plane with marks where the points are, in the colours of their groups."""

import numpy as np
import pytest
import simplejpeg

from dinorankclip.evaluate.examples import Projection
from dinorankclip.report.pictures import _HEAD, _PLANE, _PLANE_MARGIN, FRAME, SIDE, draw_projection, tile


def tint(picture, across, up):
    """Mean colour around a place of the plot, given in shares of its side."""
    x, y = _PLANE_MARGIN + across * _PLANE, _HEAD + (1 - up) * _PLANE
    box = picture.crop((round(x) - 12, round(y) - 12, round(x) + 12, round(y) + 12))
    return np.asarray(box, float).mean((0, 1))


def cloud(x, y, count=60):
    return (np.array([x, y]) + 0.02 * np.random.default_rng(0).standard_normal((count, 2))).astype(np.float32)


def test_groups_lie_where_they_should_in_their_colours_with_up_as_up():
    found = Projection({"images": cloud(-1, -1), "captions": cloud(1, 1)}, "pca", (0.6, 0.3))
    picture = draw_projection("a set", found)
    red, _, blue = tint(picture, 0.04, 0.04)
    assert blue > red + 50  # images
    red, _, blue = tint(picture, 0.96, 0.96)
    assert red > blue + 50  # captions
    for corner in ((0.96, 0.04), (0.04, 0.96), (0.5, 0.5)):
        assert tint(picture, *corner) == pytest.approx([250, 250, 250])


def test_both_axes_have_one_scale_and_points_that_are_all_alike_are_drawn():
    wide = {"images": cloud(-1, 0), "captions": cloud(1, 0)}
    picture = draw_projection("wide", Projection(wide, "umap"))
    assert tint(picture, 0.04, 0.5).min() < 200 and tint(picture, 0.5, 0.9) == pytest.approx([250, 250, 250])
    alike = draw_projection("alike", Projection({"images": np.zeros((5, 2), np.float32)}, "pca", (0.0, 0.0)))
    assert tint(alike, 0.5, 0.5).min() < 240


def test_an_image_beyond_the_usual_limit_of_pixels_can_be_shown():
    large = simplejpeg.encode_jpeg(np.full((6000, 9000, 3), 200, np.uint8), quality=50)
    assert tile(large).size == (SIDE + 2 * FRAME,) * 2
