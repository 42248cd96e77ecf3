"""Decoding: formats, orientation, and everything that is refused."""

import io

import numpy as np
import pytest
from pair_making import broken_png, encoded, jpeg, picture, png_header
from PIL import Image, ImageOps

from dinorankclip.data import decode as decoding
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import Header, decode, read_header


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_orientation_is_honoured(kind, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    data = encoded(picture(3, 40, 64), kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    header = read_header(data)
    got = decode(data, header)
    assert got.shape == (header.height, header.width, 3) == (upright.height, upright.width, 3)
    assert np.abs(got.astype(int) - np.asarray(upright)).max() <= 1


def test_scaled_decoding_of_a_turned_photo():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(3, 200, 640), exif=exif)
    assert decode(data).shape == (640, 200, 3)
    small = decode(data, least=(300, 90))
    assert small.shape == (320, 100, 3)
    reference = np.asarray(Image.fromarray(decode(data)).resize((100, 320), Image.Resampling.BOX))
    assert np.abs(small.astype(int) - reference).mean() < 2


def test_broken_exif_does_not_spoil_the_picture():
    data = jpeg(1)
    exif = b"\xff\xe1" + (20).to_bytes(2, "big") + b"Exif\0\0" + b"MM*garbage!!"
    assert decode(data[:2] + exif + data[2:]).shape == (40, 48, 3)


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("1", "PNG"), ("L", "PNG"), ("LA", "PNG")]
)
def test_every_colour_mode_becomes_rgb(mode, kind):
    image = Image.fromarray(picture(1)).convert(mode)
    got = decode(encoded(image, kind))
    assert got.shape == (40, 48, 3)
    assert np.abs(got.astype(int) - np.asarray(image.convert("RGB"))).mean() < 6


def test_sixteen_bits_keep_their_upper_eight():
    values = (np.arange(40 * 48, dtype=np.uint16) * 34).reshape(40, 48)
    got = decode(encoded(Image.fromarray(values), "PNG"))
    assert np.array_equal(got[:, :, 0], (values >> 8).astype(np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_transparency_is_laid_on_white(kind):
    image = Image.new("RGBA", (8, 8), (200, 0, 0, 0))
    assert (decode(encoded(image, kind)) >= 250).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_images_are_damage_never_grey_halves(kind, share):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(noise, kind)
    with pytest.raises(Damage) as caught:
        decode(data[: int(share * len(data))])
    assert caught.value.cause in ("truncated", "corrupt")
    if kind == "JPEG":
        assert caught.value.cause == "truncated"


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "empty-image"),
        (b"hello", "not-an-image"),
        (b"\xff\xd8\xff\xe0 and then nothing", "truncated"),
        (broken_png(), "corrupt"),
        (png_header(50_000, 50_000), "too-many-pixels"),
        (png_header(9_000, 9_000), "too-many-pixels"),
    ],
)
def test_what_is_no_image_says_why(data, cause):
    with pytest.raises(Damage) as caught:
        decode(data)
    assert caught.value.cause == cause


@pytest.mark.filterwarnings("ignore")  # Pillow comments on what it finds
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_whatever_the_bytes_only_damage_is_raised(kind):
    draws = np.random.default_rng(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = encoded(picture(0, 20, 20), kind, **({} if kind in ("GIF", "BMP") else {"exif": exif}))
    for _ in range(300):
        data = bytearray(whole)
        for at in draws.integers(0, len(data), draws.integers(1, 6)):
            data[at] = draws.integers(0, 256)
        try:
            header = read_header(bytes(data), max_pixels=10_000)
            assert decode(bytes(data), header).size <= 30_000
        except Damage:
            pass


def test_a_pixel_bomb_is_refused_without_decoding(monkeypatch):
    def explode(*args, **kwargs):
        raise AssertionError("decoded")

    bombs = jpeg(0), encoded(picture(0), "WEBP"), encoded(picture(0), "PNG") + b"eXIf"
    monkeypatch.setattr("simplejpeg.decode_jpeg", explode)
    monkeypatch.setattr(Image.Image, "load", explode)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", explode)
    for data in bombs:
        with pytest.raises(Damage) as caught:
            read_header(data, max_pixels=1000)
        assert caught.value.cause == "too-many-pixels"


def test_a_png_is_not_decoded_for_its_header(monkeypatch):
    def explode(*args, **kwargs):
        raise AssertionError("decoded")

    data = encoded(picture(0, 40, 48), "PNG")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", explode)
    assert read_header(data) == Header(40, 48)


def test_exif_behind_the_pixels_of_a_png_is_found():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(3, 40, 64), "PNG", exif=exif)
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4], "big")
    last = data.index(b"IEND") - 4
    moved = data[:start] + data[end:last] + data[start:end] + data[last:]
    assert read_header(moved) == read_header(data) == Header(64, 40, turn=6)


def test_a_raised_limit_is_the_only_one(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
    monkeypatch.setattr(decoding, "MAX_PIXELS", 500_000)
    data = encoded(Image.new("L", (2000, 1100)), "PNG")
    for limit in (500_000, 2_000_000):
        with pytest.raises(Damage, match="too-many-pixels"):
            read_header(data, limit)
    assert decode(data, read_header(data, 3_000_000)).shape == (1100, 2000, 3)
