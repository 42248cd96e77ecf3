"""Every test that docs/robustness.md names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_of_all_findings_exist():
    table = (ROOT / "docs" / "robustness.md").read_text().partition("## Findings")[2]
    names, file = [], ""
    for where, test in re.findall(r"`([\w/.]*)::(\w+)`", table):
        file = where or file
        names.append((file, test))
    assert len(names) > 30
    missing = [f"{file}::{test}" for file, test in names if f"def {test}(" not in (ROOT / file).read_text()]
    assert missing == []
