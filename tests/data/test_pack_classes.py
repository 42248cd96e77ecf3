"""Class folders → an evaluation set."""

import os

import pytest

from dinorankclip.commands.data import main
from dinorankclip.data.benchmark_sets import SetLocation, open_set
from dinorankclip.data.pack import class_folders, class_name
from dinorankclip.types import UserError
from tests.set_making import patch


def folders(where, names, each=2):
    for label, name in enumerate(names):
        (where / name).mkdir(parents=True)
        for number in range(each):
            (where / name / f"{number}.jpg").write_bytes(patch(label % 4, number))
    return where


def test_names_prompts_and_labels(tmp_path, capsys):
    birds = folders(tmp_path / "birds", ["002.Blue_Jay", "010.Wren", "001.Black_footed_Albatross"])
    main(["pack-classes", str(birds), str(tmp_path / "set"), "--template", "a {c}, a bird.", "--shard-size", "4"])
    assert "6 images of 3 classes" in capsys.readouterr().out
    found = open_set(SetLocation("set", str(tmp_path / "set")))
    assert found.class_names == ("Black footed Albatross", "Blue Jay", "Wren")
    assert found.templates == ("a {c}, a bird.",)
    source = found.open("test")
    assert source.labels.tolist() == [0, 0, 1, 1, 2, 2] and len(source.shards) == 2
    assert source.image(2) == patch(0, 0)  # the first folder made was the blue jay's


def test_further_parts_and_lists(tmp_path):
    birds = folders(tmp_path / "birds", ["jay", "wren"], each=3)
    (tmp_path / "train.txt").write_text("wren/0.jpg\njay/1.jpg\n")
    arguments = ["pack-classes", str(birds), str(tmp_path / "set")]
    main([*arguments, "--split", "train", "--listed", str(tmp_path / "train.txt")])
    main(arguments)
    found = open_set(SetLocation("set", str(tmp_path / "set")))
    assert found.splits == ("train", "test")
    assert found.open("train").labels.tolist() == [1, 0] and len(found.open("test")) == 6
    with pytest.raises(UserError, match="exists already"):
        main(arguments)
    folders(tmp_path / "fish", ["cod"])
    with pytest.raises(UserError, match="other classes"):
        main(["pack-classes", str(tmp_path / "fish"), str(tmp_path / "set"), "--split", "val"])


def test_folders_that_are_numbers_are_class_indices(tmp_path):
    numbers = folders(tmp_path / "numbers", ["0", "2", "10"])
    hidden = tmp_path / "hidden"
    for name in ("cat", "dog", ".ipynb_checkpoints"):
        (hidden / name).mkdir(parents=True)
    assert class_folders(hidden) == {"cat": 0, "dog": 1}
    assert class_folders(numbers, names=[str(n) for n in range(11)]) == {"0": 0, "2": 2, "10": 10}
    with pytest.raises(UserError, match="give --like"):
        class_folders(numbers)
    with pytest.raises(UserError, match="a class 10, the other set only 3 classes"):
        class_folders(numbers, names=["a", "b", "c"])


def test_a_name_of_two_classes_of_the_other_set_is_refused(tmp_path):
    weapons = folders(tmp_path / "weapons", ["missile", "rifle"])
    assert class_folders(weapons, names=["rifle", "cat", "missile"]) == {"missile": 2, "rifle": 0}
    with pytest.raises(UserError, match="missile is the name of 2 classes"):
        class_folders(weapons, names=["rifle", "missile", "missile"])


def test_a_listed_image_outside_the_class_folders_is_named(tmp_path):
    birds = folders(tmp_path / "birds", ["jay"])
    (birds / "stray.jpg").write_bytes(patch(0, 0))
    (tmp_path / "list.txt").write_text("stray.jpg\n")
    with pytest.raises(UserError, match=r"stray\.jpg is listed but is in none of the class folders"):
        main(["pack-classes", str(birds), str(tmp_path / "set"), "--listed", str(tmp_path / "list.txt")])


def test_a_list_may_have_a_byte_order_mark_and_names_that_are_no_utf8(tmp_path):
    birds = folders(tmp_path / "birds", ["jay"])
    (birds / "jay" / os.fsdecode(b"\xe9.jpg")).write_bytes(patch(0, 0))
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfjay/0.jpg\r\njay/\xe9.jpg\r\n")
    main(["pack-classes", str(birds), str(tmp_path / "set"), "--listed", str(tmp_path / "list.txt")])
    assert len(open_set(SetLocation("set", str(tmp_path / "set"))).open("test")) == 2


def test_a_broken_image_is_named(tmp_path):
    birds = folders(tmp_path / "birds", ["jay"])
    (birds / "jay" / "1.jpg").write_bytes(b"<html>")
    with pytest.raises(UserError, match=r"1\.jpg cannot be used: not-an-image"):
        main(["pack-classes", str(birds), str(tmp_path / "set")])
    assert not (tmp_path / "set" / "test").exists()


def test_class_names():
    assert class_name("001.Black_footed_Albatross") == "Black footed Albatross" and class_name("2cv") == "2cv"
