"""docs/method.md names functions, files and tests that exist."""

import re
from pathlib import Path

from dinorankclip import losses
from dinorankclip.models import fusion

ROOT = Path(__file__).parents[1]
NAMED_WITH_PLACE = {"PairHead", "TripleHead"}


def test_every_function_and_test_that_is_named_exists():
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    words = set(re.findall(r"`([A-Za-z_.]+)`", page))
    tests = {word for word in words if word.startswith("test_")}
    written = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert len(tests) > 25 and sorted(test for test in tests if f"def {test}(" not in written) == []
    functions = {word for word in words - tests - NAMED_WITH_PLACE if "." not in word}
    assert len(functions) > 15 and sorted(functions - set(losses.__all__) - set(vars(fusion))) == []
    places = {word for word in re.findall(r"`((?:models|losses)/[\w./]*)`", page)}
    assert len(places) == 7 and all((ROOT / "dinorankclip" / place).exists() for place in places)
