"""A table as rows of short texts."""

from __future__ import annotations

import base64
import html
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dinorankclip.report.figures import Drawn


@dataclass(frozen=True)
class Words:
    text: str
    bold: bool = False


@dataclass(frozen=True)
class Grid:
    """`groups[i]` is what stands above heading i: nothing, or that the column is the paper's."""

    headings: tuple[str, ...]
    groups: tuple[str, ...]
    rows: tuple[tuple[Words, ...], ...] = field(default=())


def wrapped(text: str, width: int = 118) -> str:
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


# -------- page
# One HTML file that needs nothing else: style inside, pictures inside, nothing fetched, all text escaped.
#
# Sections are collected and put together with a table of contents. Light and dark follow the reader's system; figures
# keep their white ground. On paper, traces are left out and nothing is cut.

_STYLE = """
:root { color-scheme: light dark; --back: #fafaf8; --card: #fff; --ink: #1d1d1f; --dim: #6e6e73; --line: #e3e3e0;
        --mark: #b4531f; --stripe: #f4f4f1; }
@media (prefers-color-scheme: dark) {
  :root { --back: #161617; --card: #202022; --ink: #f2f2f0; --dim: #98989d; --line: #333336; --mark: #f0a070;
          --stripe: #262628; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 30px 28px 60px; background: var(--back); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 27px; line-height: 1.25; margin: 0 0 6px; }
h2 { font-size: 21px; margin: 46px 0 12px; padding-top: 10px; border-top: 1px solid var(--line); }
h3 { font-size: 16.5px; margin: 30px 0 8px; }
p { margin: 8px 0; max-width: 84ch; overflow-wrap: anywhere; }
.lead { color: var(--dim); }
nav { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 18px; margin: 20px 0; }
nav ol { columns: 2; margin: 0; padding-left: 20px; }
nav ol ol { columns: 1; padding-left: 16px; list-style: none; font-size: 13.5px; }
nav li { break-inside: avoid; }
a { color: var(--mark); text-decoration: none; }
a:hover { text-decoration: underline; }
.scroll { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; background: var(--card); }
th, td { padding: 4px 9px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { white-space: normal; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 11em; }
td.text { text-align: left; white-space: normal; min-width: 11em; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
tbody tr:nth-child(even) { background: var(--stripe); }
.paper { color: var(--dim); font-style: italic; }
.note { color: var(--dim); font-size: 13px; max-width: 112ch; }
figure { margin: 18px 0 26px; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
         padding: 14px; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff; border-radius: 4px; }
figure img.lines { width: min(100%, 940px); }
figcaption { margin-top: 10px; font-size: 13.5px; color: var(--dim); max-width: 100ch; }
figcaption b { color: var(--ink); }
details { margin: 8px 0; font-size: 13px; }
summary { cursor: pointer; color: var(--dim); }
code, pre { font: 12.5px/1.5 ui-monospace, "SFMono-Regular", Consolas, monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px;
      overflow-x: auto; }
.warn { border-left: 3px solid var(--mark); padding-left: 12px; }
@media print {
  body { max-width: none; padding: 0; font-size: 11px; background: #fff; color: #000; }
  nav, details { display: none; }
  table { font-size: 9px; } th, td { padding: 2px 5px; white-space: normal; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; } .scroll { overflow: visible; }
}
"""


