"""`data check`: planted swaps and copies end up in the lists; what cannot be checked is said."""

import csv

import numpy as np
import pytest

from dinorankclip.commands import data_check, entry
from dinorankclip.data.open_data import open_stored
from tests.data.pair_making import encoded, picture
from tests.set_making import NAMES, ColourModel, patch

SWAPPED = {5: 2, 17: 3, 40: 1, 22: 3, 31: 0, 55: 2}  # photo → class in its caption


def check(capsys, *argv):
    try:
        entry.main(["data", "check", *map(str, argv)])
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    return code, "".join(capsys.readouterr())


def listed(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def colours(tmp_path, monkeypatch):
    """Sixty photos of one colour each, with captions that name the class of the colour, but for six."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(60):
        label = number % 4
        (folder / f"{number:02d}.jpg").write_bytes(patch(label, number))
        (folder / f"{number:02d}.txt").write_text(f"picture {number} of a {NAMES[SWAPPED.get(number, label)]}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_check, "load_quietly", lambda model, device: ColourModel())
    return folder


def test_swapped_captions_are_listed_first(colours, tmp_path, capsys):
    code, text = check(capsys, colours, "--mismatched", "--model", "any", "--out", tmp_path / "lists")
    assert code == 0 and "of 60 captions seem to belong to another photo; colours prefers" in text
    rows = listed(tmp_path / "lists" / "mismatched.csv")
    numbers = [int(row["key"][:2]) for row in rows]
    assert 4 <= len(rows) <= 9 and set(numbers[:4]) <= SWAPPED.keys()
    for number, row in zip(numbers[:4], rows):
        assert int(row["photo that fits best"][:2]) % 4 == SWAPPED[number] and row["part"] == "all"
        assert int(row["photos that fit better"]) >= 10 and f"picture {number} " in row["caption"]


def test_a_model_that_cannot_tell_is_called_that(colours, capsys, monkeypatch):
    blind = ColourModel(collapsed=True)
    blind.identity = "b11nd"  # embeddings are stored by this name
    monkeypatch.setattr(data_check, "load_quietly", lambda model, device: blind)
    _, text = check(capsys, colours, "--mismatched", "--model", "any")
    assert "in 50 % of cases" in text and "too little to judge captions" in text


def test_few_photos_are_not_compared(tmp_path, capsys, monkeypatch):
    (tmp_path / "photos").mkdir()
    for number in range(4):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(patch(number))
        (tmp_path / "photos" / f"{number}.txt").write_text(NAMES[number])
    monkeypatch.setattr(data_check, "load_quietly", lambda model, device: ColourModel())
    _, text = check(capsys, tmp_path / "photos", "--mismatched", "--model", "any", "--out", tmp_path)
    assert "4 photos are too few" in text and listed(tmp_path / "mismatched.csv") == []


def test_the_starter_judges_if_no_model_is_named(colours, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(data_check, "load_quietly", lambda model, device: (asked.append(model), ColourModel())[1])
    assert check(capsys, colours, "--mismatched")[0] == 0 and asked == ["starter"]


def test_copies_in_another_part_are_listed(tmp_path, capsys):
    for part, numbers in (("train", range(40)), ("val", range(100, 110)), ("test", range(200, 210))):
        (tmp_path / "pairs" / part).mkdir(parents=True)
        for number in numbers:
            (tmp_path / "pairs" / part / f"{number}.jpg").write_bytes(encoded(picture(number, 90, 120), quality=90))
            (tmp_path / "pairs" / part / f"{number}.txt").write_text(f"picture {number}")
    for number, options in ((201, {"quality": 40}), (205, {"quality": 90})):  # copies of train 1 and 5
        small = picture(number - 200, 90, 120)
        (tmp_path / "pairs" / "test" / f"{number}.jpg").write_bytes(encoded(np.ascontiguousarray(small), **options))
    code, text = check(capsys, tmp_path / "pairs", "--duplicates", "--out", tmp_path / "lists")
    assert code == 1 and "2 of 10 photos of test are also in train: 201.jpg = 1.jpg, 205.jpg = 5.jpg" in text
    assert "no photo of val is also in train" in text and "no photo of test is also in val" in text
    rows = listed(tmp_path / "lists" / "duplicates.csv")
    assert [(row["part"], row["key"], row["other part"], row["other key"]) for row in rows] == [
        ("test", "201.jpg", "train", "1.jpg"), ("test", "205.jpg", "train", "5.jpg")]  # fmt: skip


def test_undivided_data_is_divided_as_training_would(colours, tmp_path, capsys):
    for name in ("jpg", "txt"):  # forty copies of one photo: some are in both parts
        for number in range(60, 100):
            (colours / f"{number:02d}.{name}").write_bytes((colours / f"07.{name}").read_bytes())
    held_out = open_stored(colours, split="val")
    assert len(held_out) == 10
    code, text = check(capsys, colours, "--duplicates")
    assert code == 1 and "photos of val are also in train" in text and "--reading.group-column" in text
