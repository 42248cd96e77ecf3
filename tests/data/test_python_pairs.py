"""Pairs of a Python program: every kind of image, fingerprints, refusals, shards of iterables, worker processes."""

import io as bytes_io

import numpy as np
import pytest
import torch
from PIL import Image

from dinorankclip import io
from dinorankclip.config import ReadingSettings
from dinorankclip.data.decode import decode
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.open_data import open_pairs, splits_of
from dinorankclip.data.python_pairs import PythonPairs, open_python_data
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import ImageSpec, UserError

DRAW = np.random.default_rng(0)
PIXELS = [DRAW.integers(0, 256, (20, 30, 3)).astype(np.uint8) for _ in range(40)]
ITEMS = [(pixels, [f"picture number {i}", "a picture"]) for i, pixels in enumerate(PIXELS)]


@pytest.fixture(autouse=True)
def kept_here(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "INDEX_FOLDER", tmp_path / "index")
    monkeypatch.setenv("DINORANKCLIP_HOME", str(tmp_path / "built"))


class Pictures(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def as_png(pixels):
    file = bytes_io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_all_kinds_of_images_give_the_same_pixels(tmp_path):
    pixels = PIXELS[0]
    (tmp_path / "a.png").write_bytes(as_png(pixels))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    kinds = [pixels, Image.fromarray(pixels), tensor, tensor.float() / 255, pixels / 255, as_png(pixels)]
    kinds += [tmp_path / "a.png", str(tmp_path / "a.png"), pixels.astype(np.int64)]
    source = PythonPairs([(image, "a picture") for image in kinds])
    for index in range(len(kinds)):
        assert np.array_equal(decode(source.image(index)), pixels), type(kinds[index])
    grey = PythonPairs([(pixels[:, :, 0], "grey"), (tensor[:1], "grey")])
    assert all(np.array_equal(decode(grey.image(i)), np.repeat(pixels[:, :, :1], 3, 2)) for i in range(2))


def test_captions_keys_and_fingerprint():
    source = PythonPairs(Pictures(ITEMS))
    assert len(source) == 40 and source.key(3) == "0000003" and source.captions(3) == ("picture number 3", "a picture")
    assert source.sizes().min() > 0 and source.stamps().shape == (40, 0)
    as_mappings = PythonPairs([{"image": image, "captions": captions} for image, captions in ITEMS])
    assert as_mappings.fingerprint == source.fingerprint == PythonPairs(ITEMS).fingerprint
    assert PythonPairs(ITEMS[:-1]).fingerprint != source.fingerprint
    assert PythonPairs([*ITEMS[:-1], (PIXELS[0], ITEMS[-1][1])]).fingerprint != source.fingerprint
    assert PythonPairs([*ITEMS[:-1], (PIXELS[-1], "else")]).fingerprint != source.fingerprint


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_have_an_exact_position_for_any_number_of_workers(workers):
    def batches(start, count):
        reading = ReadingSettings(workers=workers)
        loader = PairLoader(
            PythonPairs(ITEMS), ImageSpec(24), Tokenizer(), batch=8, seed=0, reading=reading, start=start
        )
        stream = iter(loader)
        found = [next(stream) for _ in range(count)]
        stream.close()
        return [(batch.keys, batch.images) for batch in found]

    whole, later = batches(0, 7), batches(4, 3)
    assert [keys for keys, _ in whole[4:]] == [keys for keys, _ in later]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(whole[4:], later))


def test_a_missing_file_is_damage_of_its_item_alone(tmp_path):
    source = PythonPairs([*ITEMS[:20], (tmp_path / "none.jpg", "nothing")])
    assert source.sizes()[20] == -1
    loader = PairLoader(
        source, ImageSpec(24), Tokenizer(), batch=21, seed=0, reading=ReadingSettings(workers=0, max_damaged=1.0)
    )
    assert next(iter(loader)).damage == [("0000020", "missing-image")]


def test_validation_is_given_or_set_aside():
    name = open_python_data(ITEMS[:30], ITEMS[30:])
    assert name.startswith("python:") and splits_of(name) == ("train", "val")
    assert (len(open_pairs(name, split="train")), len(open_pairs(name, split="val"))) == (30, 10)
    alone = open_python_data(ITEMS)
    assert alone != name and len(open_pairs(alone, split="train")) + len(open_pairs(alone, split="val")) == 40
    with pytest.raises(UserError, match="only that program can open them"):
        open_pairs("python:0123456789abcdef")


def test_an_iterable_is_written_to_shards_which_the_same_items_find_again(tmp_path, capsys):
    where = open_python_data((item for item in ITEMS), (item for item in ITEMS[:5]))
    assert where.startswith(str(tmp_path / "built" / "packed")) and "read once, into shards" in capsys.readouterr().out
    source = open_pairs(where, split="train")
    assert [source.captions(i) for i in range(40)] == [tuple(captions) for _, captions in ITEMS]
    assert all(np.array_equal(decode(source.image(i)), PIXELS[i]) for i in range(40))
    assert len(open_pairs(where, split="val")) == 5
    assert open_python_data(iter(ITEMS), iter(ITEMS[:5])) == where
    assert open_python_data(iter(ITEMS)) != where
    assert [path.name for path in (tmp_path / "built" / "packed").iterdir() if path.name.startswith(".inc")] == []
    with pytest.raises(UserError, match="iterable is empty, or was read to its end before"):
        open_python_data(iter(()))


class Random(Pictures):
    def __getitem__(self, index):
        return np.random.randint(0, 256, (8, 8, 3)).astype(np.uint8), "noise"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Random(ITEMS), "item 0 of data differs between two readings"),
        ([(PIXELS[0],)], "item 0 of data is no pair"),
        ([(PIXELS[0], 7)], "item 0 of data is no pair"),
        ([(torch.randn(3, 8, 8), "a")], "values from -.* before any normalisation"),
        ([(np.zeros((8, 8, 7), np.uint8), "a")], r"must be H×W×3 numbers.*not ndarray \(8, 8, 7\)"),
        ([], "data is empty"),
        (torch.utils.data.DataLoader(Pictures(ITEMS)), "is a DataLoader"),
        ({"image": 1}, "must be a data set or an iterable"),
        (5, "must be a data set or an iterable"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(data, message):
    with pytest.raises(UserError, match=message):
        open_python_data(data)
