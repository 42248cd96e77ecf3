"""Turns the stored results of example queries, and the pictures that `score` drew, into parts of a run's report.

examples.json names images by their position in the data, so the data must be where it was. Data that is gone or has
changed, and pictures that cannot be read, become words on the page.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

from dinorankclip.checked_files import file_bytes
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import decode
from dinorankclip.data.open_data import SCENES, open_stored
from dinorankclip.data.scenes.make import MANIFEST
from dinorankclip.report.html import Page, Row, Tile, data_uri
from dinorankclip.run_files import PICTURES, refuse_command
from dinorankclip.train.cost import stored_reading
from dinorankclip.types import Source, UserError

HIGH, WIDE = 160, 280  # pixels of a small copy, at most; the page shows it at half this size or larger
QUALITY = 80
CHANGED = 4  # queries that are shown before and after
OUTCOMES = 4  # hits, and misses, by text
IMAGE_OUTCOMES = 3  # hits, and misses, by image
MOST_PICTURES, PICTURE_BYTES = 24, 8 << 20  # pictures of `score` on the page, and the largest that is read
LARGE = 1 << 18  # bytes from which a picture of photos is stored as JPEG
_KINDS = {
    "retrieval": "Captions with the images they found, images with the captions they found; green is right",
    "plane": "Images and captions in the plane of their two main directions; crosses are the means",
    "hardest": "The classes that are missed most often, and what they are taken for",
}


def add_examples(page: Page, settings: dict[str, Any], examples: dict[str, Any]) -> None:
    """Add what the same queries found at the first and at the last validation, then hits and misses of the last."""
    source = _held_out(settings, examples)
    if isinstance(source, str):
        _add_places(page, examples, source)
        return
    tile = _Pictures(source).tile
    first, last = examples["first"], examples["last"]
    queries = list(zip(first["by_text"], last["by_text"]))
    shown_both = 0
    if first["step"] < last["step"]:
        page.section("Before and after", 3)
        page.text(_moved(examples))
        shown_both = min(CHANGED, len(queries))
        for before, after in queries[:shown_both]:
            moments = ((f"step {first['step']:,}", before), (f"step {last['step']:,}", after))
            rows = [Row(_place(when, result, examples["images"]), _tiles(result, tile)) for when, result in moments]
            if not any(right for result in (before, after) for _, right in result["found"]):
                rows.append(Row("the photo that was meant", [tile(after["image"], None)]))
            page.query(f"“{after['caption']}”", rows)
    page.section("Hits and misses", 3)
    page.text(
        "Other captions of the same draw, after the last step: first those that found a right photo at once, then "
        "those that did not. Right photos have a green frame and a tick; a dashed frame is the photo that was meant.",
        "note",
    )
    rest = [result for _, result in queries[shown_both:]]
    for result in _by_outcome(rest, OUTCOMES):
        tiles = _tiles(result, tile)
        if result["place"] > 0 and not any(tile.right for tile in tiles):
            tiles = [*tiles, tile(result["image"], None)]
        page.query(f"“{result['caption']}”", [Row(_place("", result, examples["images"]), tiles)])
    for result in _by_outcome(last["by_image"], IMAGE_OUTCOMES):
        place = _place("", result, examples["captions"], "caption")
        page.query("", [Row(place, [tile(result["image"], None)], [(text, mark) for text, mark in result["found"]])])


def _add_places(page: Page, examples: dict[str, Any], why: str) -> None:
    """Add the places of all drawn captions in words, where their photos cannot be read."""
    first, last = examples["first"], examples["last"]
    page.section("Before and after", 3)
    page.text(f"The photos cannot be shown: {why}.", "note")
    page.text(_moved(examples).partition(" The first ")[0])
    rows = [
        (after["caption"], str(before["place"] + 1), str(after["place"] + 1))
        for before, after in zip(first["by_text"], last["by_text"])
    ]
    page.table(("caption", f"place at step {first['step']:,}", f"place at step {last['step']:,}"), rows)


def _held_out(settings: dict[str, Any], examples: dict[str, Any]) -> Source | str:
    """Open the validation part of the run; return the reason in words if this is impossible."""
    data = str(settings["data"])
    try:
        if data == "scenes" and not (SCENES / MANIFEST).is_file():
            return f"the built-in scenes are not in {SCENES}"
        refuse_command(settings["data"], Path("the run"))
        source = open_stored(data, stored_reading(settings["reading"]), examples["part"])
    except (UserError, OSError) as error:
        return str(error).splitlines()[0].partition(". ")[0]
    return source if source.fingerprint == examples["fingerprint"] else f"{data} has changed since the run"


@dataclass(frozen=True)
class _Pictures:
    source: Source

    def tile(self, index: int, right: bool | None) -> Tile:
        """Return a small copy of an image, or the cause for which it cannot be shown."""
        try:
            return Tile(small_copy(self.source.image(index)), self.source.key(index), right)
        except Damage as damage:
            return Tile("", damage.cause, right)
        except (IndexError, OSError) as error:
            return Tile("", type(error).__name__, right)


def small_copy(data: bytes) -> str:
    """Return the source of an <img> that shows a stored image; raises `Damage` for bytes that are no image."""
    image = Image.fromarray(decode(data, least=(HIGH, HIGH)))
    image.thumbnail((WIDE, HIGH))
    stored = io.BytesIO()
    image.save(stored, "JPEG", quality=QUALITY)
    return data_uri("jpeg", stored.getvalue())


def _tiles(result: dict[str, Any], tile: Callable[[int, bool | None], Tile]) -> list[Tile]:
    return [tile(index, right) for index, right in result["found"]]


def _place(when: str, result: dict[str, Any], count: int, item: str = "photo") -> str:
    place = f"the first right {item} is at place {result['place'] + 1:,} of {count:,}"
    return f"{when}: {place}" if when else place


def _by_outcome(results: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    hits = [result for result in results if result["place"] == 0]
    return hits[:most] + [result for result in results if result["place"] > 0][:most]


def _moved(examples: dict[str, Any]) -> str:
    """Return a paragraph about all drawn captions, since a few that are shown prove nothing."""
    first, last = examples["first"], examples["last"]
    before, after = ([result["place"] for result in moment["by_text"]] for moment in (first, last))
    up, down = (sum(sign * (a - b) > 0 for a, b in zip(before, after)) for sign in (1, -1))
    start = "the start" if first["step"] == 0 else f"the first validation (step {first['step']:,})"
    return (
        f"{len(before)} captions of the validation part were drawn by a fixed seed, not by their results. From "
        f"{start} to the end (step {last['step']:,}) the first right photo moved up for {up}, down for {down} and "
        f"stayed for {len(before) - up - down}; its median place went from {median(before) + 1:,.0f} to "
        f"{median(after) + 1:,.0f} of {examples['images']:,}. The first {min(CHANGED, len(before))} of them:"
    )


def add_score_pictures(page: Page, run: Path, sets: dict[str, Any], shown_above: set[str]) -> None:
    """Add the pictures of the run's folder; `shown_above` names sets whose retrieval examples the page has already."""
    there = sorted((run / PICTURES).glob("*.png")) if (run / PICTURES).is_dir() else []
    if not there:
        return
    page.section("Pictures of the scored sets", 3)
    for path in there[:MOST_PICTURES]:
        name, _, kind = path.stem.rpartition("-")
        if kind == "retrieval" and name in shown_above:
            page.text(f"{path.name} is left out: hits and misses of the same photos stand above.", "note")
            continue
        try:
            source = _picture(file_bytes(path, PICTURE_BYTES))
        except (Damage, UserError, OSError) as error:
            page.text(f"{PICTURES}/{path.name} cannot be shown: {str(error).splitlines()[0]}.", "warn")
            continue
        stale = "" if not sets or any(name == known.rsplit(" ", 1)[0] or name == known for known in sets) else (
            " This set is not among the scores above: the picture is of earlier weights."
        )  # fmt: skip
        about = _KINDS.get(kind, "A picture of score") + "." + stale
        page.picture(source, name or path.stem, about, folded=kind == "hardest")
    if len(there) > MOST_PICTURES:
        page.text(f"{len(there) - MOST_PICTURES} more pictures lie in {PICTURES}/.", "note")


def _picture(data: bytes) -> str:
    """Return the source of an <img> for a picture of `score`; sheets of photos are a fifth as large as JPEG."""
    pixels = decode(data)  # raises `Damage` for bytes that are no picture
    if len(data) < LARGE:
        return data_uri("png", data)
    stored = io.BytesIO()
    Image.fromarray(pixels).save(stored, "JPEG", quality=88)
    return data_uri("jpeg", stored.getvalue())
