"""Writes pages of photos: the answers of a search, and the contact sheet of `data show`.

Queries, captions and file names come from outside; the templates escape them. The pages contain small copies of the
photos. On the search page a click on a copy opens the photo itself, as long as the file is where it was.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageOps

from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import decode
from dinorankclip.data.folders import read_file
from dinorankclip.report.html import data_uri, render, write_html

if TYPE_CHECKING:
    from dinorankclip.data.inspect import ShownPair
    from dinorankclip.search.photo_search import Answer, Hit

_HEIGHT, _WIDEST = 240, 480  # pixels of a small copy; the page shows it smaller, so it is sharp on dense screens
_QUALITY = 82


def write_search_page(path: Path, answers: Sequence[Answer], photos: Path, model: str, searched: int) -> None:
    """Write the answers to queries; `searched` is the number of photos in the folder `photos` that were searched."""
    text = render(
        "search.html",
        title="; ".join(str(answer.query) for answer in answers),
        header=f"{searched:,} photos in {photos}, searched by {model}",
        answers=[_answer(answer, photos) for answer in answers],
    )
    write_html(path, text)


def write_contact_sheet(path: Path, pairs: Sequence[ShownPair], title: str) -> None:
    """Write pairs with their keys and all of their captions."""
    shown = [{"key": pair.key, "captions": pair.captions, "source": _encoded(pair.image, "PNG")} for pair in pairs]
    write_html(path, render("contact_sheet.html", title=title, pairs=shown))


def _answer(answer: Answer, photos: Path) -> dict[str, Any]:
    hits = [_hit(hit, photos) for hit in answer.hits]
    if isinstance(answer.query, Path):
        return {"query": answer.query.name, "photo": _small_copy(answer.query), "hits": hits}
    return {"query": answer.query, "photo": None, "hits": hits}


def _hit(hit: Hit, photos: Path) -> dict[str, Any]:
    name, link = hit.path.relative_to(photos).as_posix(), hit.path.resolve().as_uri()
    return {"name": name, "link": link, "score": hit.score, "photo": _small_copy(hit.path)}


def _small_copy(path: Path) -> dict[str, str]:
    """Return the source of an <img>, or the cause if the file is gone or was damaged since it was indexed."""
    try:
        pixels = decode(read_file(path, missing="missing-image"), least=(_HEIGHT, _HEIGHT))
    except Damage as damage:
        return {"source": "", "cause": damage.cause}
    image = ImageOps.contain(Image.fromarray(pixels), (_WIDEST, _HEIGHT))
    return {"source": _encoded(image, "JPEG", quality=_QUALITY)}


def _encoded(image: Image.Image, kind: str, **options: Any) -> str:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data_uri(kind.lower(), data.getvalue())
