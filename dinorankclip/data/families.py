"""Makes the families of a fine-grained set, `families.json`: classes that differ in small parts.

An error of a probe inside the right family missed the small parts, an error outside missed the thing itself. Families
come from one of three places:

    words of the names    "Scarlet Tanager" → "Tanager" (last), "Audi A6 Sedan 2012" → "Audi" (first)
    a table               a .csv or .tsv file with the columns class and family
    two label files       lines `KEY LABEL`: the classes of images, and their families, joined by KEY; FGVC-Aircraft
                          comes with images_variant_test.txt and images_manufacturer_test.txt

A class that no other class joins is no family: it stands alone.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

from dinorankclip.checked_files import TABLE_BYTES, file_text
from dinorankclip.types import UserError

Word = Literal["first", "last"]


def families_by_word(names: Sequence[str], word: Word) -> dict[str, list[str]]:
    """Group class names by their first or last word; underscores count as spaces."""
    place = 0 if word == "first" else -1
    return grouped({name: re.split(r"[\s_]+", name.strip())[place] for name in names})


def families_by_table(names: Sequence[str], table: Path) -> dict[str, list[str]]:
    """Group class names by a table with the columns class and family."""
    with _opened(table) as file:
        rows = csv.DictReader(file, delimiter="\t" if table.suffix == ".tsv" else ",")
        if not {"class", "family"} <= set(rows.fieldnames or ()):
            raise UserError(f"{table} needs the columns class and family; it has {', '.join(rows.fieldnames or ())}")
        try:
            family_of = {row["class"] or "": row["family"] or "" for row in rows}
        except csv.Error as error:
            raise UserError(f"{table} cannot be read as a table: {error}") from None
    return grouped(_matched(names, family_of, str(table)))


def families_by_labels(names: Sequence[str], classes: Path, families: Path) -> dict[str, list[str]]:
    """Group class names by two label files of the same images. A class whose images have two families is refused."""
    class_of, family_of_image = _labels(classes), _labels(families)
    family_of: dict[str, str] = {}
    for key in class_of.keys() & family_of_image.keys():
        family = family_of.setdefault(class_of[key], family_of_image[key])
        if family != family_of_image[key]:
            raise UserError(
                f"{families}: images of '{class_of[key]}' are of '{family}' and of '{family_of_image[key]}'"
            )
    if not family_of:
        raise UserError(f"{classes} and {families} share no key: their lines should be KEY LABEL, of the same images")
    return grouped(_matched(names, family_of, f"{classes} and {families}"))


def grouped(family_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Return family → its classes, in the order of the classes, without families of one class."""
    families: dict[str, list[str]] = {}
    for name, family in family_of.items():
        families.setdefault(family, []).append(name)
    return {family: members for family, members in families.items() if len(members) > 1}


def _matched(names: Sequence[str], family_of: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the family of each class that the source knows; names may differ in case and underscores."""
    known = {_plain(name): family for name, family in family_of.items()}
    found = {name: known[_plain(name)] for name in names if _plain(name) in known}
    if not found:
        raise UserError(f"{source} knows none of the classes, e.g. '{names[0]}'; it has e.g. '{next(iter(family_of))}'")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", " ", name).strip().casefold()


def _labels(path: Path) -> dict[str, str]:
    with _opened(path) as file:
        pairs = (line.strip().partition(" ") for line in file if line.strip())
        return {key: label.strip() for key, _, label in pairs}


def _opened(path: Path) -> IO[str]:
    try:
        return io.StringIO(file_text(path, TABLE_BYTES), newline="")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
