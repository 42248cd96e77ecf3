"""A few training images chosen from many, and folders of `data make scenes` as data."""

import itertools

import pytest
from pair_making import ListSource, jpeg, raw, write_tar

from dinorankclip.config import ReadingSettings
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.open_data import open_pairs, splits_of
from dinorankclip.data.scenes.make import make_scenes
from dinorankclip.data.splits import choose
from dinorankclip.types import ImageSpec, UserError


@pytest.fixture
def folder(tmp_path):
    """40 images without a validation part of their own."""
    members = [m for n in range(40) for m in ((f"{n:03d}.jpg", jpeg(n)), (f"{n:03d}.txt", b"one\ntwo"))]
    write_tar(tmp_path / "all" / "0.tar", members)
    return tmp_path / "all"


def keys(source):
    return [source.key(index) for index in range(len(source))]


def test_smaller_choices_are_part_of_larger_ones_and_keep_all_captions():
    whole = ListSource([raw(n, ["a", "b"]) for n in range(50)])
    few, more = choose(whole, 12), choose(whole, 31)
    assert len(few) == 12 and len(more) == 31 and set(keys(few)) < set(keys(more)) < set(keys(whole))
    assert keys(few) == keys(choose(whole, 12)) == sorted(keys(few), key=keys(whole).index)
    assert few.read(3).captions == ("a", "b") and few.read(3).key == few.key(3)
    assert len({few.fingerprint, more.fingerprint, whole.fingerprint}) == 3
    assert keys(few) != keys(whole)[:12]
    # The choice is by name: the same images whatever else the data holds in between.
    assert set(keys(choose(ListSource([raw(n) for n in range(49, -1, -1)]), 12))) == set(keys(few))


def test_held_out_parts_are_untouched_and_the_choice_belongs_to_the_whole(folder):
    reading = ReadingSettings(train_items=9)
    train, whole = open_pairs(folder, reading, "train"), open_pairs(folder, None, "train")
    assert len(train) == 9 and len(whole) == 36 and set(keys(train)) < set(keys(whole))
    assert keys(open_pairs(folder, reading, "val")) == keys(open_pairs(folder, None, "val"))
    assert len(open_pairs(folder, reading, "all")) == 40
    # What a teacher cache goes by.
    assert train.source.fingerprint == whole.source.fingerprint == open_pairs(folder, None, "all").fingerprint


def test_an_epoch_keeps_its_length_and_the_few_come_round_equally_often(tokenizer):
    few = choose(ListSource([raw(n) for n in range(40)]), 8)
    reading = ReadingSettings(workers=0)
    loader = PairLoader(few, ImageSpec(24), tokenizer, batch=4, seed=0, reading=reading)
    assert loader.steps_per_epoch == 10
    passes = [batch.keys for batch in itertools.islice(loader, 6)]
    for first, second in zip(passes[::2], passes[1::2]):
        assert sorted(first + second) == sorted(keys(few))
    assert passes[0] != passes[2]


def test_short_epochs_count_the_chosen_images_alone(tokenizer, folder):
    source = ListSource([raw(n) for n in range(40)])
    long, short = choose(source, 8), choose(source, 8, short_epochs=True)
    assert keys(short) == keys(long) and short.fingerprint == long.fingerprint
    steps = [
        PairLoader(few, ImageSpec(24), tokenizer, batch=4, seed=0, reading=ReadingSettings(workers=0)).steps_per_epoch
        for few in (long, short)
    ]
    assert steps == [10, 2]
    assert open_pairs(folder, ReadingSettings(train_items=9, short_epochs=True), "train").chosen_from is None


def test_choices_that_cannot_be_made(folder, tokenizer):
    for items in (0, -3, 37):
        with pytest.raises(UserError, match=rf"train-items {items}: the training part has 36 images"):
            open_pairs(folder, ReadingSettings(train_items=items), "train")
    with pytest.raises(UserError, match="pipe: shards is not known"):
        open_pairs(f"pipe:cat {folder / '0.tar'}", ReadingSettings(train_items=9), "train")
    reading = ReadingSettings(train_items=9, workers=0)
    with pytest.raises(UserError, match=r"9 pairs do not fill one batch of 16.*more --reading\.train-items"):
        PairLoader(open_pairs(folder, reading), ImageSpec(24), tokenizer, batch=16, seed=0, reading=reading)


def test_a_folder_of_made_scenes_stands_for_its_pairs(tmp_path):
    made = make_scenes(
        tmp_path / "made", train=6, val=3, test=2, size=32, kinds_train=2, kinds_test=2, fine_train=2, fine_test=2,
        workers=1,
    )  # fmt: skip
    assert splits_of(made) == splits_of(made / "pairs") == ("train", "val", "test")
    for split, count in (("train", 6), ("val", 3), ("test", 2)):
        source = open_pairs(made, None, split)
        assert len(source) == count and source.fingerprint == open_pairs(made / "pairs", None, split).fingerprint
