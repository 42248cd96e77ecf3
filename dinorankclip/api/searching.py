"""Finds photos of a folder by words or by another photo: `dinorankclip.search` in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dinorankclip.api.checks import load_quietly
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.search.embedded import EmbeddedSearch
    from dinorankclip.search.photo_search import Answer


def search(
    model: str | Path,
    images: str | Path,
    queries: str | Sequence[str] = (),
    *,
    like: str | Path | None = None,
    top: int = 20,
    device: str = "auto",
) -> list[Answer]:
    """Return an answer for each query in words, and one for the photo `like`, if it is given.

        (found,) = dinorankclip.search("runs/mine", "photos", "a red mug")
        [(hit.path, hit.score) for hit in found.hits]

    `answer.standing` tells whether any photo stands out for the query. The index of the photos is stored as by
    `dinorankclip search`, and later searches embed only new and changed photos. `images` may also be a folder that
    `embed` wrote.
    """
    from dinorankclip.search.index import is_embedded
    from dinorankclip.search.photo_search import PhotoSearch

    words = [queries] if isinstance(queries, str) else list(queries)
    if not words and like is None:
        raise UserError("nothing to look for: give queries in words, or a photo (like=)")
    if top < 1:
        raise UserError(f"top {top}: at least 1")
    search_in: type[PhotoSearch] | type[EmbeddedSearch] = PhotoSearch
    if is_embedded(Path(images)):
        from dinorankclip.search import embedded

        search_in = embedded.EmbeddedSearch
    finder = search_in(str(model), Path(images), lambda: load_quietly(str(model), device), lambda note: None)
    answers = [finder.by_words(query, top) for query in words]
    return answers + ([finder.by_photo(Path(like), top)] if like is not None else [])
