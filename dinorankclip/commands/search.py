"""`dinorankclip search`: find photos of a folder by words or by another photo."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dinorankclip.commands.shared import check_at_least, load_quietly
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.models.loaded import LoadedModel
    from dinorankclip.search.embedded import EmbeddedSearch
    from dinorankclip.search.photo_search import Answer, PhotoSearch
    from dinorankclip.search.served import ServedSearch

    Finder = PhotoSearch | ServedSearch | EmbeddedSearch


def search(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    queries: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[WORDS …]")] = (),
    *,
    images: Path,
    image_query: Path | None = None,
    top: int = 20,
    html: Path | None = None,
    interactive: bool = False,
    anyway: bool = False,
    index: Literal["auto", "exact", "graph", "ivf"] = "auto",
    device: str = "auto",
) -> None:
    """Find photos by words or by another photo.

    Examples:
      dinorankclip search runs/first --images photos "a red mug" "two dogs in the snow"
      dinorankclip search runs/first --images photos --image-query mug.jpg --html found.html
      dinorankclip search runs/first --images embedded/photos "a red mug"

    The first search embeds the photos and keeps an index in IMAGES/.dinorankclip (or, if that cannot be written, in
    built/photo-index). Later searches embed only new and changed photos. While `dinorankclip serve` runs on the same
    photos with the same model, it answers, and nothing is loaded here.

    IMAGES may be a folder that `dinorankclip embed` wrote with this model, for collections of any size. Its first
    search makes an index that fits the number of images, and says how many of the nearest it finds.

    A query for which no photo stands out gets one line instead of photos: its best photos fit it no better than they
    fit unrelated queries, a hundred of which are built in. The step of the checkpoint is printed first, with what the
    model can do, if its run measured that.

    Args:
        model: A run, a checkpoint, an exported folder, open_clip:NAME:FILE, transformers:FOLDER, or starter.
        queries: Descriptions of photos; several are answered one after the other.
        images: The folder of photos, with all folders below it; or a folder of embeddings.
        image_query: Find photos like this photo.
        top: Photos to show for each query.
        html: Also write a page with the photos found; with --interactive when the last query is answered.
        interactive: Read more queries from the standard input, one per line.
        anyway: List the nearest photos also where none stands out.
        index: For embeddings: exact (up to a million images), graph (needs usearch), ivf (the least memory), or auto.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
    """
    if not queries and image_query is None and not interactive:
        raise UserError("nothing to look for: give words, --image-query FILE, or --interactive")
    check_at_least(1, top=top)
    finder = _finder(model, images, queries, top, image_query, device, index)
    if finder.damaged.replaced:
        _note(f"damaged photos are left out:\n{finder.damaged.summary()}")
    _describe(model)
    answers = [finder.by_words(query, top) for query in queries]
    answers += [finder.by_photo(image_query, top)] if image_query is not None else []
    if any(answer.standing for answer in answers):
        _warn_of_hubs(finder)
    for answer in answers:
        _print(answer, anyway)
    try:
        if interactive:
            _converse(finder, top, answers, anyway)
    finally:  # also after Ctrl-C, which is a way to end a conversation
        if html is not None and answers:
            from dinorankclip.report.html import write_search_page

            photos = getattr(finder, "photos", images)
            write_search_page(html, answers, photos, model, finder.searched)
            print(f"page: {html}")


def _finder(
    model: str, images: Path, queries: tuple[str, ...], top: int, image_query: Path | None, device: str, index: str
) -> Finder:
    """Return a search through a server that runs on these photos, else a search of our own."""
    from dinorankclip.search.index import is_embedded
    from dinorankclip.search.large_index import KINDS
    from dinorankclip.search.photo_search import PhotoSearch
    from dinorankclip.search.served import find_server

    kind = next((kind for kind in KINDS if kind == index), None)
    if is_embedded(images):
        from dinorankclip.search.embedded import EmbeddedSearch

        return EmbeddedSearch(model, images, lambda: _loaded(model, device), _note, kind)
    if kind is not None:
        raise UserError(f"--index {index} is for a folder of embeddings (dinorankclip embed), and {images} is none")

    server = find_server(model, images, queries, top, image_query) if device == "auto" else None
    if server is not None:
        _note(f"answered by the server at {server.link}")
        return server
    return PhotoSearch(model, images, lambda: _loaded(model, device), _note)


def _loaded(model: str, device: str) -> LoadedModel:
    """Load the model and say so first: importing torch and open_clip takes seconds."""
    _note(f"loading {model} …")
    loaded = load_quietly(model, device)
    _note(loaded.reason)
    return loaded


def _describe(model: str) -> None:
    """Print the checkpoint behind the model's name, and how good it was on held-out pairs."""
    from dinorankclip.search.model_notes import checkpoint_note, held_out_share

    measured = held_out_share(model)
    known = [note for note in (checkpoint_note(model), measured.words() if measured else "") if note]
    if known:
        _note("; ".join(known))
    if measured is not None and measured.at_chance:
        chance = f"{10 * measured.chance:.1f} of 10 is chance"
        _note(f"this model is at chance ({chance}): what it finds means nothing; see dinorankclip doctor {model}")


def _warn_of_hubs(finder: Finder) -> None:
    from dinorankclip.search.background import HUB

    name, share = finder.hub()
    if share >= HUB:
        of = f"for {100 * share:.0f} % of unrelated queries"
        _note(f"{_shown(name)} comes first {of}: the model hardly tells photos apart")


def _converse(finder: Finder, top: int, answers: list[Answer], anyway: bool) -> None:
    """Read queries from the standard input; print each answer and add it to `answers`."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # lines of a file may be in any encoding
    prompting = sys.stdin.isatty()
    if prompting:
        _note("one query per line; an empty line or Ctrl-D ends")
    while True:
        if prompting:
            print("search> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line.strip():
            return
        answers.append(finder.by_words(line, top))
        _print(answers[-1], anyway)


def _print(answer: Answer, anyway: bool) -> None:
    """Print an answer; where no photo stands out, a line that says so in place of the photos, unless `anyway`."""
    title = f"like {_shown(answer.query)}" if isinstance(answer.query, Path) else f'"{_shown(answer.query)}"'
    lines = [title]
    nothing = answer.standing is not None and not answer.standing.stands_out
    if answer.standing is not None and nothing:
        rest = "" if anyway else "; --anyway lists them"
        lines.append(f"      nothing stands out: {answer.standing.words()}{rest}")
    if anyway or not nothing:
        lines += [f"{rank:4d}  {hit.score:6.3f}  {_shown(hit.path)}" for rank, hit in enumerate(answer.hits, 1)]
    print("\n".join(lines), flush=True)


def _shown(text: str | Path) -> str:
    """Make text fit for a terminal: control characters and bytes that are not text are replaced."""
    text = str(text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
