"""Help as a newcomer meets it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dinorankclip.commands.entry import VERBS, main
from dinorankclip.presets import PRESETS

CALLS = [[], *([verb] for verb in VERBS), ["teacher", "cache"]]
CALLS += [["data", verb] for verb in ("make", "pack", "pack-classes", "show")]
CALLS += [["study", verb] for verb in ("plan", "run", "status")]


def helped(capsys, *words):
    try:
        main([*words, "--help"])
    except SystemExit as end:
        assert end.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_every_help_has_examples(capsys, words):
    _before, heading, after = helped(capsys, *words).partition("\nExamples:\n")
    assert heading and after.startswith(f"  dinorankclip {' '.join(words)}".rstrip())


def test_train_names_its_presets_and_shows_the_defaults_of_the_one_asked_for(capsys):
    reported = " ".join(helped(capsys, "train").replace("│", " ").split())
    assert "scenes, flickr8k, finetune or cc3m" in reported and len(PRESETS) == 4
    assert "train --preset finetune --help shows that preset's" in reported
    assert "auto (the GPU if there is one), cpu, cuda or cuda:N" in reported and "see the same pairs" in reported
    assert "(default: pairs.csv)" in helped(capsys, "train", "--preset", "finetune")


OURS = re.compile(r"--(?:(?:reading|model|distil|optim|budget|record)\.[a-z-]+|data|run|init|method)(?![a-z-])")


def test_the_flags_that_users_of_open_clip_are_told_to_use_exist(capsys):
    text = helped(capsys, "train")
    assert "docs/from-open-clip.md" in text
    known = set(re.findall(r"--[a-z.-]+", text))
    page = (Path(__file__).parents[2] / "docs/from-open-clip.md").read_text()
    instead = [line.split("|", 2)[2] for line in page.splitlines() if line.startswith("| `")]
    assert len(instead) > 20 and {flag for text in instead for flag in OURS.findall(text)} <= known


def test_help_of_every_verb_is_light():
    program = "import sys\nfrom dinorankclip.commands.entry import VERBS, main\nfor verb in VERBS:\n"
    program += "    try: main([verb, '--help'])\n    except SystemExit: pass\n"
    program += "    heavy = {'torch', 'matplotlib', 'jinja2', 'markdown_it'} & set(sys.modules)\n"
    program += "    assert not heavy, (verb, heavy)"
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_studies_that_are_not_installed_are_told_in_a_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dinorankclip_studies", None)
    monkeypatch.delitem(sys.modules, "dinorankclip_studies.command", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["study", "plan", "small"])
    assert end.value.code == 2 and "studies are a package of their own" in capsys.readouterr().err
