"""Help as a newcomer meets it."""

import re
from pathlib import Path

import pytest

from dinorankclip.commands.entry import VERBS, main
from dinorankclip.commands.train import FOREIGN, TABLE
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
    told = " ".join(helped(capsys, "train").replace("│", " ").split())
    assert "scenes, flickr8k, finetune or cc3m" in told and len(PRESETS) == 4
    assert "train --preset finetune --help shows that preset's" in told
    assert "auto (the GPU if there is one), cpu, cuda or cuda:N" in told and "see the same pairs" in told
    assert "(default: pairs.csv)" in helped(capsys, "train", "--preset", "finetune")


OURS = re.compile(r"--(?:(?:reading|model|distil|optim|budget|record)\.[a-z-]+|data|run|init|method)(?![a-z-])")


def test_what_is_said_instead_of_open_clips_flags_exists_here(capsys):
    known = set(re.findall(r"--[a-z.-]+", helped(capsys, "train")))
    page = (Path(__file__).parents[2] / TABLE).read_text()
    said = [*FOREIGN.values(), *(line.split("|", 2)[2] for line in page.splitlines() if line.startswith("| `"))]
    assert {flag for text in said for flag in OURS.findall(text)} <= known
    assert not FOREIGN.keys() & known
    assert [flag for flag in FOREIGN if f"`{flag}" not in page] == []


def test_flags_of_open_clip_are_answered_with_ours(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--train-data", "x.csv", "--batch_size=64", "--siglip", "--seed", "1"])
    told = capsys.readouterr().err
    assert end.value.code == 2 and told.count("\n  --") == 3 and TABLE in told
    assert "--train-data → --data\n" in told and "--batch-size → --budget.batch, which counts" in told
