import sys

import pytest

from dinorankclip.commands.entry import VERBS, main
from tests.models.model_making import saved, small_model


def test_export_writes_and_says_what(tmp_path, capsys):
    source = saved(tmp_path / "model", small_model())
    main(["export", str(source), "--out", str(tmp_path / "out"), "--to", "folder", "open-clip", "--licence", "mit"])
    said = capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "open_clip" / "open_clip_config.json").is_file()
    assert "model.safetensors" in said and "MB" in said and "licence in README.md is open" not in said


def test_the_folder_is_named_as_the_user_did(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "model", small_model())
    main(["export", "model", "--out", "made/out"])
    assert capsys.readouterr().out.startswith("made/out: ")
    with pytest.raises(SystemExit):
        main(["export", "model", "--out", "made/out"])
    assert capsys.readouterr().err.startswith("error: made/out is there; ")


def test_a_wrong_model_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: ") and not (tmp_path / "out").exists()


def test_onnx_without_its_packages_says_how_to_get_them(tmp_path, capsys, monkeypatch):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(SystemExit):
        main(["export", str(saved(tmp_path / "model", small_model())), "--out", str(tmp_path / "out"), "--to", "onnx"])
    assert "pip install 'dinorankclip[onnx]'" in capsys.readouterr().err


def test_help_has_a_working_example(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "--help"])
    assert ended.value.code == 0
    assert VERBS["export"].example in capsys.readouterr().out
