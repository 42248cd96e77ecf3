import pytest

from dinorankclip.commands.entry import main
from tests.set_making import patch


def test_what_cannot_be_written_is_told_without_a_traceback(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.jpg").write_bytes(patch(0))
    (tmp_path / "pairs.csv").write_text("image,caption\n0.jpg,a cat\n")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SystemExit) as end:
        main(["data", "show", "pairs.csv", "--split", "all", "--out", "file/sheet.html"])
    reported = capsys.readouterr().err
    assert end.value.code == 2 and "error: file" in reported and "Traceback" not in reported
