"""Reads pairs from image files: a folder with caption files beside its images, or a table of image paths and captions.

A folder holds `shoes/red.jpg` and `shoes/red.txt`. A table is CSV, TSV or Parquet, and its paths are relative to it.
Several rows of one image are its several captions, and so is a list in a row of Parquet; images come in the order
of their first rows.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import errno
import hashlib
import io
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.checked_files import (
    TABLE_BYTES,
    NoRegularFile,
    TooLarge,
    UnfitFile,
    file_bytes,
    open_regular,
)
from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import CAPTION_BYTES, IMAGE_BYTES, Damage
from dinorankclip.data.decode import captions_from_text, clean_captions
from dinorankclip.data.tar_shards import IMAGE_KINDS
from dinorankclip.extras import naming_extras
from dinorankclip.io import digest
from dinorankclip.types import Source, UserError, first_line

log = logging.getLogger(__name__)

TABLE_KINDS = (".csv", ".tsv", ".parquet")


class ImageFiles:
    """Reads image files by name, relative to a folder. The name is the key."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self._names = folder, names
        self.fingerprint = digest("images", *names)

    def __len__(self) -> int:
        return len(self._names)

    def key(self, index: int) -> str:
        return self._names[index]

    def sizes(self) -> np.ndarray:
        return self.stamps()[:, 0]

    def stamps(self) -> np.ndarray:
        return sizes_and_times(self.folder / name for name in self._names)

    def image(self, index: int) -> bytes:
        return read_file(self.folder / self._names[index], missing="missing-image")


class FolderSource(ImageFiles, Source):
    """Reads the images in and below a folder; keys are paths. The fingerprint covers captions, file names and sizes."""

    def __init__(self, folder: Path) -> None:
        names, captioned = find_images(folder)
        if not names:
            raise UserError(f"no images in {folder}")
        if not captioned:
            raise UserError(
                f"{folder} has {len(names)} images, but none has a .txt file of the same name beside it, such as "
                f"{Path(names[0]).with_suffix('.txt')}. A CSV with image and caption columns works too."
            )
        super().__init__(Path(folder), names)
        self.fingerprint = digest("folder", *names, self.sizes().tobytes(), *map(self._caption_bytes, names))

    def _caption_bytes(self, name: str) -> bytes:
        try:
            return file_bytes((self.folder / name).with_suffix(".txt"), CAPTION_BYTES)
        except (OSError, UnfitFile):
            return b""

    def captions(self, index: int) -> tuple[str, ...]:
        path = self.folder / self._names[index]
        return captions_from_text(read_file(path.with_suffix(".txt"), missing="no-caption"))


def read_file(path: Path, missing: str) -> bytes:
    """Return a file's bytes; raise `Damage` if the file does not exist (cause `missing`), is too large or cannot be
    read. A folder, a FIFO or a device is no file."""
    try:
        return file_bytes(path, IMAGE_BYTES if missing == "missing-image" else CAPTION_BYTES)
    except TooLarge as error:
        raise Damage("too-large", str(error)) from None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):  # ValueError: zero byte in the name
        raise Damage(missing, str(path)) from None
    except NoRegularFile as error:
        raise Damage(missing, str(error)) from None
    except OSError as error:
        # A caption in the place of a name, or links in a circle, will never be a file; a disk may come back.
        never = error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
        raise Damage(missing if never else "unreadable", str(error)) from None


def sizes_and_times(paths: Iterable[Path]) -> np.ndarray:
    """Return int64 [n, 2]: bytes and time of the last change of each file, -1 where the file is missing."""
    states = []
    for path in paths:
        try:
            state = os.stat(path)
            states.append((state.st_size, state.st_mtime_ns))
        except (OSError, ValueError):  # ValueError: a zero byte in the name
            states.append((-1, -1))
    return np.array(states, dtype=np.int64).reshape(-1, 2)


