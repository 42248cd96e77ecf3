"""Pages of the site that come from the code have every command and every setting; our Markdown is adapted rightly."""

import dataclasses
import re
import sys

import pytest

from dinorankclip.commands.entry import VERBS
from dinorankclip.config import LossSettings, TrainSettings
from tools.site_reference import commands, field_helps, help_of, run_files, settings


def test_every_command_is_there_with_its_help():
    text = commands()
    for verb in VERBS:
        assert f"\n## {verb}\n" in text, verb
    assert "### data pack" in text and "### study run" in text and "### teacher cache" in text
    assert "--matched" in text and "\x1b" not in text


def test_help_is_that_of_the_command():
    assert help_of("compare").startswith("usage: dinorankclip compare")


def test_every_setting_is_there():
    text, missing = settings(), []
    for field in dataclasses.fields(TrainSettings):
        value = getattr(TrainSettings(), field.name)
        names = (
            [f"{field.name}.{f.name}" for f in dataclasses.fields(value)]
            if dataclasses.is_dataclass(value)
            else [field.name]
        )
        missing += [name for name in names if f"| `{name}` |" not in text]
    assert missing == [] and "flickr8k: `20`" in text  # the epochs of another preset
    assert all(line.count(" | ") == 2 for line in re.sub(r"\\\|", "", text).splitlines() if line.startswith("| `"))


def test_helps_are_the_docstrings_below_the_fields():
    helps = field_helps(LossSettings)
    assert helps["order"] == "Plackett–Luce order R, 0 to 5." and "list_length" in helps


def test_files_of_a_run_are_those_of_the_document():
    assert "| `examples.json` |" in run_files() and "##" not in run_files()


@pytest.fixture
def hooks():
    pytest.importorskip("mkdocs")
    import tools.site_hooks as hooks

    return hooks


def test_lists_and_tables_stand_apart(hooks):
    text = "words:\n- one\n  goes on\n  - below\n- two\n\nmore\n| a | b |\n| --- | --- |\n```\ncode\n- no list\n```"
    assert hooks._apart(text) == (
        "words:\n\n- one\n  goes on\n    - below\n- two\n\nmore\n\n| a | b |\n| --- | --- |\n```\ncode\n- no list\n```"
    )


def test_formulas_become_mathml(hooks):
    pytest.importorskip("latex2mathml")
    page = r'<p><span class="arithmatex">\(a &lt; b\)</span></p><div class="arithmatex">\[\sum_i x_i\]</div>'
    made = hooks.on_page_content(page, None, None, None)
    assert made.count("<math") == 2 and 'display="block"' in made and "arithmatex" not in made


def test_the_hooks_find_the_tools(hooks):
    assert str(hooks.ROOT) in sys.path
