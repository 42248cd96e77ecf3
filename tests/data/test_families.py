"""Families of classes: by words of their names, by a table, by two label files; the command that writes them."""

import json

import pytest

from dinorankclip.commands.data import main
from dinorankclip.data.families import families_by_labels, families_by_table, families_by_word
from dinorankclip.types import UserError

BIRDS = ("Scarlet Tanager", "Summer_Tanager", "Cardinal", "Yellow Warbler", "Palm Warbler")


def test_words_of_names_by_hand():
    assert families_by_word(BIRDS, "last") == {
        "Tanager": ["Scarlet Tanager", "Summer_Tanager"],
        "Warbler": ["Yellow Warbler", "Palm Warbler"],
    }
    cars = ("Audi A6 Sedan", "Audi A4", "BMW X5")
    assert families_by_word(cars, "first") == {"Audi": ["Audi A6 Sedan", "Audi A4"]}


def test_a_table_may_write_names_in_another_way_and_know_more_of_them(tmp_path):
    table = tmp_path / "birds.tsv"
    table.write_text("class\tfamily\nscarlet_tanager\tCardinalidae\nCardinal\tCardinalidae\nEmu\tDromaiidae\n")
    assert families_by_table(BIRDS, table) == {"Cardinalidae": ["Scarlet Tanager", "Cardinal"]}
    table.write_text("name\tfamily\na\tb\n")
    with pytest.raises(UserError, match="needs the columns class and family; it has name, family"):
        families_by_table(BIRDS, table)
    table.write_text("class\tfamily\nEmu\tDromaiidae\n")
    with pytest.raises(UserError, match=r"knows none of the classes, e\.g\. 'Scarlet Tanager'; it has e\.g\. 'Emu'"):
        families_by_table(BIRDS, table)


def test_two_label_files_are_joined_by_image(tmp_path):
    variants, makers = tmp_path / "variants.txt", tmp_path / "makers.txt"
    variants.write_text("1 A320\n2 A330\n3 737-200\n4 A320\n5 DC-3\n")
    makers.write_text("1 Airbus\n2 Airbus\n3 Boeing\n4 Airbus\n5 Douglas Aircraft Company\n")
    assert families_by_labels(("A320", "A330", "737-200", "DC-3"), variants, makers) == {"Airbus": ["A320", "A330"]}
    makers.write_text("1 Airbus\n4 Boeing\n")
    with pytest.raises(UserError, match="images of 'A320' are of"):
        families_by_labels(("A320",), variants, makers)
    makers.write_text("9 Airbus\n")
    with pytest.raises(UserError, match="share no key"):
        families_by_labels(("A320",), variants, makers)


def test_the_command_writes_what_sets_read(tmp_path, capsys):
    (tmp_path / "classnames.txt").write_text("\n".join(BIRDS) + "\n")
    main(["families", str(tmp_path), "--by", "last-word"])
    assert json.loads((tmp_path / "families.json").read_text()) == families_by_word(BIRDS, "last")
    reported = capsys.readouterr().out
    assert "2 families of 4 classes" in reported and "1 classes stand alone" in reported
    for flags in ([], ["--by", "last-word", "--table", "x.csv"]):
        with pytest.raises(UserError, match="families come from one place"):
            main(["families", str(tmp_path), *flags])
    with pytest.raises(UserError, match=r"no two classes of .* share a family"):
        main(["families", str(tmp_path), "--by", "first-word"])
    with pytest.raises(UserError, match=r"x\.csv cannot be read"):
        main(["families", str(tmp_path), "--table", str(tmp_path / "x.csv")])
