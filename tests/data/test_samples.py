"""Crops lie on whole pixels, keep area and aspect, and resize like Pillow; evaluation sees every pair once, whole."""

import numpy as np
import pytest
import torch
from pair_making import ListSource, jpeg, picture, raw
from PIL import Image

from dinorankclip.data.damage import DamageCount
from dinorankclip.data.decode import decode
from dinorankclip.data.samples import (
    centre_view,
    generator,
    iterate_pairs,
    pixel_box,
    random_view,
    render,
    render_whole,
    snap,
)
from dinorankclip.types import ImageSpec, View


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


def test_in_order_with_damaged_ones_left_out():
    source = ListSource([raw(n) if n % 10 else "corrupt" for n in range(50)])
    damage = DamageCount(max_damaged=1.0)
    found = list(iterate_pairs(source, ImageSpec(24), batch=16, damage=damage))
    assert [len(keys) for keys, _, _ in found] == [16, 16, 13]
    assert [key for keys, _, _ in found for key in keys] == [f"k{n}" for n in range(50) if n % 10]
    assert damage.by_cause == {"corrupt": 5} and damage.seen == 50
    assert found[0][1].shape == (16, 3, 24, 24) and found[0][1].dtype == torch.uint8
    assert found[2][2][0] == ("one", "two")
    pixels = decode(jpeg(1))
    assert torch.equal(found[0][1][0], render_whole(pixels, 24))


def test_stopping_early_leaves_no_thread_waiting():
    for keys, _, _ in iterate_pairs(ListSource([raw(n) for n in range(50)]), ImageSpec(24), batch=8):
        assert len(keys) == 8
        break
