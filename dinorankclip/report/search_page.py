"""What a search found, as a page to look at: one file, no network, light or dark as the reader's system is.

Queries and file names come from outside and are escaped. Pictures are small copies inside the page; a click on one
opens the photo itself, as long as it lies where it was.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageOps

from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import decode
from dinorankclip.data.folders import read_file
from dinorankclip.search.photo_search import Found, Hit

_HEIGHT, _WIDEST = 240, 480  # pixels of a small copy; the page shows it smaller, so it is sharp on dense screens
_QUALITY = 82

_STYLE = """
:root { color-scheme: light dark;
        --back: #fafaf8; --card: #fff; --ink: #1d1d1f; --dim: #6e6e73; --line: #e3e3e0; --mark: #b4531f; }
@media (prefers-color-scheme: dark) {
  :root { --back: #161617; --card: #202022; --ink: #f2f2f0; --dim: #98989d; --line: #333336; --mark: #f0a070; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1500px; padding: 28px 32px 48px; background: var(--back); color: var(--ink);
       font: 15px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif; }
header { color: var(--dim); font-size: 13px; overflow-wrap: anywhere; }
section { margin-top: 30px; }
h2 { display: flex; align-items: center; gap: 14px; margin: 0 0 14px; font-size: 22px; font-weight: 600;
     overflow-wrap: anywhere; }
h2 img { height: 72px; border-radius: 6px; }
ol { display: flex; flex-wrap: wrap; gap: 14px; margin: 0; padding: 0; list-style: none; }
li { flex: 1 1 auto; display: flex; flex-direction: column; max-width: 320px; min-width: 130px; overflow: hidden;
     background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
li a { display: block; }
li img, li .gone { display: block; width: 100%; height: 170px; object-fit: cover; }
.gone { display: flex; align-items: center; justify-content: center; color: var(--dim); font-size: 13px; }
.about { padding: 7px 10px 8px; }
.about b { color: var(--mark); font-variant-numeric: tabular-nums; }
.about span { float: right; color: var(--dim); font-variant-numeric: tabular-nums; }
.name { clear: both; color: var(--dim); font-size: 12px; white-space: nowrap; overflow: hidden;
        text-overflow: ellipsis; width: 0; min-width: 100%; }
"""


def write_page(path: Path, answers: Sequence[Found], photos: Path, model: str, searched: int) -> None:
    """Write the page. `searched` says among how many photos of the folder `photos` the hits were found."""
    sections = "\n".join(_section(found, photos) for found in answers)
    title = _safe("; ".join(str(found.query) for found in answers))
    head = f"{searched:,} photos in {photos}, searched by {model}"
    page = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
<header>{_safe(head)}</header>
{sections}
</html>
"""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _section(found: Found, photos: Path) -> str:
    if isinstance(found.query, Path):
        heading = f"{_picture(found.query, '')} like {_safe(found.query.name)}"
    else:
        heading = f"“{_safe(found.query)}”"
    items = "\n".join(_item(rank, hit, photos) for rank, hit in enumerate(found.hits, start=1))
    return f"<section>\n<h2>{heading}</h2>\n<ol>\n{items}\n</ol>\n</section>"


def _item(rank: int, hit: Hit, photos: Path) -> str:
    name = _safe(hit.path.relative_to(photos).as_posix())
    link = html.escape(hit.path.resolve().as_uri())
    return (
        f'<li><a href="{link}">{_picture(hit.path, name)}</a>'
        f'<div class="about"><b>{rank}</b><span>{hit.score:.3f}</span>'
        f'<div class="name" title="{name}">{name}</div></div></li>'
    )


def _picture(path: Path, escaped_name: str) -> str:
    """A small copy as an <img>; words in its place if the file is gone or was damaged since it was indexed."""
    try:
        pixels = decode(read_file(path, missing="missing-image"), least=(_HEIGHT, _HEIGHT))
    except Damage as damage:
        return f'<div class="gone">{_safe(damage.cause)}</div>'
    image = ImageOps.contain(Image.fromarray(pixels), (_WIDEST, _HEIGHT))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=_QUALITY)
    source = base64.b64encode(data.getvalue()).decode("ascii")
    return f'<img src="data:image/jpeg;base64,{source}" alt="{escaped_name}">'


def _safe(text: str) -> str:
    """Escaped for HTML. Bytes of file names that are no UTF-8 become replacement characters."""
    return html.escape(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
