"""Photos that are in two parts: copies, re-encoded and resized, are found; other photos are not."""

import io
import math

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from dinorankclip.data.duplicates import LOW, SIDE, cosine_table, duplicates, looks_of, perceptual_hash
from dinorankclip.data.folders_and_tables import ImageFiles


def picture(seed, width=160, height=120):
    """A smooth random picture with some shapes, as a photo has them."""
    draw = np.random.default_rng(seed)
    low = draw.integers(0, 256, (9, 12, 3)).astype(np.uint8)
    return Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC)


def as_bytes(image, kind="JPEG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_the_hash_is_that_of_the_loops():
    draw = np.random.default_rng(0)
    grey = draw.integers(0, 256, (SIDE, SIDE)).astype(np.uint8)
    table = [[math.cos(math.pi * (2 * x + 1) * u / (2 * SIDE)) for x in range(SIDE)] for u in range(LOW)]
    np.testing.assert_allclose(cosine_table(SIDE, LOW), table, atol=1e-12)
    values = [
        sum(table[u][x] * table[v][y] * float(grey[x, y]) for x in range(SIDE) for y in range(SIDE))
        for u in range(LOW)
        for v in range(LOW)
    ]
    middle = sorted(values)[31:33]
    bits = perceptual_hash(np.repeat(grey[:, :, None], 3, axis=2))
    assert bits.tolist() == [value > sum(middle) / 2 for value in values] and bits.sum() == 32


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Two folders: 200 and 100 pictures; 24 of the second are changed copies of pictures in the first."""
    first, second = tmp_path_factory.mktemp("train"), tmp_path_factory.mktemp("test")
    for number in range(200):
        (first / f"{number:03d}.jpg").write_bytes(as_bytes(picture(number), quality=92))
    for number in range(76):
        (second / f"new{number:03d}.jpg").write_bytes(as_bytes(picture(1000 + number), quality=92))
    changed = {
        "copied": lambda image: as_bytes(image, quality=92),
        "poor": lambda image: as_bytes(image, quality=30),
        "small": lambda image: as_bytes(image.resize((80, 60), Image.Resampling.LANCZOS), quality=80),
        "png": lambda image: as_bytes(image.resize((320, 240), Image.Resampling.BICUBIC), "PNG"),
        "bright": lambda image: as_bytes(ImageEnhance.Brightness(image).enhance(1.03), quality=70),
        "colour": lambda image: as_bytes(ImageEnhance.Color(image).enhance(0.9), quality=70),
    }
    for number in range(24):
        name, change = list(changed.items())[number % len(changed)]
        (second / f"{name}{number:03d}.{'png' if name == 'png' else 'jpg'}").write_bytes(change(picture(8 * number)))
    return first, second


def looks(folder):
    return looks_of(ImageFiles(folder, sorted(path.name for path in folder.iterdir())))


def test_copies_are_found_and_others_are_not(parts):
    found = list(duplicates(*map(looks, parts)))
    planted = [one for one in found if not one.key.startswith("new")]
    assert len(planted) == 24 and len(found) == 24  # recall 1, precision 1
    assert all(int(one.key[-7:-4]) * 8 == int(one.other[:3]) for one in found)
    assert all(one.bits <= 4 and one.grey < 8 for one in found)
    assert {(one.bits, one.grey) for one in found if one.key.startswith("copied")} == {(0, 0.0)}


def test_plain_pictures_of_other_colours_are_no_copies(tmp_path):
    for name, colour in (("a", (200, 30, 30)), ("b", (30, 30, 200)), ("c", (201, 30, 30))):
        (tmp_path / f"{name}.png").write_bytes(as_bytes(Image.new("RGB", (50, 50), colour), "PNG"))
    one, two, like = (looks_of(ImageFiles(tmp_path, [f"{name}.png"])) for name in "abc")
    assert list(duplicates(one, two)) == [] and len(list(duplicates(one, like))) == 1


def test_damaged_photos_are_counted(tmp_path):
    (tmp_path / "a.jpg").write_bytes(as_bytes(picture(0)))
    (tmp_path / "b.jpg").write_bytes(b"nothing")
    seen = looks(tmp_path)
    assert seen.keys == ["a.jpg"] and seen.damage.keys == {"b.jpg": "not-an-image"}
    assert list(duplicates(looks_of(ImageFiles(tmp_path, ["b.jpg"])), seen)) == []
