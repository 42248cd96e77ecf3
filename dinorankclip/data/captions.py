"""Caption files → captions. One rule for every source: one caption a line, in UTF-8."""

from __future__ import annotations

import json

from dinorankclip.data.damage import Damage


def from_text(data: bytes) -> tuple[str, ...]:
    """The non-blank lines of a .txt file."""
    try:
        text = data.decode("utf-8-sig")  # Windows editors put a byte-order mark first
    except UnicodeDecodeError as error:
        raise Damage("not-utf8", str(error)) from None
    # Not `splitlines`: it also breaks at form feeds and the like, which occur inside web captions.
    return cleaned(text.split("\n"))


def from_json(data: bytes) -> tuple[str, ...]:
    """`caption` (a string) or `captions` (a list) of a .json file, as img2dataset and others write it."""
    try:
        record = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Damage("not-utf8", str(error)) from None
    except ValueError as error:
        raise Damage("bad-json", str(error)) from None
    found = record.get("captions", record.get("caption")) if isinstance(record, dict) else None
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(caption, str) for caption in found):
        raise Damage("bad-json", "no 'caption' in it")
    return cleaned(found)


def cleaned(captions: list[str]) -> tuple[str, ...]:
    """Captions without outer white space and without blank ones; `Damage` if none is left, or one cannot be written."""
    kept = tuple(stripped for caption in captions if (stripped := caption.strip().strip("\0")))
    if not kept:
        raise Damage("empty-caption")
    for caption in kept:
        try:
            caption.encode("utf-8")
        except UnicodeEncodeError:  # half of an emoji in JSON; in a table, bytes that were no UTF-8
            raise Damage("not-utf8", repr(caption[:40])) from None
    return kept
