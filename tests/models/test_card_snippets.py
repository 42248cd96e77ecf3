"""The Python lines on a card run as they are printed, where the folder and a photo lie."""

import re

import pytest

from dinorankclip.models.export_model import write_export
from tests.models.foreign_making import clip_folder
from tests.models.model_making import photo, saved, small_model

NEEDS = {"onnx": "onnxscript", "transformers": "transformers", "sentence-transformers": "sentence_transformers"}
FORMATS = ("folder", "open-clip", "onnx", "transformers", "sentence-transformers")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["plain", "fused", "foreign"])
def test_the_lines_of_a_card_run(tmp_path, monkeypatch, capsys, kind, form):
    pytest.importorskip(NEEDS.get(form, "torch"))
    if kind == "foreign":
        pytest.importorskip("transformers")
        if form == "open-clip":
            pytest.skip("open_clip cannot read another vocabulary from a folder; the export refuses it")
        clip_folder(tmp_path / "theirs")
        source = f"transformers:{tmp_path / 'theirs'}"
    else:
        source = str(saved(tmp_path / kind, small_model(None if kind == "plain" else "full", seed=2)))
    write_export(source, tmp_path / "given", [form], licence="mit")
    photo().save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    lines = re.search(r"## Loading\n```python\n(.*?)\n```", (tmp_path / "given" / "README.md").read_text(), re.DOTALL)
    capsys.readouterr()  # of the export
    exec(compile(lines[1], "card", "exec"), {"__name__": "card"})
    cosines = [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", capsys.readouterr().out)]
    assert bool(cosines) == ("print(" in lines[1]) and all(abs(cosine) < 1.001 for cosine in cosines)
