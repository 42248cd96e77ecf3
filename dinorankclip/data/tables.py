"""A table of image paths and captions: CSV, TSV or Parquet. Paths are relative to the table.

Several rows of one image are its several captions, and so is a list in a row of Parquet; images come in the order
of their first rows.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import hashlib
import io
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.config import FindingSettings
from dinorankclip.data import decode as caption_files
from dinorankclip.data.damage import Damage
from dinorankclip.data.folders import read_file, sizes_and_times
from dinorankclip.data.tar_shards import IMAGE_KINDS
from dinorankclip.io import digest
from dinorankclip.types import RawSample, UserError

TABLE_KINDS = (".csv", ".tsv", ".parquet")
_DELIMITERS = {".csv": ",;\t", ".tsv": "\t"}


class TableSource:
    """Images of a table. The key is the path as the table gives it; `group(index)` its group, if there is one.

    The fingerprint covers the table, not the bytes of the images it points to.
    """

    def __init__(self, table: Path, reading: FindingSettings | None = None) -> None:
        reading = reading or FindingSettings()
        self.table = Path(table)
        wanted = {"image-column": reading.image_column, "caption-column": reading.caption_column}
        wanted |= {"group-column": reading.group_column} if reading.group_column else {}
        rows = table_rows(self.table, wanted)
        self._captions: dict[str, list[str]] = {}
        self._groups: dict[str, str] = {}
        self._collect(rows, grouped=bool(reading.group_column))
        self._keys = list(self._captions)
        if not self._keys:
            raise UserError(f"{table} has a header but no rows")
        self._refuse_if_no_image_is_there()
        self.fingerprint = digest("table", content_hash(self.table), *wanted.values())

    def _refuse_if_no_image_is_there(self) -> None:
        """Wrong paths altogether are the table's fault, not damaged samples. The first image found ends the search."""
        if not any(os.path.isfile(self.table.parent / key) for key in self._keys):
            raise UserError(
                f"none of the {len(self._keys)} images of {self.table} is there, the first would be "
                f"{self.table.parent / self._keys[0]}: paths in a table are relative to the table's own folder "
                "(or absolute)"
            )

    def _collect(self, rows: Iterable[list[str]], grouped: bool) -> None:
        for number, (image, caption, *group) in enumerate(rows, start=1):
            key = image.strip() or without_image(number)
            self._captions.setdefault(key, []).append(caption)
            if grouped and self._groups.setdefault(key, group[0]) != group[0]:
                raise UserError(
                    f"{self.table}: image {key} belongs to two groups, {self._groups[key]!r} and {group[0]!r}"
                )

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, index: int) -> str:
        return self._keys[index]

    def group(self, index: int) -> str:
        """What must stay on one side of a validation cut: the group, else the image itself."""
        key = self._keys[index]
        return self._groups.get(key, key)

    def sizes(self) -> np.ndarray:
        """Bytes of each image, -1 where there is none."""
        return self.stamps()[:, 0]

    def stamps(self) -> np.ndarray:
        """What tells a replaced image from the old one; see `sizes_and_times`."""
        return sizes_and_times(self.table.parent / key for key in self._keys)

    def captions(self, index: int) -> tuple[str, ...]:
        return caption_files.cleaned(self._captions[self._keys[index]])

    def image(self, index: int) -> bytes:
        key = self._keys[index]
        if key.endswith(" (no image)"):
            raise Damage("missing-image", key)
        return read_file(self.table.parent / key, missing="missing-image")

    def read(self, index: int) -> RawSample:
        return RawSample(self.key(index), self.image(index), self.captions(index))


def content_hash(table: Path) -> bytes:
    """Of all its bytes, which for Parquet may be more than memory holds."""
    with table.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def without_image(row: int) -> str:
    """The key of a row that names no image."""
    return f"row {row} (no image)"


def table_rows(table: Path, wanted: dict[str, str]) -> Iterator[list[str]]:
    """The wanted columns of every row of a table. `wanted`: the flag that names a column → its name."""
    return _parquet_rows(table, wanted) if table.suffix.lower() == ".parquet" else _csv_rows(table, wanted)


