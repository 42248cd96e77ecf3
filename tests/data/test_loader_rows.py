"""Batches of rows: a frozen image side's embeddings in the place of pixels, everything else as it was."""

import itertools
import os

import pytest
import torch
from pair_making import ListSource, raw

from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.folders_and_tables import FolderSource, TableSource
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.splits import SplitPart
from dinorankclip.types import ImageSpec

READING = ReadingSettings(workers=0, crop_scale=(1.0, 1.0), max_damaged=0.9)
WITH_TWO = ReadingSettings(workers=2, crop_scale=(1.0, 1.0), max_damaged=0.9)
DIM = 4


class Captioned(ListSource):
    """Images are never read: a row must be enough."""

    def captions(self, index):
        return super().read(index).captions

    def read(self, index):
        raise AssertionError("an image was read")


def row_of(number):
    return torch.arange(DIM, dtype=torch.float32) + number


@pytest.fixture(scope="module")
def entries():
    good = [raw(n, [f"{n} a", f"{n} b longer", f"{n} c"]) for n in range(30)]
    return [*good, "truncated", "corrupt", "no-caption", "not-utf8"]


def rows_of(entries):
    def rows(index):
        if entries[index] in ("truncated", "corrupt"):
            raise Damage(entries[index])
        return row_of(index)

    return rows


def batches(source, tokenizer, count, reading=READING, **settings):
    loader = PairLoader(source, ImageSpec(24), tokenizer, batch=10, seed=5, reading=reading, **settings)
    return list(itertools.islice(loader, count)), loader


def test_only_the_images_differ_from_batches_of_pixels(entries, tokenizer):
    pixels, by_pixels = batches(ListSource(entries), tokenizer, 9, second_caption=True)
    rows, by_rows = batches(Captioned(entries), tokenizer, 9, second_caption=True, rows=rows_of(entries))
    for seen, known in zip(pixels, rows):
        assert known.images.shape == (10, DIM) and known.images.dtype == torch.float32
        assert (seen.keys, seen.captions, seen.damage) == (known.keys, known.captions, known.damage)
        assert torch.equal(seen.texts, known.texts) and torch.equal(seen.second_texts, known.second_texts)
        assert torch.equal(known.images, torch.stack([row_of(int(key[1:])) for key in known.keys]))
    assert by_rows.damage.keys == by_pixels.damage.keys
    assert set(by_rows.damage.by_cause) == {"truncated", "corrupt", "no-caption", "not-utf8"}


def test_workers_positions_and_processes_as_with_pixels(entries, tokenizer):
    source, rows = Captioned(entries), rows_of(entries)
    whole, _ = batches(source, tokenizer, 6, rows=rows)
    for other in (
        batches(source, tokenizer, 4, start=2, rows=rows)[0],
        batches(source, tokenizer, 6, WITH_TWO, rows=rows)[0][2:],
    ):
        for one, same in zip(whole[2:], other, strict=True):
            assert torch.equal(one.images, same.images) and one.captions == same.captions
    shares = [batches(source, tokenizer, 6, rank=rank, world=2, rows=rows)[0] for rank in range(2)]
    for step, one in enumerate(whole):
        assert torch.equal(one.images, torch.cat([share[step].images for share in shares]))


def test_stamps_tell_a_replaced_image(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jpg").write_bytes(b"old")
        (tmp_path / f"{name}.txt").write_text(name)
    table = tmp_path / "pairs.csv"
    table.write_text("image,caption\na.jpg,one\nb.jpg,two\nmissing.jpg,three\n")
    listed, folder = TableSource(table), FolderSource(tmp_path)
    before = listed.stamps(), folder.stamps()
    assert before[0].shape == (3, 2) and before[0][2].tolist() == [-1, -1]
    assert listed.sizes().tolist() == [3, 3, -1]
    (tmp_path / "b.jpg").write_bytes(b"new")  # as long as the old one
    os.utime(tmp_path / "b.jpg", ns=(0, 1))  # whatever the resolution of this disk's clock
    assert TableSource(table).fingerprint == listed.fingerprint
    for source, old in zip((listed, folder), before):
        assert (source.stamps() != old).any(1).tolist() == [False, True, False]
    assert SplitPart(listed, [2, 0]).stamps().tolist() == listed.stamps()[[2, 0]].tolist()
