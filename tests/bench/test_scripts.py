"""Every script of bench/ can be asked for help, and its README knows it. In one process: imports take seconds."""

import importlib
import re
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
FILES = sorted(BENCH.glob("*.py"))
README = BENCH / "README.md"
SCRIPTS = [file.stem for file in FILES if '\nif __name__ == "__main__":\n    main()\n' in file.read_text()]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_how_it_is_run_and_answers_help(name, capsys):
    script = importlib.import_module(f"bench.{name}")
    assert f"python -m bench.{name}" in script.__doc__ or f"python bench/{name}.py" in script.__doc__
    with pytest.raises(SystemExit) as left:
        script.main(["--help"])
    assert left.value.code == 0 and "--help" in capsys.readouterr().out


def test_what_is_no_script_does_nothing_by_itself():
    """A script without its guard would run when it is imported, or stay silent when it is started."""
    others = [importlib.import_module(f"bench.{file.stem}") for file in FILES if file.stem not in SCRIPTS]
    assert len(SCRIPTS) >= 10 and not [module.__name__ for module in others if hasattr(module, "main")]


def test_the_readme_has_a_line_for_every_script_and_finds_its_records():
    text = README.read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == SCRIPTS
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert links and not [link for link in links if not (README.parent / link).is_file()]
