"""A model whose training diverged: finite weights that give what is not finite. Every verb says so, none uses it."""

import pytest
import torch

from dinorankclip import io
from dinorankclip.commands.entry import main
from dinorankclip.models.loaded import load_model
from dinorankclip.types import UserError
from tests.models.model_making import photo, saved, small_model

BROKEN = "rows: its weights are broken (training may have diverged)"


@pytest.fixture
def diverged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(io, "INDEX_FOLDER", tmp_path / "index")
    (tmp_path / "photos").mkdir()
    for number in range(2):
        photo(number, 60, 48).save(tmp_path / "photos" / f"{number}.jpg")
        (tmp_path / "photos" / f"{number}.txt").write_text(f"scene {number}\n")
    model = small_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e30)
    return str(saved(tmp_path / "model", model))


@pytest.mark.parametrize(
    "words",
    [
        ["embed", "--images", "photos", "--out", "out"],
        ["embed", "--data", "photos", "--out", "out"],
        ["search", "--images", "photos", "a boat"],
        ["export", "--out", "out"],
        ["score", "--sets", "photos", "--split", "all", "--out", "out"],
    ],
)
def test_no_verb_uses_it(diverged, tmp_path, capsys, words):
    with pytest.raises(SystemExit) as end:
        main([words[0], diverged, *words[1:]])
    reported = capsys.readouterr()
    assert end.value.code == (1 if words[0] == "score" else 2)  # of several sets some may be scored
    assert BROKEN in reported.err and "nan" not in reported.out
    assert words[0] == "score" or not (tmp_path / "out").exists()


def test_rows_of_a_length_that_overflows_are_refused_too(tmp_path):
    model = small_model()
    with torch.no_grad():
        model.trunk.towers.visual.proj.mul_(1e30)
    with pytest.raises(UserError, match="non-finite embedding rows"):
        load_model(saved(tmp_path / "model", model)).encode_image(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
