"""Finds a server of the same photos and the same model, and searches through it: no model and no torch is loaded.

`dinorankclip serve` leaves a note beside the photo indexes (index.py):

    photos/.dinorankclip/serving-STAMP.json     host, port, token, and a digest of the photos as they were embedded

STAMP names the model's files (`photo_search.stamp`), so a model that was trained on has another one. The note is for
its owner's eyes alone, and is removed when the server ends. A note that a killed server left is removed when nothing
answers. If photos have changed since the server began, `search` looks for itself.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dinorankclip.checked_files import UnfitFile, read_object
from dinorankclip.data.damage import DamageCount
from dinorankclip.data.folders_and_tables import read_file
from dinorankclip.io import digest, whole_file
from dinorankclip.json_shape import COUNT, TEXT, entries
from dinorankclip.search.background import Standing
from dinorankclip.search.index import Photos, find_photos, index_folder
from dinorankclip.search.photo_search import Answer, Hit, stamp
from dinorankclip.types import UserError

MOST_ITEMS, LONGEST_QUERY, LARGEST_PHOTO = 100, 2000, 16_000_000  # what a server answers at most (serve/state.py)
PATIENCE = 60.0  # seconds for an answer
PAGE = 200
_NOTE = entries({"host": TEXT, "port": COUNT, "token": TEXT, "photos": TEXT})


@dataclass(frozen=True)
class Note:
    host: str
    port: int
    token: str
    photos: str


def note_path(photos: Path, model_stamp: str) -> Path:
    return index_folder(photos) / f"serving-{model_stamp}.json"


def photos_digest(photos: Photos) -> str:
    """Name photos by their names, sizes and times."""
    return digest(*photos.names, photos.stamps.tobytes())


def leave_note(path: Path, note: Note) -> None:
    """Write the note so that other users of the machine cannot read the token."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, mode=0o600) as aside, open(aside, "w", encoding="utf-8") as file:
        json.dump(asdict(note), file)


def remove_note(path: Path, note: Note) -> None:
    """Remove the note, unless another server has replaced it."""
    if _read(path) == note:
        path.unlink(missing_ok=True)


def _read(path: Path) -> Note | None:
    with contextlib.suppress(OSError, UnfitFile, TypeError):
        return Note(**read_object(path, _NOTE))
    return None


def find_server(
    model: str, photos: Path, queries: Sequence[str], top: int, image_query: Path | None = None
) -> ServedSearch | None:
    """Return a search through a running server; None if there is none that can answer these queries."""
    if top > MOST_ITEMS or any(len(query) > LONGEST_QUERY for query in queries):
        return None
    with contextlib.suppress(OSError):
        if image_query is not None and image_query.stat().st_size > LARGEST_PHOTO:
            return None
    model_stamp = stamp(model)
    if model_stamp is None or not photos.is_dir():
        return None
    path = note_path(photos, model_stamp)
    note = _read(path)
    if note is None:
        return None
    present = find_photos(photos)
    if photos_digest(present) != note.photos:
        return None
    server = ServedSearch(note, present)
    try:
        return server if server.is_ready() else None
    except ConnectionRefusedError:  # a killed server left its note
        remove_note(path, note)
        return None
    except (OSError, http.client.HTTPException, UserError):
        return None


class ServedSearch:
    """Searches photos by a running server, with the methods of `PhotoSearch`."""

    def __init__(self, note: Note, photos: Photos) -> None:
        self._note, self._photos = note, photos

    @property
    def link(self) -> str:
        return f"http://{self._note.host}:{self._note.port}"

    def is_ready(self) -> bool:
        return bool(self._ask("GET", "/api/health")["ready"])

    @property
    def searched(self) -> int:
        return len(self._photos.names) - self.damaged.replaced

    @functools.cached_property
    def damaged(self) -> DamageCount:
        count, offset = DamageCount(max_damaged=1.0), 0
        while True:
            page = self._ask("GET", f"/api/data/damaged?offset={offset}&limit={PAGE}")
            count.add(0, [(self._photos.names[item["index"]], item["cause"]) for item in page["items"]])
            offset += PAGE
            if offset >= page["total"]:
                count.add(len(self._photos.names) - page["total"])
                return count

    def by_words(self, words: str, top: int) -> Answer:
        words = words.strip().encode("utf-8", "replace").decode("utf-8")
        if not words:
            raise UserError("an empty query: say in words what to look for")
        found = self._ask("GET", "/api/search?" + urlencode({"q": words, "k": top}))
        standing = Standing(**found["standing"]) if found["standing"] else None
        return Answer(words, self._hits(found), standing)

    def by_photo(self, path: Path, top: int) -> Answer:
        data = read_file(path, missing="missing-image") if path.is_file() else None
        if data is None:
            raise UserError(f"{path} cannot be searched with: there is no such file")
        return Answer(path, self._hits(self._ask("POST", "/api/search/photo?" + urlencode({"k": top}), data)))

    def hub(self) -> tuple[str, float]:
        """Return the photo that is first for most neutral queries, and the share of queries for which it is."""
        found = self._ask("GET", "/api/hub")
        return found["key"] or "", found["share"] or 0.0

    def _hits(self, found: dict[str, Any]) -> list[Hit]:
        folder, names = self._photos.folder, self._photos.names
        return [Hit(folder / names[item["index"]], item["score"]) for item in found["items"]]

    def _ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._note.host, self._note.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Authorization": f"Bearer {self._note.token}"})
            answer = connection.getresponse()
            try:
                content = json.loads(answer.read())
            except ValueError:
                raise UserError(f"{self.link} is no server of photos: stop what answers there") from None
        if answer.status != http.client.OK:
            raise UserError(content.get("message", f"the server answers with status {answer.status}"))
        return content