@dataclass
class Page:
    """`lead` is plain text under the title."""

    title: str
    lead: str = ""
    _parts: list[str] = field(default_factory=list)
    _contents: list[tuple[int, str, str]] = field(default_factory=list)

    def section(self, heading: str, level: int = 2, prefix: str = "") -> None:
        """`prefix` keeps anchors of one part of the page apart from the others."""
        anchor = self._anchor(f"{prefix}{heading}")
        self._contents.append((level, anchor, heading))
        self._parts.append(f'<h{level} id="{anchor}">{safe(heading)}</h{level}>')

    def text(self, words: str, kind: str = "") -> None:
        """A paragraph of plain text; `kind` is a class of the style: note, warn."""
        mark = f' class="{kind}"' if kind else ""
        self._parts.append(f"<p{mark}>{safe(words)}</p>")

    def command(self, *lines: str) -> None:
        self._parts.append(f"<pre>{safe(chr(10).join(lines))}</pre>")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = (0,)) -> None:
        """Plain text cells; `words` are the columns that hold sentences and not numbers."""
        head = "".join(f"<th>{safe(text)}</th>" for text in headings)
        body = []
        for row in rows:
            cells = [
                f'<td class="text">{safe(c)}</td>' if at in words else f"<td>{safe(c)}</td>" for at, c in enumerate(row)
            ]
            body.append(f"<tr>{''.join(cells)}</tr>")
        self._parts.append(_scrolled(f"<thead><tr>{head}</tr></thead>", body))

    def grid(self, grid: Grid) -> None:
        """A table of measured values; columns of the paper stand under a common head and look different."""
        head = ""
        if any(grid.groups):
            own = sum(not group for group in grid.groups)
            theirs = next(group for group in grid.groups if group)
            span = len(grid.groups) - own
            head = f'<tr><th colspan="{own}"></th><th colspan="{span}" class="paper">{safe(theirs)}</th></tr>'
        names = zip(grid.headings, grid.groups)
        head += "<tr>" + "".join(f"<th{_paper(group)}>{safe(text)}</th>" for text, group in names) + "</tr>"
        body = []
        for row in grid.rows:
            cells = []
            for words, group in zip(row, grid.groups):
                inner = f"<b>{safe(words.text)}</b>" if words.bold else safe(words.text)
                cells.append(f"<td{_paper(group)}>{inner}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        self._parts.append(_scrolled(f"<thead>{head}</thead>", body))

    def figure(self, drawn: Drawn, level: int | None = None) -> None:
        """With `level` the title is a heading of its own in the table of contents."""
        if level is not None:
            self.section(drawn.title, level)
        if drawn.svg is not None:
            kind, data, look = "svg+xml", drawn.svg, ' class="lines"'
        else:
            kind, data, look = "png", drawn.png, ""
        source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
        self._parts.append(
            f'<figure><img{look} src="{source}" alt="{safe(drawn.title)}">'
            f"<figcaption><b>{safe(drawn.title)}.</b> {safe(drawn.caption)}</figcaption></figure>"
        )

    def details(self, summary: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table that opens on a click."""
        start = len(self._parts)
        self.table(headings, rows, words=range(len(headings)))
        inner = "".join(self._parts[start:])
        del self._parts[start:]
        self._parts.append(f"<details><summary>{safe(summary)}</summary>{inner}</details>")

    def raw(self, markup: str) -> None:
        """Markup that is safe already."""
        self._parts.append(markup)

    def html(self) -> str:
        contents = _contents(self._contents)
        lead = f'<p class="lead">{safe(self.lead)}</p>' if self.lead else ""
        body = "\n".join(self._parts)
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{safe(self.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{safe(self.title)}</h1>
{lead}
{contents}
{body}
</body>
</html>
"""

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(), encoding="utf-8")

    def _anchor(self, heading: str) -> str:
        name = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"
        taken = sum(anchor == name or anchor.startswith(f"{name}--") for _, anchor, _ in self._contents)
        return f"{name}--{taken + 1}" if taken else name


def safe(text: object) -> str:
    """Escaped for HTML. Bytes of file names that are no UTF-8 become replacement characters."""
    return html.escape(str(text).encode("utf-8", "surrogateescape").decode("utf-8", "replace"))


def _paper(group: str) -> str:
    return ' class="paper"' if group else ""


def _scrolled(head: str, body: Sequence[str]) -> str:
    return f'<div class="scroll"><table>{head}<tbody>{"".join(body)}</tbody></table></div>'


def _contents(found: Sequence[tuple[int, str, str]]) -> str:
    """Sections of level 2, and of level 3 below them."""
    items: list[str] = []
    for level, anchor, heading in found:
        link = f'<a href="#{anchor}">{safe(heading)}</a>'
        if level == 2 or not items:
            items.append(f"{link}\x00")
        elif level == 3:
            items[-1] = items[-1].replace("\x00", f"<li>{link}</li>\x00")
    lines = []
    for item in items:
        link, _, below = item.replace("\x00", "").partition("</a>")
        lines.append(f"<li>{link}</a>{f'<ol>{below}</ol>' if below else ''}</li>")
    return f"<nav><ol>{''.join(lines)}</ol></nav>" if lines else ""


# -------- markdown_html
# Markdown that our own writers make, as parts of a page. No raw HTML gets through: every piece of text is escaped.

_RULE = re.compile(r"^\|(\s*:?-+:?\s*\|)+$")
_BREAK = re.compile(r"&lt;br&gt;")
_MARKS = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*(.+?)\*\*"), r"<b>\1</b>"),
    (re.compile(r"(?<![\w*])\*([^*]+)\*(?![\w*])"), r"<i>\1</i>"),
)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]*)\)")


def add_markdown(page: Page, text: str, level: int, prefix: str = "") -> None:
    """Headings are moved so that the highest of them is `level`; anchors and links to them begin with `prefix`."""
    blocks = re.split(r"\n\s*\n", text.strip())
    highest = min((_depth(block) for block in blocks if block.startswith("#")), default=1)
    for block in blocks:
        first, _, rest = block.partition("\n")
        if first.startswith("#"):
            page.section(first.lstrip("#").strip(), min(6, level + _depth(first) - highest), prefix)
            block = rest
        if block.strip():
            page.raw(_block(block.splitlines(), prefix))


def _depth(heading: str) -> int:
    return len(heading) - len(heading.lstrip("#"))


def _block(lines: list[str], prefix: str) -> str:
    if lines[0].startswith("|"):
        return _table(lines, prefix)
    if all(re.match(r"^(\s*[-*] |\s{2,})", line) for line in lines):
        items = re.split(r"\n\s*[-*] ", "\n" + "\n".join(lines))[1:]
        return "<ul>" + "".join(f"<li>{inline(' '.join(item.split()), prefix)}</li>" for item in items) + "</ul>"
    return f"<p>{inline(' '.join(lines), prefix)}</p>"


def _table(lines: list[str], prefix: str) -> str:
    rows = [_cells(line) for line in lines if not _RULE.match(line.strip())]
    head = "".join(f"<th>{inline(cell, prefix)}</th>" for cell in rows[0])
    body = []
    for row in rows[1:]:
        body.append("<tr>" + "".join(f'<td class="text">{inline(cell, prefix)}</td>' for cell in row) + "</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def inline(text: str, prefix: str = "") -> str:
    """Escaped text with bold, italic, code, line breaks and links inside the page.

    A link to a file or to the network has no place in a page that stands alone: its words stay.
    """
    text = re.sub(r"\\([*_|\\])", lambda found: f"\x01{ord(found[1])}\x02", text)  # escaped marks stay themselves
    text = _BREAK.sub("<br>", safe(text.replace("&lt;", "<")))
    for pattern, markup in _MARKS:
        text = pattern.sub(markup, text)
    text = _LINK.sub(lambda found: _linked(found[1], found[2], prefix), text)
    return re.sub("\x01(\\d+)\x02", lambda found: safe(chr(int(found[1]))), text)


def _linked(words: str, where: str, prefix: str) -> str:
    inside = re.fullmatch(r"#([A-Za-z0-9-]+)", where)
    return f'<a href="#{prefix}{inside[1]}">{words}</a>' if inside else words
