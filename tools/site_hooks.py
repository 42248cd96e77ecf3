"""Builds the parts of the site that come from elsewhere than docs/: hooks of mkdocs.yml.

on_files            adds pages: notebooks, CONTRIBUTING and its neighbours
on_page_markdown    fills the pages of the reference from the code (<!-- generated: NAME -->), and adapts our
                    Markdown, which is written for GitHub, to the renderer of the site
on_page_content     turns LaTeX into MathML, so that no script has to be loaded for formulas
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File, Files  # noqa: E402

from tools.site_notebooks import notebook_files  # noqa: E402
from tools.site_reference import GENERATED  # noqa: E402

# Documents at the root of the repository → pages of the site.
ROOT_DOCUMENTS = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",
}
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ITEM = re.compile(r"( *)(?:[-*+]|\d+\.) ")
_FENCE = re.compile(r" *(`{3,}|~{3,})")
_GENERATED = re.compile(r"<!-- generated: ([a-z ]+) -->")
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    pages = notebook_files(ROOT / "examples" / "notebooks")
    for name, page in ROOT_DOCUMENTS.items():
        if name != "README.md":  # docs/index.md takes its place
            pages[page] = (ROOT / name).read_text(encoding="utf-8")
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    # Links of a document at the root start there; those of other pages start in their folder below docs/.
    origin = next((name for name, place in ROOT_DOCUMENTS.items() if place == page.file.src_uri), None)
    base = (
        ""
        if origin and page.file.src_uri != "index.md"
        else posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    )

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        named = posixpath.normpath(posixpath.join(base, path))
        place = _page_of(named, files)
        if place is None and not (ROOT / named).exists():
            return match[0]  # a broken link, which ends a strict build
        if place is None:
            return words if "`" in words else f"`{words}`"  # a file of the repository that is no page
        relative = posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{words}]({relative}{'#' + anchor if anchor else ''})"

    markdown = _apart(_outside_fences(markdown, lambda text: _LINK.sub(link, text)))
    return _GENERATED.sub(lambda match: _apart(GENERATED[match[1]]()), markdown)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    if "arithmatex" not in content:
        return content
    from latex2mathml.converter import convert

    content = _DISPLAY.sub(lambda match: convert(html.unescape(match[1]), display="block"), content)
    return _INLINE.sub(lambda match: convert(html.unescape(match[1])), content)


def _page_of(place: str, files: Files) -> str | None:
    """Return the site's page or file for a path of the repository; None if the site does not have it."""
    if place in ROOT_DOCUMENTS:
        return ROOT_DOCUMENTS[place]
    if place.startswith("examples/notebooks/"):
        place = "docs/" + posixpath.join("notebooks", posixpath.basename(place).replace(".ipynb", ".md"))
    inside = place.removeprefix("docs/")
    if not place.startswith("docs/"):
        return None
    found = files.get_file_from_path(inside)
    if found is not None:
        return inside if not found.inclusion.is_excluded() else None
    below = f"{inside}/README.md"  # a folder that is linked as a whole
    return below if files.get_file_from_path(below) is not None else None


def _outside_fences(markdown: str, change: Any) -> str:
    """Apply `change` to the text between fences, line by line."""
    lines, fence = [], ""
    for line in markdown.split("\n"):
        match = _FENCE.match(line)
        if match and (not fence or match[1].startswith(fence)):
            fence = "" if fence else match[1]
            lines.append(line)
        else:
            lines.append(line if fence else change(line))
    return "\n".join(lines)


def _apart(markdown: str) -> str:
    """Put an empty line before lists and tables, and indent nested items by four: Python-Markdown asks for both."""
    lines: list[str] = []
    fence, above = "", ""
    for line in markdown.split("\n"):
        match = _FENCE.match(line)
        if match and (not fence or match[1].startswith(fence)):
            fence = "" if fence else match[1]
        elif not fence:
            item, inside = _ITEM.match(line), bool(_ITEM.match(above) or above.startswith("  "))
            table = line.startswith("|") and above and not above.startswith("|")
            if (item and above and not inside) or table:
                lines.append("")
            if item and item[1]:
                line = item[1] + line
        lines.append(line)
        above = line.strip() and line
    return "\n".join(lines)
