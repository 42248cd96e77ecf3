"""Markdown that our own writers make, as parts of a page. No raw HTML gets through: every piece of text is escaped."""

from __future__ import annotations

import re

from dinorankclip.writeup.page import Page, safe

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
