"""Documents name files that exist."""

import itertools
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


@pytest.mark.parametrize(
    ("page", "heading"), [("README.md", "**Methods at equal time**"), ("docs/results.md", "## Methods at equal time")]
)
def test_figures_at_equal_time_are_those_that_the_league_wrote(page, heading):
    """Every row of the table is a row of the generated page, to the letter."""
    written = (ROOT / "docs/study/leagues/equal-time.md").read_text(encoding="utf-8").splitlines()
    lines = (ROOT / page).read_text(encoding="utf-8").split(heading)[1].splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("|"))
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))
    assert len(rows) > 5 and set(rows) <= set(written)
