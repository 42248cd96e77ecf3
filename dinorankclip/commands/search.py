"""`dinorankclip search`: find photos of a folder by words or by another photo."""

from __future__ import annotations

import inspect
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.search.photo_search import Found, PhotoSearch

EXAMPLES = """\
Examples:
  dinorankclip search runs/first --images photos "a red mug" "two dogs in the snow"
  dinorankclip search runs/first --images photos --image-query mug.jpg --html found.html"""


def search(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    queries: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[WORDS …]")] = (),
    *,
    images: Path,
    image_query: Path | None = None,
    top: int = 20,
    html: Path | None = None,
    interactive: bool = False,
    device: str = "auto",
) -> None:
    """Find photos by words or by another photo.

    The first search embeds the photos and keeps an index in IMAGES/.dinorankclip (or, if that cannot be written, in
    built/photo-index); later ones only look at what has changed.

    Args:
        model: A run, a checkpoint, an exported folder, or open_clip:NAME:FILE.
        queries: What to look for, in words; several are answered one after the other.
        images: The folder of photos, with all folders below it.
        image_query: A photo: find those like it.
        top: How many photos to show for each query.
        html: Also write a page with the photos found; of --interactive ones, too, when it ends.
        interactive: Read more queries from the standard input, one a line.
        device: Where the model runs.
    """
    from dinorankclip.search.photo_search import PhotoSearch

    if not queries and image_query is None and not interactive:
        raise UserError("what to look for? Give words, --image-query FILE, or --interactive")
    if top < 1:
        raise UserError("--top must be at least 1")
    finder = PhotoSearch(model, images, lambda: _loaded(model, device), _note)
    if finder.damaged.replaced:
        _note(f"damaged photos, which are left out:\n{finder.damaged.summary()}")
    answers = [finder.by_words(query, top) for query in queries]
    answers += [finder.by_photo(image_query, top)] if image_query is not None else []
    for found in answers:
        _print(found)
    try:
        if interactive:
            _converse(finder, top, answers)
    finally:  # Ctrl-C is a way to end it, too
        if html is not None and answers:
            _write_page(html, answers, finder, images, model)


def _loaded(model: str, device: str) -> Any:
    """Imports torch and open_clip, which takes seconds: hence the note."""
    _note(f"loading {model} …")
    from dinorankclip.commands.shared import load_quietly

    loaded = load_quietly(model, device)
    _note(loaded.reason)
    return loaded


def _converse(finder: PhotoSearch, top: int, answers: list[Found]) -> None:
    """Adds to the answers, query by query."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # lines of a file may be in any encoding
    asks = sys.stdin.isatty()
    if asks:
        _note("one query a line; an empty line or Ctrl-D ends")
    while True:
        if asks:
            print("search> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line.strip():
            return
        answers.append(finder.by_words(line, top))
        _print(answers[-1])


def _print(found: Found) -> None:
    title = f"like {_shown(found.query)}" if isinstance(found.query, Path) else f'"{_shown(found.query)}"'
    lines = [title, *(f"{rank:4d}  {hit.score:6.3f}  {_shown(hit.path)}" for rank, hit in enumerate(found.hits, 1))]
    print("\n".join(lines), flush=True)


def _shown(text: str | Path) -> str:
    """Fit for a terminal: no control characters, no bytes that are no text."""
    text = str(text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _write_page(html: Path, answers: list[Found], finder: PhotoSearch, images: Path, model: str) -> None:
    from dinorankclip.report.search_page import write_page

    searched = len(finder.index.names) - finder.damaged.replaced
    write_page(html, answers, images, model, searched)
    print(f"page: {html}")


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: list[str]) -> None:
    head = (inspect.getdoc(search) or "").split("Args:")[0].strip()
    tyro.cli(search, prog="dinorankclip search", args=argv, description=f"{head}\n\n{EXAMPLES}")
