"""Documents name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(
        path
        for kind in ("tutorials", "howto", "reference", "explanation", "records")
        for path in (ROOT / "docs" / kind).glob("*.md")
    ),
]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(
    r"(?<![\w/.])(?:dinorankclip|dinorankclip_studies|tests|bench|tools|examples)/[\w/]+\.(?:py|toml|json|md)\b"
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: "/".join(path.parts[-2:]))
def test_links_and_paths_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    links = [link for link in LINK.findall(text) if not link.startswith(("http:", "https:", "mailto:"))]
    missing = [link for link in links if not (document.parent / link).exists()]
    missing += [path for path in PATH.findall(text) if "NAME" not in path and not (ROOT / path).exists()]
    assert missing == []


def test_links_are_found():
    assert len(LINK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))) > 20


def test_the_glossary_is_short():
    rows = [
        line for line in (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")
    ]
    assert len(rows) - 2 <= 30
