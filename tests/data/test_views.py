"""Crops lie on whole pixels, keep their promises about area and aspect, and resize like Pillow."""

import numpy as np
import pytest
from pair_making import picture
from PIL import Image

from dinorankclip.data.samples import centre_view, pixel_box, random_view, render, render_whole, snap
from dinorankclip.seeds import generator
from dinorankclip.types import View


@pytest.mark.parametrize("size", [(100, 100), (300, 400), (333, 270)])
@pytest.mark.parametrize("scale", [(0.9, 1.0), (0.3, 0.6)])
def test_area_and_aspect_of_random_crops(size, scale):
    height, width = size
    shares, aspects = [], []
    for index in range(500):
        view = random_view(generator(0, 1, 0, index), height, width, scale, flip=True)
        assert snap(view, height, width) == view
        _, _, rows, columns = pixel_box(view, height, width)
        shares.append(rows * columns / (height * width))
        aspects.append(columns / rows)
    assert scale[0] - 0.02 < min(shares) < scale[0] + 0.03
    assert scale[1] - 0.03 < max(shares) < scale[1] + 0.02
    assert min(aspects) > 0.73 and max(aspects) < 1.36


def test_a_panorama_gets_the_largest_allowed_box():
    lefts = set()
    for index in range(50):
        top, left, rows, columns = pixel_box(
            random_view(generator(0, 1, 0, index), 60, 600, (0.5, 1.0), flip=False), 60, 600
        )
        assert (top, rows, columns) == (0, 60, 80)
        lefts.add(left)
    assert len(lefts) > 20


def test_switching_flips_on_moves_no_crop():
    for index in range(20):
        still = random_view(generator(0, 1, 0, index), 50, 60, (0.5, 1.0), flip=False)
        maybe = random_view(generator(0, 1, 0, index), 50, 60, (0.5, 1.0), flip=True)
        assert (still.top, still.left, still.height, still.width) == (maybe.top, maybe.left, maybe.height, maybe.width)


def test_no_cropping_shows_the_centre_view():
    assert random_view(generator(0, 1, 0, 0), 50, 60, (1.0, 1.0), flip=False) == centre_view(50, 60)
    assert pixel_box(centre_view(50, 61), 50, 61) == (0, 5, 50, 50)


@pytest.mark.parametrize("size", [(200, 300), (97, 64), (131, 50), (30, 21), (64, 64), (20, 700)])
def test_evaluation_resizes_the_short_side_and_then_cuts_the_centre_out(size):
    from dinorankclip.device import declare_missing

    declare_missing()
    from torchvision.transforms import CenterCrop, InterpolationMode, Resize

    pixels = picture(1, *size)
    ours = render_whole(pixels, 64).permute(1, 2, 0).numpy().astype(int)
    theirs = CenterCrop(64)(Resize(64, InterpolationMode.BICUBIC)(Image.fromarray(pixels)))
    assert ours.shape == (64, 64, 3) and np.abs(ours - np.asarray(theirs)).max() <= 1


def test_of_a_strip_the_middle_alone_is_resized():
    strip = np.zeros((1, 20_000, 3), np.uint8)
    strip[:, 9_990:10_010] = 200
    shown = render_whole(strip, 64)
    assert shown.shape == (3, 64, 64) and shown.is_contiguous() and (shown == 200).all()


@pytest.mark.parametrize("size", [(200, 300), (97, 64), (30, 20), (64, 64)])
def test_resize_matches_pillow_to_one_level(size):
    pixels = picture(1, *size)
    view = random_view(generator(3, 1, 0, 0), *size, (0.5, 0.9), flip=False)
    top, left, rows, columns = pixel_box(view, *size)
    ours = render(pixels, view, 64).permute(1, 2, 0).numpy().astype(int)
    crop = Image.fromarray(pixels[top : top + rows, left : left + columns])
    theirs = np.asarray(crop.resize((64, 64), Image.Resampling.BICUBIC))
    assert np.abs(ours - theirs).max() <= 1


def test_flip_mirrors_and_equal_size_is_untouched():
    pixels = picture(1, 64, 64)
    assert np.array_equal(render(pixels, View(), 64).permute(1, 2, 0).numpy(), pixels)
    assert np.array_equal(render(pixels, View(flip=True), 64).permute(1, 2, 0).numpy(), pixels[:, ::-1])