def find_images(folder: Path) -> tuple[list[str], bool]:
    """Return the sorted paths of all images inside the folder, and whether any of them has a caption file."""
    names, captioned = [], False
    for where, files in _walk(folder):
        stems = {name[:-4] for name in files if name.endswith(".txt")}
        for name in filter(is_image, files):
            names.append((Path(where) / name).relative_to(folder).as_posix())
            captioned |= name.rpartition(".")[0] in stems
    return sorted(names), captioned


def has_images(folder: Path) -> bool:
    """Return whether there is any image in the folder or below; stop at the first."""
    return any(is_image(name) for _, files in _walk(folder) for name in files)


def is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMAGE_KINDS and "." in name and not name.startswith(".")


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, names of its files), without hidden folders and links, whose files may have two names."""
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if os.path.islink(os.path.join(where, name)):
                log.warning("%s is a link to a folder, and is left out: name its target itself", Path(where) / name)
        yield where, files


class TableSource(ImageFiles, Source):
    """Reads the images of a table; keys are its paths. The fingerprint covers the table, not the bytes of images."""

    def __init__(self, table: Path, reading: FindingSettings | None = None) -> None:
        reading, table = reading or FindingSettings(), Path(table)
        columns = {"image-column": reading.image_column, "caption-column": reading.caption_column}
        columns |= {"group-column": reading.group_column} if reading.group_column else {}
        self._captions: dict[str, list[str]] = {}
        self._groups: dict[str, str] = {}
        for number, (image, caption, *group) in enumerate(table_rows(table, columns), start=1):
            key = image.strip() or without_image(number)
            self._captions.setdefault(key, []).append(caption)
            if group and self._groups.setdefault(key, group[0]) != group[0]:
                raise UserError(f"{table}: image {key} belongs to two groups, {self._groups[key]!r} and {group[0]!r}")
        if not self._captions:
            raise UserError(f"{table} has a header but no rows")
        super().__init__(table.parent, list(self._captions))
        self.table = table
        # If all paths are wrong, the table is at fault, not its samples. The first image that exists is enough.
        if not any(os.path.isfile(self.folder / key) for key in self._names):
            raise UserError(
                f"none of the {len(self)} images of {table} is there, the first would be "
                f"{self.folder / self._names[0]}: paths in a table are relative to the table's own folder (or absolute)"
            )
        self.fingerprint = digest("table", content_hash(table), *columns.values())

    def group(self, index: int) -> str:
        """Return the name of a group of images that a validation cut must not divide: by default the image itself."""
        return self._groups.get(self.key(index), self.key(index))

    def captions(self, index: int) -> tuple[str, ...]:
        return clean_captions(self._captions[self.key(index)])


def content_hash(table: Path) -> bytes:
    """Hash all bytes of a table without loading it: Parquet may be more than memory holds."""
    with os.fdopen(open_regular(table), "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def without_image(row: int) -> str:
    """Return the key of a row that names no image; no file has this name."""
    return f"row {row} (no image)"


def table_rows(table: Path, columns: dict[str, str]) -> Iterator[list[str]]:
    """Yield some columns of every row of a table. `columns` maps the flag that names a column to its name."""
    return _parquet_rows(table, columns) if table.suffix.lower() == ".parquet" else _csv_rows(table, columns)


def _csv_rows(table: Path, columns: dict[str, str]) -> Iterator[list[str]]:
    """Yield rows of a text table. Bytes that are no UTF-8 survive as surrogates and damage only their row."""
    text = file_bytes(table, TABLE_BYTES).decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise UserError(f"{table} is empty: its first line must name the columns, e.g. image,caption")
    csv.field_size_limit(1 << 30)
    header: list[str] = []
    for delimiter in "\t" if table.suffix.lower() == ".tsv" else ",;\t":
        try:
            names = [name.strip() for name in next(_reader(text, delimiter), [])]
        except csv.Error as error:
            raise UserError(f"{table} cannot be read as a table: {error}") from None
        if not header or len(names) > len(header):
            header, chosen = names, delimiter
        if set(columns.values()) <= set(names):
            break
    places = _places(header, columns, table)
    rows = _reader(text, chosen)
    if (
        "image-column" in columns
        and '"' in text
        and (line := _unclosed_quote(text, chosen, header, columns["image-column"]))
    ):
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


def _unclosed_quote(text: str, delimiter: str, header: list[str], image_column: str) -> int | None:
    """Return the line of the first row with whole rows inside a cell: lines with a file name in the image column."""
    place, rows, before = header.index(image_column), _reader(text, delimiter), 0
    with contextlib.suppress(csv.Error):  # raised again when the rows are read
        for row in rows:
            for cell in row:
                for line in cell.split("\n")[1:] if "\n" in cell else ():
                    cells = line.split(delimiter)
                    kind = cells[place].strip(' "\r').rpartition(".")[2] if len(cells) >= len(header) else ""
                    if kind.lower() in IMAGE_KINDS:
                        return before + 1
            before = rows.line_num
    return None


def _parquet_rows(table: Path, columns: dict[str, str]) -> Iterator[list[str]]:
    with naming_extras("reading Parquet"):
        import pyarrow.parquet as parquet
    try:
        os.close(open_regular(table))
        file = parquet.ParquetFile(table)
        schema = {field.name: field.type for field in file.schema_arrow}
    except Exception as error:
        raise UserError(f"{table} cannot be read as Parquet: {error}") from None
    _places(list(schema), columns, table)
    for flag, name in columns.items():
        _refuse_unless_text(schema[name], flag, name, table)
    number = 0
    for batch in _batches(file, list(columns.values()), table):
        for row in zip(*batch):
            number += 1
            cells = [value if isinstance(value, list) else [value] for value in row]
            texts = [["" if value is None else str(value) for value in cell or [None]] for cell in cells]
            if "image-column" in columns and not texts[0][0].strip():
                texts[0] = [without_image(number)]  # here: a row with several captions becomes several rows
            yield from map(list, itertools.product(*texts))


def _batches(file: Any, columns: list[str], table: Path) -> Iterator[list[list[Any]]]:
    """Yield the values of some columns, piece by piece of the table."""
    try:
        for batch in file.iter_batches(columns=columns):
            yield [batch.column(name).to_pylist() for name in columns]
    except Exception as error:  # pyarrow raises its own types, and those of each codec
        raise UserError(f"{table} is damaged: {first_line(error)}") from None


def _refuse_unless_text(kind: Any, flag: str, name: str, table: Path) -> None:
    """Refuse bytes and structs, which would become captions such as "{'en': 'a dog'}"."""
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    cell = kind.value_type if is_list and "caption" in flag else kind
    cell = cell.value_type if types.is_dictionary(cell) else cell
    is_text = str(cell) in ("string", "large_string", "string_view", "null")
    if not (is_text or types.is_primitive(cell) or types.is_decimal(cell)):
        expected = "paths of image files" if flag == "image-column" else "text"
        raise UserError(f"{table}: the column {name!r} holds {kind}, and {expected} was expected (--reading.{flag})")


def _places(header: list[str], columns: dict[str, str], table: Path) -> list[int]:
    """Return the positions of the columns; name the nearest column if one is missing."""
    for flag, name in columns.items():
        if name in header:
            continue
        folded = {column.lower(): column for column in header}
        near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
        if not flag.endswith("-column"):  # a file of fixed columns, which no flag names
            raise UserError(
                f"{table} has no column {name!r}; its columns are {', '.join(map(repr, header))}. Rename it."
            )
        hint = f" Did you mean --reading.{flag} {folded[near[0]]!r}?" if near else f" Name it: --reading.{flag} NAME."
        if any(map(is_image, header)):
            hint = f" The first line of a table names its columns: {','.join(columns.values())}."
        elif flag == "caption-column" and len(header) == 1:
            hint += " Photos without captions can be searched by `dinorankclip search starter --images DIR`."
        raise UserError(f"{table} has no column {name!r}; its columns are {', '.join(map(repr, header))}.{hint}")
    return [header.index(name) for name in columns.values()]