def _csv_rows(table: Path, wanted: dict[str, str]) -> Iterator[list[str]]:
    """The wanted columns of every row. Bytes that are no UTF-8 survive as surrogates and damage only their row."""
    text = table.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise UserError(f"{table} is empty: its first line must name the columns, e.g. image,caption")
    csv.field_size_limit(1 << 30)
    header: list[str] = []
    chosen = ","
    for delimiter in _DELIMITERS.get(table.suffix.lower(), ","):
        try:
            found = [name.strip() for name in next(_reader(text, delimiter), [])]
        except csv.Error as error:
            raise UserError(f"{table} cannot be read as a table: {error}") from None
        if not header or len(found) > len(header):
            header, chosen = found, delimiter
        if set(wanted.values()) <= set(found):
            break
    places = _places(header, wanted, table)
    rows = _reader(text, chosen)
    if "image-column" in wanted and '"' in text and (line := _swallowing(text, chosen, header, wanted["image-column"])):
        if table.suffix.lower() != ".tsv":
            raise UserError(
                f"{table}, line {line}: a cell begins with a quotation mark that is not closed, and swallows the lines "
                "below. Remove it, or put the whole cell in quotation marks and double those inside: "
                '"""Hello"", it said"'
            )
        rows = _reader(text, chosen, quoted=False)  # out of a database: a quotation mark is a letter like any other
    next(rows)
    try:
        for row in rows:
            if row:  # not an empty line
                yield [row[place] if place < len(row) else "" for place in places]
    except csv.Error as error:
        raise UserError(f"{table}, line {rows.line_num}: {error}") from None


def _reader(text: str, delimiter: str, *, quoted: bool = True) -> Any:
    lines = io.StringIO(text, newline="")
    return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)


def _swallowing(text: str, delimiter: str, header: list[str], image_column: str) -> int | None:
    """The line of the first row with a cell that has whole rows in it: lines with an image where images are named."""
    place, rows, before = header.index(image_column), _reader(text, delimiter), 0
    with contextlib.suppress(csv.Error):  # told when the rows are read
        for row in rows:
            for cell in row:
                for line in cell.split("\n")[1:] if "\n" in cell else ():
                    cells = line.split(delimiter)
                    kind = cells[place].strip(' "\r').rpartition(".")[2] if len(cells) >= len(header) else ""
                    if kind.lower() in IMAGE_KINDS:
                        return before + 1
            before = rows.line_num
    return None


def _parquet_rows(table: Path, wanted: dict[str, str]) -> Iterator[list[str]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError("reading Parquet needs pyarrow: pip install 'dinorankclip[parquet]'") from None
    try:
        file = parquet.ParquetFile(table)
    except Exception as error:
        raise UserError(f"{table} cannot be read as Parquet: {error}") from None
    _places(file.schema_arrow.names, wanted, table)
    for flag, name in wanted.items():
        _refuse_what_is_no_text(file.schema_arrow.field(name).type, flag, name, table)
    number = 0
    for batch in file.iter_batches(columns=list(wanted.values())):
        columns = [batch.column(name).to_pylist() for name in wanted.values()]
        for row in zip(*columns):
            number += 1
            cells = [value if isinstance(value, list) else [value] for value in row]
            texts = [["" if value is None else str(value) for value in cell or [None]] for cell in cells]
            if "image-column" in wanted and not texts[0][0].strip():
                texts[0] = [without_image(number)]  # here, since a row with several captions is several rows outside
            yield from map(list, itertools.product(*texts))


def _refuse_what_is_no_text(kind: Any, flag: str, name: str, table: Path) -> None:
    """Only what reads the same as text: bytes and structs would become captions such as "{'en': 'a dog'}"."""
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    cell = kind.value_type if is_list and flag == "caption-column" else kind
    cell = cell.value_type if types.is_dictionary(cell) else cell
    is_text = str(cell) in ("string", "large_string", "string_view", "null")
    if not (is_text or types.is_primitive(cell) or types.is_decimal(cell)):
        expected = "paths of image files" if flag == "image-column" else "text"
        raise UserError(f"{table}: the column {name!r} holds {kind}, and {expected} was expected (--reading.{flag})")


def _places(header: list[str], wanted: dict[str, str], table: Path) -> list[int]:
    """Where the wanted columns are; a missing one is an error that helps."""
    for flag, name in wanted.items():
        if name in header:
            continue
        folded = {column.lower(): column for column in header}
        near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
        hint = f" Did you mean --reading.{flag} {folded[near[0]]!r}?" if near else f" Name it: --reading.{flag} NAME."
        raise UserError(f"{table} has no column {name!r}; its columns are {', '.join(map(repr, header))}.{hint}")
    return [header.index(name) for name in wanted.values()]
