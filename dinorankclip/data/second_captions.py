"""Opens the second captions of training images, which ALIP compares with their own captions.

A second caption is a text of its own, most often made by a captioning model. It is found by the key of its image and
never counts as a caption of the data, so that splits, scores, teacher caches and other methods do not see it.
`--reading.second-captions` names where it is:

    FILE.jsonl                 a line {"key": "…", "caption": "…"} for each image ("captions": […] for several)
    FILE.csv, .tsv, .parquet   the columns key and caption
    beside                     KEY.second.txt beside each image, in the folder, the shard or the stream of the data

`--reading.second-caption-column` names a column of a table of pairs instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from dinorankclip.checked_files import file_bytes, parsed_json
from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import CAPTION_BYTES, Damage
from dinorankclip.data.decode import captions_from_json, captions_from_text
from dinorankclip.data.folders_and_tables import TABLE_KINDS, FolderSource, TableSource, content_hash, table_rows
from dinorankclip.data.remote import RemoteShard
from dinorankclip.data.splits import name_hash, undivided
from dinorankclip.data.streams import is_stream
from dinorankclip.data.tar_shards import SECOND_KIND, ShardSource
from dinorankclip.io import digest
from dinorankclip.types import SecondCaptionProvider, Source, UserError

BESIDE = "beside"
LINES = ".jsonl"
HOW = "docs/data.md (Second captions) has the format and a script that makes them with any captioner"


class CaptionTable:
    """Holds captions by key in memory: 16 bytes and the text for each, in arrays that forked workers share."""

    def __init__(self, captions: Iterable[tuple[str, str]], identity: str) -> None:
        self.identity = identity
        hashes, texts, ends = bytearray(), bytearray(), [0]
        self.first = ""  # a key, for messages
        for key, caption in captions:
            if not (text := caption.strip()):
                continue
            self.first = self.first or key
            hashes += name_hash(key)
            texts += text.encode("utf-8", "surrogateescape")
            ends.append(len(texts))
        unsorted = np.frombuffer(bytes(hashes), np.uint64)
        self._order = np.argsort(unsorted, kind="stable")
        self._hashes, self._ends = unsorted[self._order], np.array(ends, np.int64)
        self._texts = np.frombuffer(bytes(texts), np.uint8)

    def __call__(self, key: str) -> tuple[str, ...]:
        first, last = self._places(key)
        return tuple(self._text(int(place)) for place in self._order[first:last])

    def has(self, key: str) -> bool:
        first, last = self._places(key)
        return bool(last > first)

    def _places(self, key: str) -> tuple[int, int]:
        sought = np.frombuffer(name_hash(key), np.uint64)[0]
        return int(np.searchsorted(self._hashes, sought)), int(np.searchsorted(self._hashes, sought, "right"))

    def _text(self, place: int) -> str:
        try:
            return self._texts[self._ends[place] : self._ends[place + 1]].tobytes().decode()
        except UnicodeDecodeError as error:
            raise Damage("not-utf8", str(error)) from None


class SecondMembers(ShardSource):
    """Reads the members KEY.second.txt of shards. Their index is another than that of pairs, which stays as it is."""

    beside = frozenset({SECOND_KIND})

    def __init__(self, shards: Sequence[Path | RemoteShard]) -> None:
        super().__init__(shards)
        self.identity, self.first = digest("second", self.fingerprint), ""
        self._rows = {self.key(index): index for index in np.flatnonzero(self._caption_at >= 0).tolist()}

    def _check_texts(self) -> None:
        if not (self._caption_at >= 0).any():
            raise UserError(
                f"no second captions in {self.shards[0]}: --reading.second-captions {BESIDE} reads KEY.{SECOND_KIND} "
                f"beside KEY.jpg. To leave the shards as they are, name a file of keys and captions instead. {HOW}."
            )

    def __call__(self, key: str) -> tuple[str, ...]:
        return self.captions(self._rows[key]) if key in self._rows else ()

    def has(self, key: str) -> bool:
        return key in self._rows


class CarriedCaptions:
    """Stands for second captions that arrive with the samples of a stream; samples without them have none."""

    identity, first = "carried", ""

    def __call__(self, key: str) -> tuple[str, ...]:
        return ()


def open_second_captions(train: Source, reading: ReadingSettings) -> SecondCaptionProvider | None:
    """Open the second captions of a training part; None if the settings name none. Refuses captions of other data."""
    source, where = undivided(train), reading.second_captions
    if reading.second_caption_column is not None:
        return _covering(_of_column(source, reading, reading.second_caption_column), train, reading)
    if where is None:
        return None
    if where != BESIDE:
        captions = _of_file(Path(where))
        return captions if is_stream(train) else _covering(captions, train, reading)
    if is_stream(train):
        return CarriedCaptions()
    if isinstance(source, ShardSource):
        return _covering(SecondMembers(source.shards), train, reading)
    if isinstance(source, FolderSource):
        return _covering(_of_folder(source), train, reading)
    raise UserError(
        f"--reading.second-captions {BESIDE} reads files beside images in a folder or in shards, and this data is "
        "neither: name a column (--reading.second-caption-column) or a file of keys and captions"
    )


def _of_column(source: Source, reading: ReadingSettings, column: str) -> CaptionTable:
    if not isinstance(source, TableSource):
        raise UserError(
            f"--reading.second-caption-column {column}: only tables (.csv, .tsv, .parquet) have columns; give a file "
            "of keys and captions: --reading.second-captions FILE"
        )
    columns = {"image-column": reading.image_column, "second-caption-column": column}
    rows = ((image.strip(), caption) for image, caption in table_rows(source.table, columns))
    # An image stands in a row for each of its captions, most often with the same second caption.
    return CaptionTable(dict.fromkeys(rows), digest("second", content_hash(source.table), column))


def _of_folder(source: FolderSource) -> CaptionTable:
    contents = {}
    for index in range(len(source)):
        path = (source.folder / source.key(index)).with_suffix(f".{SECOND_KIND}")
        if path.is_file():
            contents[source.key(index)] = file_bytes(path, CAPTION_BYTES)

    def lines() -> Iterator[tuple[str, str]]:
        for key, data in contents.items():
            try:
                yield from ((key, caption) for caption in captions_from_text(data))
            except Damage as reason:
                raise UserError(f"the second caption of {key} cannot be used: {reason}") from None

    parts = (part for key, data in contents.items() for part in (key, data))
    return CaptionTable(lines(), digest("second", *parts))


def _of_file(path: Path) -> CaptionTable:
    """Read a file of keys and captions."""
    kind = path.suffix.lower()
    if not path.is_file() or kind not in (LINES, *TABLE_KINDS):
        problem = f"is not one of {LINES}, {', '.join(TABLE_KINDS)}" if path.is_file() else "does not exist"
        raise UserError(f"--reading.second-captions {path} {problem}. {HOW}.")
    columns = {"key": "key", "caption": "caption"}
    rows = _json_lines(path) if kind == LINES else ((key.strip(), text) for key, text in table_rows(path, columns))
    return CaptionTable(rows, digest("second", content_hash(path)))


def _json_lines(path: Path) -> Iterator[tuple[str, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(CAPTION_BYTES), b""), start=1):
            if not line.strip():
                continue
            try:
                record = parsed_json(line)
                key = str(record["key"])
                key.encode("utf-8", "surrogateescape")  # raises for half of an emoji, which no name can hold
                yield from ((key, caption) for caption in captions_from_json(line))
            except (ValueError, TypeError, KeyError, Damage) as error:
                if isinstance(error, Damage) and error.cause == "empty-caption":
                    continue  # the captioner had nothing to say; the image counts as one without
                raise UserError(
                    f'{path}, line {number}: expected {{"key": "…", "caption": "…"}} ({type(error).__name__}: {error})'
                ) from None


def _covering(
    captions: CaptionTable | SecondMembers, train: Source, reading: ReadingSettings
) -> CaptionTable | SecondMembers:
    """Return the captions if they cover the training part, but for a share of `reading.max_damaged`."""
    missing = [key for key in map(train.key, range(len(train))) if not captions.has(key)]
    if len(missing) > reading.max_damaged * len(train):
        known = f"; a key there is {captions.first!r}" if captions.first else ""
        raise UserError(
            f"{len(missing):,} of {len(train):,} training images have no second caption, such as {missing[0]!r}"
            f"{known}. Images are found by their keys. {HOW}."
        )
    return captions
