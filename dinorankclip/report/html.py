"""Writes self-contained HTML files from the templates beside this file: report pages, answers of a search, contact
sheets of `data show`.

Style and pictures are inside the file, so a page fetches nothing. Jinja2 escapes every text, because queries, captions
and file names come from outside; markdown-it renders our Markdown without raw HTML. Colours follow the reader's light
or dark system; figures stay on white. Jinja2 and markdown-it are imported when a page is written, because `--help` must
answer at once.
"""

from __future__ import annotations

import base64
import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageOps

from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import decode
from dinorankclip.data.folders_and_tables import read_file
from dinorankclip.io import write_text

if TYPE_CHECKING:
    from jinja2 import Environment

    from dinorankclip.data.inspect import ShownPair
    from dinorankclip.report.figures import Drawn
    from dinorankclip.search.photo_search import Answer, Hit
    from dinorankclip.types import Finding

_HEIGHT, _WIDEST = 240, 480  # pixels of a small copy; the page shows it smaller, so it is sharp on dense screens
_QUALITY = 82
_SURROGATE = re.compile("[\ud800-\udfff]")


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("dinorankclip", "report/templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **values: Any) -> str:
    """Fill a template. Bytes of file names that are not UTF-8 become replacement characters."""
    return _SURROGATE.sub("\ufffd", _templates().get_template(template).render(values))


def write_html(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def data_uri(kind: str, data: bytes) -> str:
    """Return a picture as an address that contains its bytes; `kind` is png, jpeg or svg+xml."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def wrapped(text: str, width: int = 118) -> str:
    """Wrap text for a Markdown or LaTeX file."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


@dataclass(frozen=True)
class Words:
    """Holds the text of a cell of a `Grid`."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Grid:
    """Holds a table of values. `groups[i]` stands above heading i: empty, or the label of the paper's columns."""

    headings: tuple[str, ...]
    groups: tuple[str, ...]
    rows: tuple[tuple[Words, ...], ...] = field(default=())


@dataclass(frozen=True)
class Tile:
    """Holds a small picture. `source` is a data address; empty: `name` says why there is none. `right`: whether the
    item is a right answer; None marks the item that was meant, or asked with."""

    source: str
    name: str
    right: bool | None = None


@dataclass(frozen=True)
class Row:
    """Holds what one query found: pictures, or pictures with captions and whether each is right."""

    label: str
    tiles: Sequence[Tile]
    captions: Sequence[tuple[str, bool]] = ()


@dataclass
class Page:
    """Builds a report page. Methods add parts in reading order; `html` adds the title and a table of contents."""

    title: str
    lead: str = ""
    _parts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def section(self, heading: str, level: int = 2, prefix: str = "") -> None:
        """Add a heading. `prefix` separates anchors of one part of the page from those of others."""
        name = re.sub(r"[^a-z0-9]+", "-", f"{prefix}{heading}".lower()).strip("-") or "section"
        taken = sum(part["anchor"] == name or part["anchor"].startswith(f"{name}--") for part in self._sections())
        self._add("section", heading=heading, level=level, anchor=f"{name}--{taken + 1}" if taken else name)

    def text(self, words: str, look: str = "") -> None:
        """Add a paragraph. `look` is a class of the style: note or warn."""
        self._add("text", words=words, look=look)

    def command(self, *lines: str) -> None:
        self._add("command", lines=lines)

    def findings(self, findings: Iterable[Finding]) -> None:
        """Add findings of `doctor`, each with its level."""
        self._add("findings", findings=list(findings))

    def table(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        words: Sequence[int] = (0,),
        tips: Mapping[str, str] | None = None,
    ) -> None:
        """Add a table. Columns in `words` hold sentences, the others numbers; `tips` explain cells with these texts."""
        self._add("table", headings=headings, rows=list(rows), words=words, tips=tips or {})

    def query(self, asked: str, rows: Sequence[Row]) -> None:
        """Add a query and what it found, at one moment or at several."""
        self._add("query", asked=asked, rows=rows)

    def picture(self, source: str, title: str, caption: str, folded: bool = False) -> None:
        """Add a picture whose bytes are in its address; a `folded` one opens on a click."""
        self._add("folded" if folded else "figure", source=source, look="", title=title, caption=caption)

    def details(self, summary: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table of sentences that opens on a click."""
        self._add("details", summary=summary, headings=headings, rows=list(rows), words=range(len(headings)), tips={})

    def grid(self, grid: Grid) -> None:
        self._add("grid", grid=grid)

    def figure(self, drawn: Drawn, level: int | None = None) -> None:
        """Add a figure. With `level` its title is a heading in the table of contents, too."""
        if level is not None:
            self.section(drawn.title, level)
        source = data_uri("png", drawn.png) if drawn.svg is None else data_uri("svg+xml", drawn.svg)
        look = "" if drawn.svg is None else "lines"
        self._add("figure", source=source, look=look, title=drawn.title, caption=drawn.caption)

    def markup(self, markup: str) -> None:
        """Add HTML that is escaped already."""
        self._add("markup", markup=markup)

    def html(self) -> str:
        contents: list[tuple[str, str, list[tuple[str, str]]]] = []
        for part in self._sections():
            if part["level"] == 2 or not contents:
                contents.append((part["heading"], part["anchor"], []))
            elif part["level"] == 3:
                contents[-1][2].append((part["heading"], part["anchor"]))
        return render("report.html", title=self.title, lead=self.lead, contents=contents, parts=self._parts)

    def write(self, path: Path) -> None:
        write_html(path, self.html())

    def _add(self, kind: str, **part: Any) -> None:
        self._parts.append((kind, part))

    def _sections(self) -> Iterable[dict[str, Any]]:
        return [part for kind, part in self._parts if kind == "section"]


def add_markdown(page: Page, text: str, level: int, prefix: str = "") -> None:
    """Add Markdown to a page. Its highest heading gets `level`; anchors and links to them begin with `prefix`.

    A link to a file or to the network becomes plain words, because the page stands alone. `<br>` breaks a line.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = parser.parse(text)
    highest = min((int(token.tag[1:]) for token in tokens if token.type == "heading_open"), default=1)
    links_inside = True
    for token in [token for block in tokens for token in (block, *(block.children or ()))]:
        if token.type in ("th_open", "td_open"):  # cells hold sentences, so the alignment of numbers is dropped
            token.attrs = {"class": "text"} if token.type == "td_open" else {}
        elif token.type == "link_open":
            inside = re.fullmatch(r"#([A-Za-z0-9-]+)", str(token.attrs["href"]))
            token.hidden = inside is None
            token.attrs = {"href": f"#{prefix}{inside[1]}"} if inside else {}
            links_inside = inside is not None
        elif token.type == "link_close":
            token.hidden = not links_inside

    def add_blocks() -> None:
        if blocks:
            page.markup(parser.renderer.render(blocks, parser.options, {}).replace("&lt;br&gt;", "<br>"))

    blocks = []
    queue = iter(tokens)
    for token in queue:
        if token.type != "heading_open":
            blocks.append(token)
            continue
        add_blocks()
        blocks = []
        heading = "".join(child.content for child in next(queue).children or ())
        next(queue)  # the end of the heading
        page.section(heading, min(6, level + int(token.tag[1:]) - highest), prefix)
    add_blocks()


def write_search_page(path: Path, answers: Sequence[Answer], photos: Path, model: str, searched: int) -> None:
    """Write the answers to queries with small copies of the photos; `searched` is the number of photos in the folder
    `photos` that were searched. A click on a copy opens the photo itself, as long as the file is where it was."""
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
        return {"query": answer.query.name, "photo": _small_copy(answer.query), "hits": hits, "note": ""}
    weak = answer.standing is not None and not answer.standing.stands_out
    note = f"Nothing stands out: {answer.standing.words()}." if weak and answer.standing else ""
    return {"query": answer.query, "photo": None, "hits": hits, "note": note}


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
