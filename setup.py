"""Metadata that pyproject.toml cannot state: the address of the repository, and README with absolute links.

README links to files of the repository. On a package index such links lead nowhere, so the long description points them
at the files of this version's tag. Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = "https://github.com/OWNER/dinorankclip"  # a placeholder: put the owner's name before the first release
PICTURES = (".png", ".svg", ".jpg", ".gif", ".webp")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?![a-z][a-z0-9+.-]*:|#|/)([^)\s]+)(\))")


def read_version() -> str:
    """Return the version, which stands in dinorankclip/__init__.py alone."""
    text = (HERE / "dinorankclip" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    assert found is not None, "dinorankclip/__init__.py has no line __version__ = …"
    return found[1]


def with_absolute_links(text: str, tag: str) -> str:
    """Point links and pictures of a Markdown text at the files of a tag. Code, anchors and addresses stay."""

    def absolute(link: re.Match[str]) -> str:
        path = link[2].removeprefix("./")
        kind = "raw" if path.partition("#")[0].endswith(PICTURES) else "blob"
        return f"{link[1]}{REPOSITORY}/{kind}/{tag}/{path}{link[3]}"

    pieces = _CODE.split(text)  # code is at the odd places
    return "".join(piece if place % 2 else _LINK.sub(absolute, piece) for place, piece in enumerate(pieces))


def project_urls(tag: str) -> dict[str, str]:
    return {
        "Homepage": REPOSITORY,
        "Repository": REPOSITORY,
        "Documentation": f"{REPOSITORY}/tree/{tag}/docs",
        "Changelog": f"{REPOSITORY}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }


if __name__ == "__main__":
    from setuptools import setup

    tag = f"v{read_version()}"
    setup(
        long_description=with_absolute_links((HERE / "README.md").read_text(encoding="utf-8"), tag),
        long_description_content_type="text/markdown",
        project_urls=project_urls(tag),
    )
