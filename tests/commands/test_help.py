"""Help as a newcomer meets it."""

import pytest

from dinorankclip.commands.entry import VERBS, main
from dinorankclip.config import PRESETS

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
    told = " ".join(helped(capsys, "train").replace("│", " ").split())
    assert "scenes, flickr8k, finetune or cc3m" in told and len(PRESETS) == 4
    assert "train --preset finetune --help shows that preset's" in told
    assert "auto (the GPU if there is one), cpu, cuda or cuda:N" in told and "see the same pairs" in told
    assert "(default: pairs.csv)" in helped(capsys, "train", "--preset", "finetune")
