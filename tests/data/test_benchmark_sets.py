"""Classification sets in the clip-benchmark layout: what is read, and what is refused in words."""

import os

import numpy as np
import pytest

from dinorankclip.data.benchmark_sets import SetLocation, find_sets, open_set, read_templates
from dinorankclip.data.damage import refuse_damage
from dinorankclip.data.splits import carve_validation
from dinorankclip.types import UserError
from tests.set_making import NAMES, patch, write_captions, write_classes, write_tar


def opened(folder, split="test"):
    return open_set(SetLocation(folder.name, str(folder))).open(split)


def test_labels_names_and_prompts(tmp_path):
    folder = write_classes(tmp_path / "animals", labels=(2, 0, 3))
    found = open_set(*find_sets(str(folder)))
    assert (found.name, found.kind, found.splits) == ("animals", "classification", ("test",))
    assert found.class_names == NAMES and found.templates == ("a {c}.", "one {c}.") and found.notes == ()
    source = found.open("test")
    assert source.labels.tolist() == [2, 0, 3] and source.key(1) == "s001"
    assert source.read(1).captions == () and source.read(1).image == patch(0, 1)


def test_a_folder_of_sets_means_all_of_them(tmp_path):
    write_classes(tmp_path / "a")
    write_captions(tmp_path / "b")
    (tmp_path / "notes").mkdir()
    assert [place.name for place in find_sets(str(tmp_path))] == ["a", "b"]
    assert [open_set(place).kind for place in find_sets(str(tmp_path))] == ["classification", "retrieval"]
    with pytest.raises(UserError, match="there is no"):
        find_sets(str(tmp_path / "c"))


def test_pairs_of_ones_own_are_a_retrieval_set(tmp_path):
    (tmp_path / "one.jpg").write_bytes(patch(0))
    (tmp_path / "photos.csv").write_text("image,caption\n" + "".join(f"one.jpg,caption {n}\n" for n in range(3)))
    place = find_sets(str(tmp_path / "photos.csv"))[0]
    found = open_set(place)
    assert (found.name, found.kind, found.splits, found.scored_split()) == ("photos", "retrieval", ("all",), "val")


def test_a_set_named_like_a_part_takes_its_parents_name_along(tmp_path):
    write_captions(tmp_path / "mine" / "val")
    (tmp_path / "mine" / "one.jpg").write_bytes(patch(0))
    (tmp_path / "mine" / "test.csv").write_text("image,caption\none.jpg,a cat\n")
    found = [find_sets(str(tmp_path / "mine" / name))[0].name for name in ("val", "test.csv")]
    assert found == ["mine-val", "mine-test"]


def test_a_set_without_templates_gets_the_default_and_a_note(tmp_path):
    folder = write_classes(tmp_path / "a", templates=())
    found = open_set(SetLocation("a", str(folder)))
    assert found.templates == ("a photo of a {c}.",) and "a photo of a {c}." in found.notes[0]
    (folder / "zeroshot_classification_templates.txt").write_text("a photo\n")
    with pytest.raises(UserError, match=r"'a photo' has no \{c\}"):
        read_templates(folder)


def test_missing_or_blank_class_names(tmp_path):
    folder = write_classes(tmp_path / "a")
    (folder / "classnames.txt").write_text("cat\n\nboat\n")
    with pytest.raises(UserError, match=r"class 1 \(line 2\) has no name"):
        opened(folder)
    (folder / "classnames.txt").unlink()
    with pytest.raises(UserError, match=r"has no classnames\.txt"):
        opened(folder)


def test_a_class_index_out_of_range(tmp_path):
    folder = write_classes(tmp_path / "a", labels=(0, 1, 3), names=NAMES[:2])
    with pytest.raises(UserError, match=r"first s002\.cls = 3 in .*names 2 classes, 0 to 1"):
        opened(folder)


def test_a_class_index_that_is_none(tmp_path):
    folder = write_classes(tmp_path / "a")
    write_tar(folder / "test" / "0.tar", [("s0.jpg", patch(0)), ("s0.cls", b"cat")])
    with pytest.raises(UserError, match=r"s0\.cls .* holds 'cat', not a class index"):
        opened(folder)
    write_tar(folder / "test" / "0.tar", [("s0.jpg", patch(0)), ("s0.cls", b"0"), ("s1.jpg", patch(1))])
    with pytest.raises(UserError, match=r"1 of 2 images .* s1\.cls is missing"):
        opened(folder)


def test_an_empty_part(tmp_path):
    folder = write_classes(tmp_path / "a")
    write_tar(folder / "test" / "0.tar", [])
    with pytest.raises(UserError, match="no images in"):
        opened(folder)
    (folder / "test" / "0.tar").unlink()
    (folder / "test" / "nshards.txt").write_text("0")
    with pytest.raises(UserError, match=r"the test part of .* is empty"):
        opened(folder)
    pairs = write_captions(tmp_path / "b")
    write_tar(pairs / "test" / "0.tar", [])
    with pytest.raises(UserError, match="no samples in"):
        opened(pairs)


def test_an_empty_part_of_a_set_of_unknown_kind(tmp_path):
    write_captions(tmp_path / "set", split="train")
    (tmp_path / "set" / "dataset_type.txt").unlink(missing_ok=True)
    (tmp_path / "set" / "test").mkdir()
    with pytest.raises(UserError, match=r"set/test holds no \.tar shards.*into .*dataset_type\.txt"):
        open_set(SetLocation("set", str(tmp_path / "set")))


def test_the_part_to_score(tmp_path):
    folder = write_classes(write_classes(tmp_path / "a", split="train"), split="validation")
    found = open_set(SetLocation("a", str(folder)))
    assert found.splits == ("train", "val") and found.scored_split() == "val" and found.scored_split("train") == "train"
    with pytest.raises(UserError, match="has no test part, only train, val"):
        found.scored_split("test")


def test_a_set_with_training_images_alone_is_scored_when_asked(tmp_path):
    found = open_set(SetLocation("a", str(write_classes(tmp_path / "a", split="train"))))
    assert found.usual_split is None and found.scored_split("train") == "train"
    with pytest.raises(UserError, match="name it by --split"):
        found.scored_split()


def test_a_corrected_label_is_seen_although_the_shard_has_the_size_and_ends_of_the_old_one(tmp_path):
    labels = [0] * 400
    folder = write_classes(tmp_path / "a", labels=labels)
    before = opened(folder)
    tar = folder / "test" / "0.tar"
    data = tar.read_bytes()
    place = data.index(b"s200.cls") + 512
    tar.write_bytes(data[:place] + b"1" + data[place + 1 :])
    os.utime(tar, ns=(1, 1))  # another moment, as a real correction would have
    after = opened(folder)
    assert after.labels[200] == 1 and after.labels.sum() == 1
    assert before.fingerprint != after.fingerprint


def test_a_photo_that_was_replaced_is_seen(tmp_path):
    (tmp_path / "photos.csv").write_text("image,caption\n" + "".join(f"{n}.jpg,caption {n}\n" for n in range(20)))
    for n in range(20):
        (tmp_path / f"{n}.jpg").write_bytes(patch(n % 4))
    found = open_set(SetLocation("photos", str(tmp_path / "photos.csv")))
    before = found.open("val")
    shown = int(before.key(0).removesuffix(".jpg"))
    (tmp_path / f"{shown}.jpg").write_bytes(patch(shown % 4)[:-2] + b"\xff\xd9")
    assert found.open("val").fingerprint == before.fingerprint  # the same bytes again
    (tmp_path / f"{shown}.jpg").write_bytes(patch((shown + 1) % 4))
    assert found.open("val").fingerprint != before.fingerprint


def test_damage_is_an_error_unless_a_share_is_allowed():
    damaged = [("a", "truncated"), ("b", "corrupt")]
    with pytest.raises(UserError, match=r"2 of 100 samples of x are damaged:\n(.*\n)* +1 truncated .*: a\n"):
        refuse_damage("x", damaged, 100, 0.01)
    refuse_damage("x", damaged, 100, 0.02)
    refuse_damage("x", [], 0)


def test_validation_is_carved_class_by_class_and_by_keys_alone():
    labels = np.array([0] * 10 + [1] * 3 + [2])
    keys = [f"k{n}" for n in range(len(labels))]
    train, val = carve_validation(keys, labels, 0.2)
    assert sorted([*train, *val]) == list(range(14))
    assert np.bincount(labels[val], minlength=3).tolist() == [2, 1, 0]
    order = np.random.default_rng(0).permutation(len(keys))
    _, again = carve_validation([keys[n] for n in order], labels[order], 0.2)
    assert {keys[n] for n in val} == {keys[order[n]] for n in again}
